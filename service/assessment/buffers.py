"""Pixels near training labels, which a sample leaves out: neighbours of a label are no independent check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.features import rasterize
from rasterio.transform import Affine
from rasterio.windows import Window

from hyperscene.errors import LabelsUnusable, OptionsUnusable
from hyperscene.service.assessment.finished_map import FinishedMap, open_raster
from hyperscene.service.assessment.vector_files import read_shapes

RASTER_SUFFIXES = (".tif", ".tiff")
MAX_BUFFER_PX = 200


@dataclass(frozen=True)
class LabelBuffer:
    """Labels on a map's grid, as a raster or as shapes in pixels, and the radius around them."""

    finished: FinishedMap
    radius_px: int
    raster: Path | None
    shapes: NDArray[Any] | None  # in columns and rows

    def rows(self, top: int, count: int) -> NDArray[np.bool_]:
        """Which pixels of these rows lie within the radius of a label."""
        first, end = max(0, top - self.radius_px), min(self.finished.rows, top + count + self.radius_px)
        near = _dilate(self._labels(first, end), self.radius_px)
        return near[top - first : top - first + count]

    def _labels(self, first: int, end: int) -> NDArray[np.bool_]:
        cols = self.finished.cols
        if self.raster is not None:
            with open_raster(self.raster) as raster:
                values: NDArray[np.bool_] = raster.read(1, window=Window(0, first, cols, end - first)) > 0
                return values
        assert self.shapes is not None
        drawn = np.zeros((end - first, cols), np.uint8)
        rasterize(
            [(shape, 1) for shape in self.shapes], out=drawn, all_touched=True,
            transform=Affine.translation(0, first),
        )  # fmt: skip
        return drawn > 0


def open_buffer(finished: FinishedMap, labels: Path, radius_px: int) -> LabelBuffer:
    """A buffer around labels: a GeoTIFF on the map's grid, or shapes or points in a vector file."""
    if not 0 <= radius_px <= MAX_BUFFER_PX:
        raise OptionsUnusable(f"the buffer is 0 to {MAX_BUFFER_PX} pixels, not {radius_px}: choose another --buffer-px")
    if labels.suffix.lower() in RASTER_SUFFIXES:
        with open_raster(labels) as raster:
            if (raster.height, raster.width) != (finished.rows, finished.cols):
                raise LabelsUnusable(
                    f"{labels.name} has {raster.height} x {raster.width} pixels and the map {finished.rows} x "
                    f"{finished.cols}: give labels on the map's grid, or a vector file"
                )
        return LabelBuffer(finished, radius_px, labels, None)
    return LabelBuffer(finished, radius_px, None, read_shapes(labels, finished).shapes)


def _dilate(labels: NDArray[np.bool_], radius_px: int) -> NDArray[np.bool_]:
    """Pixels within a Euclidean distance of a label: for each row offset, a run of columns."""
    near = labels.copy()
    rows, cols = labels.shape
    if not labels.any():
        return near
    ends = np.concatenate([np.zeros((rows, 1), np.int64), np.cumsum(labels, axis=1)], axis=1)
    columns = np.arange(cols)
    for down in range(-radius_px, radius_px + 1):
        reach = int((radius_px**2 - down**2) ** 0.5)
        high = np.minimum(columns + reach + 1, cols)
        low = np.maximum(columns - reach, 0)
        hit = ends[:, high] > ends[:, low]
        source = slice(max(0, down), rows + min(0, down))
        target = slice(max(0, -down), rows + min(0, -down))
        near[target] |= hit[source]
    return near
