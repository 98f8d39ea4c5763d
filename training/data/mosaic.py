"""Windows of a large scene, side by side as one small scene: which windows, and where their pixels come from.

A pixel without data lies between neighbouring windows, so that label propagation does not pass from one to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.int64]  # (n, 2): row, col

# Windows round labels have the first of these sides with which all fit. They are cells of a grid, so none overlap.
LABEL_SIDES_PX = (64, 48, 32, 24, 16, 12, 8)
RANDOM_SIDE_PX = 64
GAP_PX = 1
SEED = 0  # the windows do not depend on the seed of the training: a scene and its labels have one digest


@dataclass(frozen=True)
class Windows:
    """Squares of a scene, cut at its edges."""

    corners: Pixels  # (n, 2): the first row and column of each
    side_px: int


@dataclass(frozen=True)
class Mosaic:
    """Where the pixels of a mosaic lie in the scene."""

    scene_rows: int
    scene_cols: int
    shape: tuple[int, int]  # of the mosaic
    windows: NDArray[np.int64]  # (n, 6): row and col in the mosaic, row and col in the scene, rows, cols
    label_windows: int  # the first so many lie round labels, the others anywhere

    @cached_property
    def _window_of(self) -> NDArray[np.int32]:
        """The window of each pixel of the mosaic; -1 between windows."""
        found = np.full(self.shape, -1, np.int32)
        for number, (row, col, _, _, rows, cols) in enumerate(self.windows.tolist()):
            found[row : row + rows, col : col + cols] = number
        return found

    def places(self, pixels: Pixels) -> Pixels:
        """Where pixels (n, 2) of the mosaic lie in the scene."""
        of = self.windows[self._window_of[tuple(pixels.T)]]
        placed: Pixels = pixels - of[:, :2] + of[:, 2:4]
        return placed

    def pixels(self, places: Pixels) -> Pixels:
        """Where pixels of the scene (n, 2) lie in the windows round labels; -1 for those outside."""
        found = np.full_like(places, -1)
        for row, col, top, left, rows, cols in self.windows[: self.label_windows].tolist():
            inside = ((places >= (top, left)) & (places < (top + rows, left + cols))).all(axis=1)
            found[inside] = places[inside] - (top, left) + (row, col)
        return found

    def is_random(self) -> NDArray[np.bool_]:
        """The pixels (rows, cols) of the windows that lie anywhere, which show what is common in the scene."""
        return self._window_of >= self.label_windows

    def holds_patch(self, patch_px: int) -> NDArray[np.bool_]:
        """The pixels (rows, cols) round which a patch lies in one window, also if it is mirrored."""
        found, margin = np.zeros(self.shape, bool), patch_px // 2
        for row, col, _, _, rows, cols in self.windows.tolist():
            found[row + margin : row + rows - margin, col + margin : col + cols - margin] = True
        return found

    def record(self) -> dict[str, Any]:
        """The windows as a manifest has them."""
        return {"round_labels": self.label_windows, "windows": self.windows[:, 2:].tolist()}

    def __str__(self) -> str:
        share = 100 * float(self.windows[:, 4:].prod(axis=1).sum()) / (self.scene_rows * self.scene_cols)
        elsewhere = len(self.windows) - self.label_windows
        return (
            f"{self.label_windows} windows of {self._sides(slice(None, self.label_windows))} px round the labels and "
            f"{elsewhere} of {RANDOM_SIDE_PX} px elsewhere, {share:.2g} % of its pixels"
        )

    def _sides(self, which: slice) -> int:
        return int(self.windows[which, 4:].max())


def windows_round(places: Pixels, classes: NDArray[np.int64], most_pixels: int) -> tuple[Windows, NDArray[np.bool_]]:
    """Windows that hold the labels at `places`, and which labels they hold.

    If not all fit, windows are drawn at random, at least one for each class.
    """
    for side_px in LABEL_SIDES_PX:
        cells, cell_of = np.unique(places // side_px, axis=0, return_inverse=True)
        if len(cells) * (side_px + GAP_PX) ** 2 <= most_pixels:
            return Windows(cells * side_px, side_px), np.ones(len(places), bool)
    side_px = LABEL_SIDES_PX[0]
    cells, cell_of = np.unique(places // side_px, axis=0, return_inverse=True)
    generator = np.random.default_rng(SEED)
    of_class = [generator.choice(cell_of[classes == value]) for value in np.unique(classes)]
    order = list(dict.fromkeys([*of_class, *generator.permutation(len(cells))]))
    most = max(len(set(of_class)), most_pixels // (side_px + GAP_PX) ** 2)
    chosen = np.sort(order[:most])
    return Windows(cells[chosen] * side_px, side_px), np.isin(cell_of, chosen)


def random_windows(rows: int, cols: int, taken: Windows) -> Windows:
    """All windows that have no pixel in common with those in `taken`, in random order."""
    side_px = RANDOM_SIDE_PX
    size = math.ceil(rows / side_px), math.ceil(cols / side_px)
    last = np.minimum(taken.corners + taken.side_px, (rows, cols)) - 1
    corners = [
        np.stack([some[:, 0], others[:, 1]], 1) for some in (taken.corners, last) for others in (taken.corners, last)
    ]
    is_free = np.ones(size, bool)
    is_free[tuple((np.concatenate(corners) // side_px).T)] = False
    free = np.argwhere(is_free)
    return Windows(np.random.default_rng(SEED).permutation(free) * side_px, side_px)


def arrange(rows: int, cols: int, labelled: Windows, others: Windows) -> Mosaic:
    """A nearly square mosaic: windows in rows, those round labels first."""
    areas = [len(some.corners) * (some.side_px + GAP_PX) ** 2 for some in (labelled, others)]
    width = max(math.isqrt(sum(areas)), labelled.side_px, others.side_px)
    placed, top = [], 0
    for some in (labelled, others):
        pitch = some.side_px + GAP_PX
        across = max(1, (width + GAP_PX) // pitch)
        for number, (row, col) in enumerate(some.corners.tolist()):
            down, right = divmod(number, across)
            size = min(some.side_px, rows - row), min(some.side_px, cols - col)
            placed.append((top + down * pitch, right * pitch, row, col, *size))
        top += math.ceil(len(some.corners) / across) * pitch
    windows = np.array(placed, np.int64)
    shape = tuple((windows[:, :2] + windows[:, 4:]).max(axis=0).tolist())
    return Mosaic(rows, cols, (shape[0], shape[1]), windows, len(labelled.corners))
