"""Maps in sensor geometry, laid out on the ground: each pixel on the ground takes the nearest pixel of the sensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import write_error
from hyperscene.service.mapping.gdal import GDAL_ERRORS, ignore_missing_georeference
from hyperscene.service.mapping.rasters import GDAL_ENV, create_plain, declare_nodata, require_complete
from hyperscene.service.mapping.scenes import Scene
from hyperscene.service.mapping.swaths import NONE, Indices, Lookup

TILE_PX = 256
BLOCK_ROWS = 128


def lay_out(path: Path, placed: Scene, lookup: Lookup, sensor_cols: int) -> None:
    """Replace a plain raster in sensor geometry by the same one on the ground."""
    target = path.with_name(f"ground_{path.name}")
    try:
        with rasterio.Env(**GDAL_ENV), ignore_missing_georeference():
            with (
                rasterio.open(path, driver="GTiff") as source,
                create_plain(target, placed, source.count, source.dtypes[0]) as file,
            ):
                _copy_description(source, file)
                for window in _tiles(placed):
                    file.write(_taken(source, lookup.find(window), sensor_cols), window=window)
            require_complete(file)
            declare_nodata(target, source.nodata)
    except GDAL_ERRORS as error:
        raise write_error(error) from error
    target.replace(path)


def _copy_description(source: Any, target: Any) -> None:
    if source.count == 1 and source.dtypes[0] in ("uint8", "uint16"):
        with suppress(ValueError):  # there is none
            target.write_colormap(1, source.colormap(1))
    target.update_tags(**{name: text for name, text in source.tags().items() if name != "AREA_OR_POINT"})
    for band in source.indexes:
        target.set_band_description(band, source.descriptions[band - 1] or "")
    if source.count > 1 or source.scales[0] != 1:
        target.colorinterp = source.colorinterp
    target.scales, target.offsets = source.scales, source.offsets


def _tiles(placed: Scene) -> Iterator[Window]:
    for top in range(0, placed.rows, TILE_PX):
        for left in range(0, placed.cols, TILE_PX):
            yield Window(left, top, min(TILE_PX, placed.cols - left), min(TILE_PX, placed.rows - top))


def _taken(source: Any, indices: Indices, sensor_cols: int) -> NDArray[Any]:
    """Samples (bands, rows, cols) of the pixels at these indices."""
    samples = np.full((source.count, *indices.shape), source.nodata, source.dtypes[0])
    is_known = indices != NONE
    if is_known.any():
        rows, cols = np.divmod(indices[is_known], sensor_cols)
        top, left = int(rows.min()), int(cols.min())
        window = Window(left, top, int(cols.max()) - left + 1, int(rows.max()) - top + 1)
        samples[:, is_known] = source.read(window=window)[:, rows - top, cols - left]
    return samples


def hectares_of(classes: Path, placed: Scene, values: int, pixel_hectares: Any) -> NDArray[np.float64] | None:
    """The area of each class value on the ground; None if it is unknown."""
    total = np.zeros(values)
    with rasterio.Env(**GDAL_ENV), rasterio.open(classes, driver="GTiff") as file:
        for top in range(0, placed.rows, BLOCK_ROWS):
            bottom = min(top + BLOCK_ROWS, placed.rows)
            area = pixel_hectares(placed, top, bottom)
            if area is None:
                return None
            read = file.read(1, window=Window(0, top, placed.cols, bottom - top)).astype(np.int64)
            for row, hectares in zip(read, area, strict=True):
                total += hectares * np.bincount(row, minlength=values)
    total[0] = 0
    return total
