"""Label sets: the classes and labelled pixels that an owner drew on a scene, one file for each.

A label set is a sparse class raster on the scene's grid. Changes name pixels as runs (row, first column, number), so
that what a person sees is exactly what a model learns from. They are on disk before the response.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import LabelsChanged, LabelsUnusable, PreconditionMissing, write_error
from hyperscene.service.jobs.disk import flush
from hyperscene.service.settings import Settings

MAX_CLASSES = 255
MAX_PIXELS = 2_000_000
MAX_NAME = 100
COLOR = re.compile("#[0-9a-f]{6}")
ERASED = 0  # as the class of a change

Run = tuple[int, int, int]  # row, first column, number of pixels


@dataclass(frozen=True)
class LabelClass:
    """A class of a label set; its value is what rasters hold."""

    value: int
    name: str
    color: str


@dataclass(frozen=True)
class Change:
    """Pixels that get a class, or lose theirs (ERASED)."""

    value: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class LabelSet:
    """Labels on a scene's grid."""

    rows: int
    cols: int
    classes: tuple[LabelClass, ...] = ()
    pixels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # row * cols + col, ascending
    values: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    version: int = 0  # raised with every change

    @property
    def etag(self) -> str:
        """Identifies the content."""
        digest = hashlib.sha256(self.pixels.tobytes() + self.values.tobytes())
        digest.update(json.dumps([vars(each) for each in self.classes]).encode())
        return f'"{self.version}-{digest.hexdigest()[:16]}"'

    @property
    def counts(self) -> dict[int, int]:
        """Labelled pixels of each class."""
        found = np.bincount(self.values, minlength=MAX_CLASSES + 1)
        return {each.value: int(found[each.value]) for each in self.classes}

    @property
    def positions(self) -> NDArray[np.int64]:
        """Rows and columns (n, 2)."""
        return np.column_stack(np.divmod(self.pixels, self.cols))

    def changed(self, changes: Sequence[Change], classes: Sequence[LabelClass] | None = None) -> LabelSet:
        """The set after these changes, in their order; pixels of classes that are left out lose their label."""
        known = self.classes if classes is None else check_classes(classes)
        pixels, values = self.pixels, self.values
        allowed = {each.value for each in known}
        for change in changes:
            if change.value not in allowed | {ERASED}:
                raise LabelsUnusable(f"there is no class {change.value}: add it to the classes, or choose one of them")
            drawn = self._pixels_of(change.runs)
            kept = ~np.isin(pixels, drawn, kind="sort")
            added = drawn if change.value != ERASED else drawn[:0]
            pixels = np.concatenate([pixels[kept], added])
            values = np.concatenate([values[kept], np.full(len(added), change.value, np.uint8)])
        order = np.argsort(pixels, kind="stable")
        pixels, values = pixels[order], values[order]
        kept = np.isin(values, list(allowed))
        if kept.sum() > MAX_PIXELS:
            raise LabelsUnusable(f"{int(kept.sum())} pixels would be labelled; {MAX_PIXELS} are accepted: label fewer")
        return replace(self, classes=tuple(known), pixels=pixels[kept], values=values[kept], version=self.version + 1)

    def runs(self, value: int) -> list[Run]:
        """The pixels of a class as runs."""
        return runs_of(self.pixels[self.values == value], self.cols)

    def sample(self, value: int, count: int) -> list[tuple[int, int]]:
        """Rows and columns of at most so many pixels of a class, at random."""
        own = np.random.default_rng(0).permutation(self.pixels[self.values == value])[:count]
        return [divmod(int(pixel), self.cols) for pixel in own]

    def _pixels_of(self, runs: Sequence[Run]) -> NDArray[np.int64]:
        given = np.array(runs, np.int64).reshape(-1, 3)
        rows, cols, lengths = given.T
        if (rows < 0).any() or (cols < 0).any() or (lengths < 1).any():
            raise LabelsUnusable("a run is [row, first column, number of pixels] from 0, with at least one pixel")
        if (rows >= self.rows).any() or (lengths > self.cols - cols).any():
            raise LabelsUnusable(
                f"a run lies outside of the scene, whose rows are 0 to {self.rows - 1} and whose columns are 0 to "
                f"{self.cols - 1}: leave it out"
            )
        if lengths.sum() > MAX_PIXELS:
            raise LabelsUnusable(f"{int(lengths.sum())} pixels in one change; {MAX_PIXELS} are accepted: draw less")
        starts = np.repeat(rows * self.cols + cols - np.cumsum(lengths) + lengths, lengths)
        return np.unique(starts + np.arange(int(lengths.sum())))

    def document(self) -> dict[str, Any]:
        """The set as it is stored."""
        return {
            "version": self.version,
            "rows": self.rows,
            "cols": self.cols,
            "classes": [vars(each) | {"runs": self.runs(each.value)} for each in self.classes],
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> LabelSet:
        """The stored set."""
        classes = [LabelClass(each["value"], each["name"], each["color"]) for each in document["classes"]]
        changes = [Change(each["value"], tuple(map(tuple, each["runs"]))) for each in document["classes"]]
        empty = cls(document["rows"], document["cols"])
        return replace(empty.changed(changes, classes), version=document["version"])


def runs_of(pixels: NDArray[np.int64], cols: int) -> list[Run]:
    """Ascending pixels as runs."""
    if not len(pixels):
        return []
    starts = np.flatnonzero((np.diff(pixels, prepend=-2) != 1) | (pixels % cols == 0))
    lengths = np.diff(starts, append=len(pixels))
    rows, firsts = np.divmod(pixels[starts], cols)
    return list(zip(rows.tolist(), firsts.tolist(), lengths.tolist(), strict=True))


def check_classes(classes: Iterable[LabelClass]) -> tuple[LabelClass, ...]:
    """The classes, with names trimmed; refuses values, names or colours that are invalid or used twice."""
    found = tuple(replace(each, name=each.name.strip(), color=each.color.lower()) for each in classes)
    if len(found) > MAX_CLASSES:
        raise LabelsUnusable(f"{len(found)} classes; {MAX_CLASSES} are accepted: merge some")
    for each in found:
        if not 1 <= each.value <= MAX_CLASSES:
            raise LabelsUnusable(f"the class value {each.value} is not between 1 and {MAX_CLASSES}: choose another")
        if not (0 < len(each.name) <= MAX_NAME and each.name.isprintable()):
            raise LabelsUnusable(f"class {each.value} needs a name of 1 to {MAX_NAME} printable characters")
        if not COLOR.fullmatch(each.color):
            raise LabelsUnusable(f"the colour {each.color[:20]!r} of class {each.name} is not like #1e6b34: change it")
    for what in ("value", "name"):
        seen = [getattr(each, what) for each in found]
        twice = next((one for one in seen if seen.count(one) > 1), None)
        if twice is not None:
            raise LabelsUnusable(f"two classes have the {what} {twice}: give each its own")
    return found


def read_label_file(path: Path, shape: tuple[int, int]) -> LabelSet:
    """The labels in a file of the store; an empty set if there is none."""
    try:
        return LabelSet.from_document(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return LabelSet(*shape)


class LabelStore:
    """The label sets on disk; this process is the only one that writes them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()

    def path(self, scene_id: str, owner: str) -> Path:
        """The file of an owner's label set; it is removed with its scene."""
        return self._settings.scene_folder(scene_id) / "labels" / f"{owner or 'all'}.json"

    def read(self, scene_id: str, owner: str, shape: tuple[int, int]) -> LabelSet:
        """An owner's label set; an empty one if nothing was labelled yet."""
        return read_label_file(self.path(scene_id, owner), shape)

    def change(self, scene_id: str, owner: str, found: LabelSet, changed: LabelSet) -> LabelSet:
        """Store the changed set on disk, unless another request has changed the one that was `found` meanwhile."""
        with self._lock:
            current = self.read(scene_id, owner, (found.rows, found.cols))
            if current.etag != found.etag:
                raise labels_changed(current)
            self._write(self.path(scene_id, owner), changed)
        return changed

    def _write(self, path: Path, labels: LabelSet) -> None:
        unfinished = path.with_suffix(".half")
        try:
            is_first = not path.parent.is_dir()
            path.parent.mkdir(mode=0o700, exist_ok=True)  # not its parent: a removed scene stays removed
            unfinished.write_text(json.dumps(labels.document(), separators=(",", ":")), "utf-8")
            flush(unfinished)
            unfinished.replace(path)
            flush(path.parent)
            if is_first:
                flush(path.parent.parent)
        except OSError as error:
            raise write_error(error) from error


def require_match(labels: LabelSet, if_match: str | None) -> None:
    """Refuse a change that does not name the version it was made to."""
    if if_match is None:
        raise PreconditionMissing(
            "changes of labels need the header If-Match with the ETag of GET, so that two pages never overwrite each "
            "other's labels: send it"
        )
    tags = {tag.strip() for tag in if_match.split(",")}
    if "*" not in tags and labels.etag not in tags:
        raise labels_changed(labels)


def labels_changed(labels: LabelSet) -> LabelsChanged:
    """The refusal of a change to an older version."""
    return LabelsChanged(
        f"these labels were changed elsewhere, for instance in another tab; their version is now {labels.version}: "
        "read them again, and repeat your change"
    )
