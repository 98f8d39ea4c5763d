"""Strips of the finished map: after blending, as stored in the rasters, and as checkpoint files."""

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

# Bytes hold probabilities in steps of 1/254; 255 is no data.
BYTE_STEPS = 254
BYTE_NODATA = 255


@dataclass(frozen=True)
class MappedStrip:
    """Rows of the finished map: probabilities (rows, cols, classes) and valid pixels (rows, cols)."""

    top: int
    probabilities: NDArray[np.float32]
    valid: NDArray[np.bool_]
    patches: int = 0  # in the batch rows that start in this strip
    absurd_pixels: int = 0  # valid values that no sensor measures

    @property
    def classes(self) -> NDArray[np.uint16]:
        """1..K, or 0 for no data."""
        found = self.probabilities.argmax(axis=-1).astype(np.uint16) + np.uint16(1)
        return np.where(self.valid, found, np.uint16(0))

    @property
    def confidence(self) -> NDArray[np.float32]:
        """The largest probability."""
        largest: NDArray[np.float32] = self.probabilities.max(axis=-1)
        return largest

    def stored(self, kind: ProbabilityType) -> StoredStrip:
        """The strip in the sample types of the rasters."""
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
    """A strip in the sample types of the rasters, with counts for the summary."""

    top: int
    classes: NDArray[Any]  # (rows, cols)
    probabilities: NDArray[Any]  # (rows, cols, classes)
    confidence: NDArray[Any]  # (rows, cols)
    confidence_sum: float
    patches: int
    absurd_pixels: int


def class_type(classes: int) -> str:
    """The smallest sample type for 0..classes."""
    return "uint8" if classes < 256 else "uint16"


def _encoded(share: NDArray[np.float32], valid: NDArray[np.bool_], kind: ProbabilityType) -> NDArray[Any]:
    if kind == "float32":
        return np.where(valid, share, np.float32(np.nan))
    steps = np.rint(share * np.float32(BYTE_STEPS)).astype(np.uint8)
    return np.where(valid, steps, np.uint8(BYTE_NODATA))


class Checkpoint:
    """A folder of finished strips and of predictions that unfinished strips need, a file for each strip and batch.

    Strips are renamed into place. Predictions are many and small: each is written in place, after its checksum.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._saved: dict[int, set[int]] = {}  # batch columns by batch row
        for path in folder.glob("*.answer"):
            batch_row, batch_col = map(int, path.stem.split("-"))
            self._saved.setdefault(batch_row, set()).add(batch_col)

    def load_prediction(self, batch_row: int, batch_col: int, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """A batch's predictions; None if there are none, or the file is damaged."""
        if batch_col not in self._saved.get(batch_row, ()):
            return None
        try:
            content = self._prediction_path(batch_row, batch_col).read_bytes()
        except FileNotFoundError:  # another worker has taken over the job and deleted it
            return None
        checksum, values = content[:4], content[4:]
        if len(values) != 4 * math.prod(shape) or zlib.crc32(values) != int.from_bytes(checksum, "little"):
            return None
        return np.frombuffer(values, np.float32).reshape(shape)

    def save_prediction(self, batch_row: int, batch_col: int, prediction: NDArray[np.float32]) -> None:
        """Save a batch's predictions."""
        values = prediction.tobytes()
        checksum = zlib.crc32(values).to_bytes(4, "little")
        self._saved.setdefault(batch_row, set()).add(batch_col)
        self._prediction_path(batch_row, batch_col).write_bytes(checksum + values)

    def drop_predictions(self, before: int) -> None:
        """Delete the predictions of batch rows before this one."""
        for batch_row in [batch_row for batch_row in self._saved if batch_row < before]:
            for batch_col in self._saved.pop(batch_row):
                self._prediction_path(batch_row, batch_col).unlink(missing_ok=True)

    def _prediction_path(self, batch_row: int, batch_col: int) -> Path:
        return self.folder / f"{batch_row}-{batch_col}.answer"

    def holds(self, index: int) -> bool:
        """Whether there is a file of this strip."""
        return self._path(index).is_file()

    def load(self, index: int) -> StoredStrip | None:
        """A finished strip; None if its file is missing or damaged, for instance after a power cut."""
        try:
            # A zip file, with a checksum for each array.
            with self._path(index).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                numbers = {name: arrays[name].item() for name in ("top", "confidence_sum", "patches", "absurd_pixels")}
                rasters = {name: arrays[name] for name in ("classes", "probabilities", "confidence")}
            return StoredStrip(**numbers, **rasters)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            self._path(index).unlink(missing_ok=True)
            return None

    def save(self, index: int, strip: StoredStrip) -> None:
        """Save a finished strip."""
        unfinished = self.folder / f".{index:06d}.{os.getpid()}"
        with unfinished.open("wb") as file:
            arrays: dict[str, Any] = {name: np.asarray(value) for name, value in asdict(strip).items()}
            np.savez(file, **arrays)
        unfinished.replace(self._path(index))

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.npz"
