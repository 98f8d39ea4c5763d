"""A stratified random sample of a finished map: how many points each class gets, and which pixels they are.

Sizes follow Cochran (1977), Sampling Techniques, equation 5.25, and Olofsson et al. (2014), section 5.1: the total
from a target standard error of overall accuracy, at least so many points for every class, and the rest in proportion
to area.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import OptionsUnusable, SampleUnusable
from hyperscene.service.assessment.buffers import LabelBuffer
from hyperscene.service.assessment.finished_map import FinishedMap, Totals

MAX_POINTS = 100_000


@dataclass(frozen=True)
class SampleOptions:
    """How large a sample is; `total` wins over `target_se`."""

    total: int | None = None
    target_se: float = 0.015
    per_class: int = 50
    expected_accuracy: float = 0.85
    seed: int = 0

    def check(self) -> None:
        """Raise OptionsUnusable for values that make no sample."""
        if self.total is not None and not 1 <= self.total <= MAX_POINTS:
            raise OptionsUnusable(f"a sample has 1 to {MAX_POINTS} points, not {self.total}: choose another --total")
        if not 0 < self.target_se < 0.5:
            raise OptionsUnusable(f"the target standard error is a share such as 0.015, not {self.target_se}")
        if not 0 < self.expected_accuracy < 1:
            raise OptionsUnusable(f"the expected accuracy is a share such as 0.85, not {self.expected_accuracy}")
        if self.per_class < 2:
            raise OptionsUnusable(f"each class needs 2 points or more, not {self.per_class}: choose more")


@dataclass(frozen=True)
class Sample:
    """Points in random order, with the strata that they were drawn from."""

    pixels: NDArray[np.int64]  # (n, 2), row and col
    strata: NDArray[np.int64]  # (n,), the class of the map, 1..K
    frame: Totals  # what could be drawn
    options: SampleOptions
    buffer_px: int = 0
    left_out_pixels: int = 0


def sample_total(options: SampleOptions) -> int:
    """The number of points for the target standard error of overall accuracy."""
    spread = options.expected_accuracy * (1 - options.expected_accuracy)
    return max(2, math.ceil(spread / options.target_se**2))


def allocate(pixels: NDArray[np.int64], options: SampleOptions) -> NDArray[np.int64]:
    """Points of each class: `per_class` at least (or all its pixels), the rest in proportion to the pixels."""
    options.check()
    least = np.minimum(options.per_class, pixels)
    total = options.total or max(sample_total(options), int(least.sum()))
    if total < least.sum():
        raise OptionsUnusable(
            f"{total} points are too few for {options.per_class} in each of {int((pixels > 0).sum())} classes: choose "
            f"a total of {int(least.sum())} or more, or fewer per class"
        )
    if total > MAX_POINTS:
        raise OptionsUnusable(f"the sample would have {total} points; at most {MAX_POINTS} are drawn: choose a --total")
    is_fixed = pixels == 0
    while True:
        left = total - int(least[is_fixed].sum())
        share = left * pixels / max(1, int(pixels[~is_fixed].sum()))
        is_small = ~is_fixed & (share < least)
        if not is_small.any():
            break
        is_fixed |= is_small
    sizes = np.where(is_fixed, least, np.floor(share)).astype(np.int64)
    missing = total - int(sizes.sum())
    for number in np.argsort(np.where(is_fixed, -1.0, share - np.floor(share)), kind="stable")[::-1][:missing]:
        sizes[number] += not is_fixed[number]
    return np.minimum(sizes, pixels)


def draw_sample(finished: FinishedMap, options: SampleOptions, buffer: LabelBuffer | None = None) -> Sample:
    """Draw the points in two passes over the map; the same seed gives the same points."""
    frame = finished.add_up(_frame_blocks(finished, buffer))
    if not frame.pixels.any():
        raise SampleUnusable("the map has no pixel to draw from: choose a smaller buffer, or another map")
    sizes = allocate(frame.pixels, options)
    # Python promises the same draws in all versions.
    generator = random.Random(options.seed)  # nosec B311
    ranks = [
        np.sort(np.array(generator.sample(range(int(pixels)), int(size)), np.int64))
        for pixels, size in zip(frame.pixels, sizes, strict=True)
    ]
    found = sorted(_pixels_of_ranks(finished, buffer, ranks))
    generator.shuffle(found)  # the order of the points says nothing about their class
    points = np.array(found, np.int64).reshape(-1, 3)
    left_out = finished.totals().pixels.sum() - frame.pixels.sum() if buffer else 0
    return Sample(points[:, :2], points[:, 2], frame, options, buffer.radius_px if buffer else 0, int(left_out))


def _frame_blocks(finished: FinishedMap, buffer: LabelBuffer | None) -> Iterator[tuple[int, NDArray[Any]]]:
    """The map's blocks, without pixels in the buffer."""
    for top, classes in finished.blocks():
        yield top, classes if buffer is None else np.where(buffer.rows(top, len(classes)), 0, classes)


def _pixels_of_ranks(
    finished: FinishedMap, buffer: LabelBuffer | None, ranks: list[NDArray[np.int64]]
) -> Iterator[tuple[int, int, int]]:
    """Row, col and class of the pixels with these ranks, counted by class in the order of rows."""
    before = np.zeros(len(ranks), np.int64)
    for top, classes in _frame_blocks(finished, buffer):
        for value, wanted in enumerate(ranks, start=1):
            places = np.flatnonzero(classes.ravel() == value)
            start, end = np.searchsorted(wanted, (before[value - 1], before[value - 1] + len(places)))
            for place in places[wanted[start:end] - before[value - 1]].tolist():
                row, col = divmod(place, finished.cols)
                yield top + row, col, value
            before[value - 1] += len(places)
