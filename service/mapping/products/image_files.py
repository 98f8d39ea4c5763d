"""The bands of a product's image: from the cubes of an HDF5 file, or from rasters on one grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import SceneTooLarge
from hyperscene.service.mapping.gdal import CACHE_BYTES, JPEG_2000, open_dataset, row_of_blocks_bytes
from hyperscene.service.mapping.products.cube_files import Report, open_cube
from hyperscene.service.mapping.products.product import CubeImage, RasterImage

# A tile of JPEG 2000 is unpacked in all bands; a row of tiles is kept, so that it is unpacked once.
LARGEST_TILES_BYTES = 1 << 30


@contextmanager
def open_image(image: RasterImage | CubeImage, work: Path | None = None, report: Report | None = None) -> Iterator[Any]:
    """An object with the method `read` of a GDAL dataset, for one thread.

    Cubes that need it are rewritten into the folder `work`.
    """
    if isinstance(image, CubeImage):
        with open_cube(image, work, report) as cube:
            yield cube
        return
    with ExitStack() as stack:
        datasets = [stack.enter_context(open_dataset(path, image.driver)) for path in image.paths]
        if image.driver == JPEG_2000:
            stack.enter_context(_tiles_kept(image, datasets))
        yield datasets[0] if len(datasets) == 1 else _Stack(datasets, image.firsts)


@contextmanager
def _tiles_kept(image: RasterImage, datasets: Sequence[Any]) -> Iterator[None]:
    """Keep a row of tiles in memory; refuses an image whose tiles are too large for that."""
    kept = sum(row_of_blocks_bytes(dataset) for dataset in datasets)
    if kept > LARGEST_TILES_BYTES:
        raise SceneTooLarge(
            f"{image.paths[0].name} has tiles of JPEG 2000 that unpack to {kept >> 20} MB by row; at most "
            f"{LARGEST_TILES_BYTES >> 20} MB are read: order the product as GeoTIFF"
        )
    with rasterio.Env(GDAL_CACHEMAX=max(CACHE_BYTES, 2 * kept)):
        yield


class _Stack:
    """The bands of several datasets on one grid, counted from 1 across them."""

    def __init__(self, datasets: Sequence[Any], firsts: Sequence[tuple[int, int]]) -> None:
        self._datasets = datasets
        self._firsts = firsts or [(0, 0)] * len(datasets)
        self.block_shapes = datasets[0].block_shapes
        self.count = sum(dataset.count for dataset in datasets)

    def read(self, bands: Sequence[int], window: Window) -> NDArray[Any]:
        """Samples (bands, rows, cols)."""
        parts, first = [], 0
        places: list[int] = []
        for dataset, (top, left) in zip(self._datasets, self._firsts, strict=True):
            own = [place for place, band in enumerate(bands) if first < band <= first + dataset.count]
            if own:
                moved = Window(window.col_off + left, window.row_off + top, window.width, window.height)
                parts.append(dataset.read([bands[place] - first for place in own], window=moved))
                places += own
            first += dataset.count
        return np.concatenate(parts)[np.argsort(places)]
