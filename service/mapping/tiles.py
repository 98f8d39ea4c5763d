"""Map tiles and single pixels of our own rasters: class map, probabilities and picture of the scene.

rio-tiler reads the same pixels (a test compares them), but takes two to four times as long and loses pixels of rasters
that are rotated, south up, across the date line or without a position on Earth. It is used in the tests only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.warp import reproject
from rasterio.windows import Window

from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.grids import MERCATOR, Grid, Tile, make_grid
from hyperscene.service.mapping.png import png_by_table, png_of_colors
from hyperscene.service.mapping.rasters import GDAL_ENV, rgb
from hyperscene.service.mapping.strips import BYTE_NODATA, BYTE_STEPS

Kind = Literal["classes", "share", "picture"]
GRID_POINTS = 17  # along a tile's side, to find the part of the raster that it shows
MARGIN_PX = 3  # around that part, for pixels between the points and for resampling
CACHED_HEADERS = 256
# A thinner raster is drawn this thick in a tile, or it would fall between the centres of the tile's pixels.
MIN_THICKNESS_PX = 1.5
# Viridis: brightness grows with the value, also in grey and for colour-blind readers.
RAMP = (
    "#440154", "#47186a", "#472c7b", "#424085", "#3a528b", "#32628d", "#2c728e", "#26818e", "#20908c", "#1e9e88",
    "#27ad80", "#3dbb74", "#5bc862", "#81d34c", "#aadb32", "#d4e11a", "#fde724",
)  # fmt: skip

Table = NDArray[np.uint8]  # (n, 4): red, green, blue, opacity


@dataclass(frozen=True)
class Header:
    """A raster's header; our rasters never change."""

    grid: Grid
    overviews: int
    nodata: float | None
    colors: Table | None  # by value


@lru_cache(1)
def ramp_table() -> Table:
    """Colours by probability step; transparent for no data."""
    table = np.zeros((BYTE_NODATA + 1, 4), np.uint8)
    steps, stops = np.arange(BYTE_STEPS + 1), np.linspace(0, BYTE_STEPS, len(RAMP))
    for part, numbers in enumerate(zip(*map(rgb, RAMP), strict=True)):
        table[: len(steps), part] = np.interp(steps, stops, numbers).round()
    table[: len(steps), 3] = 255
    return table


@lru_cache(CACHED_HEADERS)
def read_header(path: Path) -> Header:
    """A raster's header, cached."""
    with _opened(path) as raster:
        gcps, gcps_crs = raster.gcps
        grid = make_grid(raster.height, raster.width, raster.crs or gcps_crs, raster.transform, gcps)
        return Header(grid, len(raster.overviews(1)), raster.nodata, _color_table(raster))


def _color_table(raster: Any) -> Table | None:
    try:
        colors = raster.colormap(1)
    except ValueError:  # it has no colour table
        return None
    table = np.array([colors[value] for value in range(len(colors))], np.uint8)
    table[0] = 0
    return table


@contextmanager
def _opened(path: Path, level: int = 0) -> Iterator[Any]:
    options = {"overview_level": level - 1} if level else {}
    with (
        rasterio.Env(**GDAL_ENV),
        ignore_missing_georeference(),
        rasterio.open(path, driver="GTiff", **options) as raster,
    ):
        yield raster


def render_tile(path: Path, kind: Kind, tile: Tile, band: int = 1, *, in_pixels: bool = False) -> bytes:
    """A tile as PNG, transparent outside the raster and without data; on the raster's own grid if `in_pixels`."""
    header = read_header(path)
    if in_pixels:
        header = replace(header, grid=make_grid(header.grid.rows, header.grid.cols, None, Affine.identity()))
    bands = [1, 2, 3] if kind == "picture" else [band]
    values = read_tile(path, header, tile, bands, is_smooth=kind != "classes")
    if kind == "picture":
        return _picture(values)
    if kind == "classes":
        return _classes(values[0], header)
    return png_by_table(_steps(values[0]), ramp_table())


def _classes(values: NDArray[Any], header: Header) -> bytes:
    assert header.colors is not None
    table = header.colors[: int(values.max()) + 1]
    return png_by_table(values.astype(np.uint8), table) if len(table) <= 256 else png_of_colors(table[values])


