"""Whether two maps lie on each other: phase correlation of their class edges in windows.

Kuglin and Hines (1975), The phase correlation image alignment method, IEEE conference on cybernetics and society.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

WINDOW_PX = 256
WINDOWS_PER_SIDE = 3
# Peak of the correlation over its standard deviation; windows of unrelated noise reach about 5.
CLEAR_PEAK = 8.0
FEWEST_EDGES = 100


@dataclass(frozen=True)
class Shift:
    """By how much the second map lies below and right of the first."""

    rows_px: float
    cols_px: float
    windows: int

    @property
    def length_px(self) -> float:
        return float(np.hypot(self.rows_px, self.cols_px))

    def record(self) -> dict[str, float]:
        """As JSON."""
        return {"rows": round(self.rows_px, 2), "cols": round(self.cols_px, 2), "windows": self.windows}


def find_shift(first: Any, second: Any) -> Shift | None:
    """The median shift of windows whose edges match; None if none does."""
    found = []
    for window in _windows(first.height, first.width):
        edges = [_edges(raster.read(1, window=window)) for raster in (first, second)]
        if min(int(each.sum()) for each in edges) >= FEWEST_EDGES and (shift := _correlate(*edges)) is not None:
            found.append(shift)
    if not found:
        return None
    rows, cols = np.median(np.array(found), axis=0)
    return Shift(float(rows), float(cols), len(found))


def _windows(rows: int, cols: int) -> list[Window]:
    height, width = min(rows, WINDOW_PX), min(cols, WINDOW_PX)
    tops = np.unique(np.linspace(0, rows - height, WINDOWS_PER_SIDE).astype(int))
    lefts = np.unique(np.linspace(0, cols - width, WINDOWS_PER_SIDE).astype(int))
    return [Window(int(left), int(top), width, height) for top in tops for left in lefts]


def _edges(classes: NDArray[Any]) -> NDArray[np.float64]:
    """1 where the class changes to the right or downwards, but not at missing data, whose edges are the scene's."""
    edges = np.zeros(classes.shape)
    here, right, below = classes[:-1, :-1], classes[:-1, 1:], classes[1:, :-1]
    known = (here > 0) & (right > 0) & (below > 0)
    edges[:-1, :-1] = ((here != right) | (here != below)) & known
    return edges


def _correlate(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float] | None:
    """The shift of the second image, with a parabola through the peak; None without a clear peak."""
    taper = np.hanning(len(first))[:, None] * np.hanning(first.shape[1])
    spectra = [np.fft.rfft2((image - image.mean()) * taper) for image in (first, second)]
    cross = np.conj(spectra[0]) * spectra[1]
    surface = np.fft.irfft2(cross / np.maximum(np.abs(cross), 1e-12), first.shape)
    row, col = np.unravel_index(int(surface.argmax()), surface.shape)
    if surface[row, col] < CLEAR_PEAK * surface.std():
        return None
    return _refined(surface[:, col], int(row)), _refined(surface[row], int(col))


def _refined(line: NDArray[np.float64], peak: int) -> float:
    """The peak's place between samples, as a signed shift."""
    before, here, after = line[peak - 1], line[peak], line[(peak + 1) % len(line)]
    bend = before - 2 * here + after
    place = peak + (float((before - after) / (2 * bend)) if bend < 0 else 0.0)
    return place if place <= len(line) / 2 else place - len(line)
