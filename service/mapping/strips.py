"""Strips of the finished map: as they are blended, as they are stored, and as files that a later run goes on from."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

ProbabilityType = Literal["uint8", "float32"]
PROBABILITY_TYPES: tuple[ProbabilityType, ...] = get_args(ProbabilityType)

# A byte holds probabilities in steps of 1/254; 255 is left for pixels without data.
BYTE_STEPS = 254
BYTE_NODATA = 255


@dataclass(frozen=True)
class MappedStrip:
    """Rows of the finished map: probabilities (rows, cols, classes), and which pixels (rows, cols) hold data."""

    top: int
    probabilities: NDArray[np.float32]
    valid: NDArray[np.bool_]
    patches: int = 0  # of the groups that begin in these rows
    absurd_pixels: int = 0  # whose values no sensor measures

    @property
    def classes(self) -> NDArray[np.uint16]:
        """1..K, or 0 where there is no data."""
        found = self.probabilities.argmax(axis=-1).astype(np.uint16) + np.uint16(1)
        return np.where(self.valid, found, np.uint16(0))

    @property
    def confidence(self) -> NDArray[np.float32]:
        """The largest probability."""
        largest: NDArray[np.float32] = self.probabilities.max(axis=-1)
        return largest

    def stored(self, kind: ProbabilityType) -> StoredStrip:
        """The strip as the rasters hold it."""
        return StoredStrip(
            top=self.top,
            classes=self.classes.astype(class_type(self.probabilities.shape[-1])),
            probabilities=_encoded(self.probabilities, self.valid[..., None], kind),
            confidence=_encoded(self.confidence, self.valid, kind),
            confidence_sum=float(self.confidence.sum(where=self.valid, dtype=np.float64)),
            patches=self.patches,
            absurd_pixels=self.absurd_pixels,
        )


@dataclass(frozen=True)
class StoredStrip:
    """A strip as the rasters hold it, and what the summary needs of it."""

    top: int
    classes: NDArray[Any]  # (rows, cols)
    probabilities: NDArray[Any]  # (rows, cols, classes)
    confidence: NDArray[Any]  # (rows, cols)
    confidence_sum: float
    patches: int
    absurd_pixels: int


def class_type(classes: int) -> str:
    """The smallest samples that hold 0..classes."""
    return "uint8" if classes < 256 else "uint16"


def _encoded(share: NDArray[np.float32], valid: NDArray[np.bool_], kind: ProbabilityType) -> NDArray[Any]:
    if kind == "float32":
        return np.where(valid, share, np.float32(np.nan))
    steps = np.rint(share * np.float32(BYTE_STEPS)).astype(np.uint8)
    return np.where(valid, steps, np.uint8(BYTE_NODATA))


class Checkpoint:
    """A folder of finished strips, a file each, and of the network's answers that no finished strip has used up yet.

    Strips are renamed into place. Answers are many and small: each is written at once, with a checksum in front.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._answers: dict[int, set[int]] = {}  # tiles by group
        for path in folder.glob("*.answer"):
            group, tile = path.stem.split("-")
            self._answers.setdefault(int(group), set()).add(int(tile))

    def load_answer(self, group: int, tile: int, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """What the network said about a tile; None where it was not asked, or the file did not survive whole."""
        if tile not in self._answers.get(group, ()):
            return None
        try:
            content = self._answer_path(group, tile).read_bytes()
        except FileNotFoundError:  # another worker, who has the job now, is further
            return None
        checksum, values = content[:4], content[4:]
        if len(values) != 4 * math.prod(shape) or zlib.crc32(values) != int.from_bytes(checksum, "little"):
            return None
        return np.frombuffer(values, np.float32).reshape(shape)

    def save_answer(self, group: int, tile: int, answer: NDArray[np.float32]) -> None:
        """Keep what the network said about a tile."""
        values = answer.tobytes()
        checksum = zlib.crc32(values).to_bytes(4, "little")
        self._answers.setdefault(group, set()).add(tile)
        self._answer_path(group, tile).write_bytes(checksum + values)

    def drop_answers(self, before_group: int) -> None:
        """Forget answers that only finished strips needed."""
        for group in [group for group in self._answers if group < before_group]:
            for tile in self._answers.pop(group):
                self._answer_path(group, tile).unlink(missing_ok=True)

    def _answer_path(self, group: int, tile: int) -> Path:
        return self.folder / f"{group}-{tile}.answer"

    def holds(self, index: int) -> bool:
        """Whether there is a file for this strip."""
        return self._path(index).is_file()

    def load(self, index: int) -> StoredStrip | None:
        """A finished strip; None where its file did not survive a power cut whole."""
        try:
            # A zip file: every array has its checksum.
            with self._path(index).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                numbers = {name: arrays[name].item() for name in ("top", "confidence_sum", "patches", "absurd_pixels")}
                rasters = {name: arrays[name] for name in ("classes", "probabilities", "confidence")}
            return StoredStrip(**numbers, **rasters)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            self._path(index).unlink(missing_ok=True)
            return None

    def save(self, index: int, strip: StoredStrip) -> None:
        """Keep a finished strip."""
        unfinished = self.folder / f".{index:06d}.{os.getpid()}"
        with unfinished.open("wb") as file:
            arrays: dict[str, Any] = {name: np.asarray(value) for name, value in asdict(strip).items()}
            np.savez(file, **arrays)
        unfinished.replace(self._path(index))

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.npz"
