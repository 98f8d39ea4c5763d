"""Planes of a product, such as masks, lookup tables and positions, read by window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.service.mapping.gdal import open_dataset
from hyperscene.service.mapping.products.hdf5 import Hdf5File, hdf5_errors, open_hdf5
from hyperscene.service.mapping.products.product import PixelPositions, Plane

CACHE_BYTES = 16 << 20


def find_positions(file: Hdf5File, lon: str, lat: str) -> PixelPositions | None:
    """The positions in two datasets; None if there are none."""
    found = file.has(lon) and file.has(lat)
    return PixelPositions(Plane(file.path, lon), Plane(file.path, lat)) if found else None


class OpenPlane(Protocol):
    """A plane for one thread; made by `open_plane`."""

    shape: tuple[int, int]  # rows, cols
    fill: float | None  # the value of missing data

    def read(self, window: Window) -> NDArray[Any]:
        """Values (rows, cols)."""


@contextmanager
def open_plane(plane: Plane) -> Iterator[OpenPlane]:
    """Open a dataset of an HDF5 file or a band of a raster."""
    if plane.dataset:
        with open_hdf5(plane.path, CACHE_BYTES) as file:
            found = file.dataset(plane.dataset)
            yield _Dataset(plane, found, file.number("_FillValue", plane.dataset))
    else:
        with open_dataset(plane.path, plane.driver) as raster:
            yield _RasterBand(plane, raster)


class _Dataset:
    def __init__(self, plane: Plane, dataset: Any, fill: float | None) -> None:
        self._plane, self._dataset, self.fill = plane, dataset, fill
        rows, cols = (*dataset.shape, 0, 0)[:2]
        self.shape = (int(rows), int(cols))

    def read(self, window: Window) -> NDArray[Any]:
        rows, cols = (slice(start, stop) for start, stop in window.toranges())
        index = (rows, cols) if self._dataset.ndim == 2 else (rows, cols, self._plane.band - 1)
        with hdf5_errors(self._plane.path):
            return np.asarray(self._dataset[index])


class _RasterBand:
    def __init__(self, plane: Plane, raster: Any) -> None:
        self._band, self._raster = plane.band, raster
        self.shape = (raster.height, raster.width)
        self.fill = raster.nodatavals[plane.band - 1]

    def read(self, window: Window) -> NDArray[Any]:
        return np.asarray(self._raster.read(self._band, window=window))
