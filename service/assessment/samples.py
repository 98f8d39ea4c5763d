"""Samples on disk: the file for the interpreter, which does not say what the map says, and its design."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import SampleUnusable
from hyperscene.service.assessment.drawing import Sample
from hyperscene.service.assessment.finished_map import FinishedMap
from hyperscene.service.assessment.vector_files import read_points, write_points
from hyperscene.service.mapping.metadata import write_json

LABEL_FIELD = "label"
CANNOT_TELL = "cannot tell"
DESIGN_SUFFIX = ".design.json"


@dataclass(frozen=True)
class Design:
    """What a sample was drawn from: the strata are the classes of that map."""

    map_sha256: str
    map_name: str
    class_names: tuple[str, ...]
    stratum_pixels: tuple[int, ...]
    stratum_hectares: tuple[float, ...] | None
    points: NDArray[np.int64]  # (n, 3): row, col, class of the map; the id of a point is its place, from 1
    options: dict[str, Any]
    buffer_px: int
    left_out_pixels: int

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "points": self.points.tolist()}


def design_of(sample: Sample, finished: FinishedMap) -> Design:
    """The design of a sample that was drawn from this map."""
    hectares = sample.frame.hectares
    return Design(
        map_sha256=finished.sha256,
        map_name=finished.name,
        class_names=finished.class_names,
        stratum_pixels=tuple(sample.frame.pixels.tolist()),
        stratum_hectares=None if hectares is None else tuple(hectares.tolist()),
        points=np.column_stack([sample.pixels, sample.strata]),
        options=asdict(sample.options),
        buffer_px=sample.buffer_px,
        left_out_pixels=sample.left_out_pixels,
    )


def design_path(sample: Path) -> Path:
    """The design beside a sample's file."""
    return sample.with_name(sample.name.removesuffix(sample.suffix) + DESIGN_SUFFIX)


def write_sample(path: Path, sample: Sample, finished: FinishedMap) -> Design:
    """Write the file for the interpreter, and the design beside it."""
    design = design_of(sample, finished)
    count = len(sample.pixels)
    empty = [""] * count
    write_points(path, finished, sample.pixels, {"id": list(range(1, count + 1)), LABEL_FIELD: empty, "remark": empty})
    write_json(design_path(path), design.record())
    return design


def read_design(path: Path) -> Design:
    """A design that `write_sample` wrote."""
    try:
        found = json.loads(path.read_bytes())
        points = np.array(found.pop("points"), np.int64).reshape(-1, 3)
        hectares = found.pop("stratum_hectares")
        for name in ("class_names", "stratum_pixels"):
            found[name] = tuple(found[name])
        return Design(**found, points=points, stratum_hectares=None if hectares is None else tuple(hectares))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SampleUnusable(
            f"{path.name} is no design of a sample ({error}): keep the file that hyperscene assess sample wrote"
        ) from error


@dataclass(frozen=True)
class Answers:
    """What an interpreter said about pixels; a class is its value 1..K, and 0 is "cannot tell"."""

    pixels: NDArray[np.int64]  # (n, 2)
    classes: NDArray[np.int64]  # (n,)
    unanswered: int
    name: str = ""

    def by_pixel(self) -> dict[tuple[int, int], int]:
        """The answer for each row and column."""
        return dict(zip(map(tuple, self.pixels.tolist()), self.classes.tolist(), strict=True))

    @property
    def cannot_tell(self) -> int:
        return int((self.classes == 0).sum())


def read_answers(path: Path, finished: FinishedMap, field: str = LABEL_FIELD) -> Answers:
    """The answers in a file; refuses what does not fit the map."""
    pixels, attributes = read_points(path, finished)
    if field not in attributes:
        raise SampleUnusable(
            f"{path.name} has no field {field!r}; its fields are {', '.join(attributes) or 'none'}: name the one with "
            "the classes with --class-field"
        )
    texts = ["" if text is None or text != text else str(text).strip() for text in attributes[field]]
    return make_answers(path.name, finished, pixels, texts)


def make_answers(name: str, finished: FinishedMap, pixels: NDArray[np.int64], texts: Sequence[str]) -> Answers:
    """Answers in words, checked against the map: places, classes, and one answer for each point."""
    answered = np.array([bool(text) for text in texts])
    if not answered.any():
        raise SampleUnusable(f"{name} has no answers: fill in the class of each point, or {CANNOT_TELL!r}")
    values = _values(name, finished, [text for text in texts if text])
    pixels = pixels[answered]
    mapped = finished.classes_at(pixels)
    outside = np.flatnonzero(mapped == 0)
    if len(outside):
        row, col = pixels[outside[0]].tolist()
        raise SampleUnusable(
            f"points of {name} that lie outside of the map or on its missing data: {len(outside)}, the first at row "
            f"{row}, column {col}; give points of this map, in its coordinate system"
        )
    places, first, counts = np.unique(pixels, axis=0, return_index=True, return_counts=True)
    for place in places[counts > 1]:
        given = sorted(set(values[(pixels == place).all(axis=1)].tolist()))
        if len(given) > 1:
            listed = " and ".join(repr(finished.class_names[value - 1] if value else CANNOT_TELL) for value in given)
            raise SampleUnusable(
                f"the point at row {place[0]}, column {place[1]} of {name} has two answers, {listed}: keep one"
            )
    return Answers(pixels[first], values[first], int((~answered).sum()), name)


def _values(name: str, finished: FinishedMap, texts: Sequence[str]) -> NDArray[np.int64]:
    """Class values by name or number."""
    known = {class_name: value for value, class_name in enumerate(finished.class_names, start=1)}
    numbers = {str(value): value for value in known.values() if str(value) not in known}
    table = {CANNOT_TELL: 0} | numbers | known
    for text in texts:
        if text not in table:
            raise SampleUnusable(
                f"{name} has the class {text!r}, which the map lacks; its classes are {', '.join(known)}: correct the "
                f"answer, or write {CANNOT_TELL!r}"
            )
    return np.array([table[text] for text in texts], np.int64)