def _steps(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Probabilities in byte steps, from either sample type."""
    if values.dtype == np.uint8:
        return values
    steps = np.round(np.clip(np.nan_to_num(values), 0, 1) * BYTE_STEPS)
    return np.where(np.isnan(values), BYTE_NODATA, steps).astype(np.uint8)


def _picture(values: NDArray[np.uint8]) -> bytes:
    colors = np.moveaxis(values, 0, -1)
    is_valid = colors.any(axis=-1)
    if is_valid.all():
        return png_of_colors(colors)
    return png_of_colors(np.dstack([colors, np.where(is_valid, 255, 0).astype(np.uint8)]))


def read_tile(path: Path, header: Header, tile: Tile, bands: list[int], *, is_smooth: bool) -> NDArray[Any]:
    """Values (bands, rows, cols) of a tile, with the no-data value outside the raster."""
    grid = header.grid
    transform = grid.tile_transform(tile)
    shrinkage = transform.a / grid.pixel_size  # pixels of the raster per pixel of the tile, along a side
    level = min(header.overviews, max(0, math.floor(math.log2(shrinkage) + 0.01)))
    with _opened(path, level) as raster:
        out = np.full((len(bands), tile.px, tile.px), header.nodata, raster.dtypes[0])
        scale = Affine.scale(grid.cols / raster.width, grid.rows / raster.height)
        thickened = _thickened(grid, transform.a)
        window = _window(grid, tile, thickened @ scale, raster.height, raster.width) if grid.intersects(tile) else None
        if window is None:
            return out
        values = raster.read(bands, window=window)
    source = grid.transform if grid.is_mercator else Affine(1, 0, 0, 0, -1, 0)
    crs = grid.crs if grid.is_mercator else MERCATOR  # any reference system, as long as both are the same
    # GDAL reads an identity transform as no georeference, and flips the rows: avoid it by an offset.
    offset = Affine.identity() if grid.is_mercator else Affine.translation(1, 1)
    source = offset @ source @ thickened @ scale @ Affine.translation(window.col_off, window.row_off)
    reproject(
        values, out, src_transform=source, src_crs=crs, dst_transform=offset @ transform, dst_crs=MERCATOR,
        src_nodata=header.nodata, dst_nodata=header.nodata,
        resampling=Resampling.average if is_smooth and shrinkage > 1 else Resampling.nearest,
    )  # fmt: skip
    return out


def _thickened(grid: Grid, step: float) -> Affine:
    """A scaling that makes a raster thick enough for a tile with pixels of size `step`."""
    wider = max(1.0, MIN_THICKNESS_PX * step / (grid.col_width * grid.cols))
    higher = max(1.0, MIN_THICKNESS_PX * step / (grid.row_height * grid.rows))
    middle = Affine.translation(grid.cols / 2, grid.rows / 2)
    return middle @ Affine.scale(wider, higher) @ ~middle


def _window(grid: Grid, tile: Tile, drawn: Affine, height: int, width: int) -> Window | None:
    """The part of an overview that a tile shows, or None."""
    cols, rows = grid.pixels_in(tile, GRID_POINTS)
    if tile.zoom < grid.min_zoom or not (np.isfinite(cols).all() and np.isfinite(rows).all()):
        return Window(0, 0, width, height)
    cols, rows = ~drawn @ (cols, rows)
    left, right = _range(cols, width)
    top, bottom = _range(rows, height)
    return Window(left, top, right - left, bottom - top) if right > left and bottom > top else None


def _range(positions: NDArray[np.float64], size: int) -> tuple[int, int]:
    low, high = math.floor(positions.min()) - MARGIN_PX, math.ceil(positions.max()) + MARGIN_PX
    return max(0, low), min(size, high)


def read_pixel(path: Path, row: int, col: int) -> NDArray[np.float64]:
    """Every band's scaled value of one pixel; NaN for no data."""
    with _opened(path) as raster:
        raw = raster.read(window=Window(col, row, 1, 1))[:, 0, 0].astype(np.float64)
        if raster.nodata is not None:
            raw[raw == raster.nodata] = np.nan
        values: NDArray[np.float64] = raw * raster.scales + raster.offsets
        return values
