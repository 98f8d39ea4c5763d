"""Map tiles and single pixels of our own rasters: a class map, probabilities, a picture of the scene.

rio-tiler reads the same pixels (a test compares them) in two to four times the time, and loses some of rasters that are
turned, south up, across the date line or without a place on Earth: it is a referee in the tests, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

from service.mapping.grids import MERCATOR, Grid, Tile, lay_grid
from service.mapping.png import png_by_table, png_of_colors
from service.mapping.rasters import GDAL_ENV, rgb
from service.mapping.scenes import unplaced_is_fine
from service.mapping.strips import BYTE_NODATA, BYTE_STEPS

Kind = Literal["classes", "share", "picture"]
LATTICE_POINTS = 17  # over a tile, to find the part of the raster that it shows
MARGIN_PX = 3  # round that part: what lies between the points, and what resampling looks at
KEPT_HEADERS = 256
# Of a tile: a raster that is thinner is drawn so thick, however it is turned, or it would fall between pixels' centres.
THINNEST_PX = 1.5
# Viridis: as bright as the value is high, in colour, in grey, and for eyes that miss a colour.
RAMP = (
    "#440154", "#47186a", "#472c7b", "#424085", "#3a528b", "#32628d", "#2c728e", "#26818e", "#20908c", "#1e9e88",
    "#27ad80", "#3dbb74", "#5bc862", "#81d34c", "#aadb32", "#d4e11a", "#fde724",
)  # fmt: skip

Table = NDArray[np.uint8]  # (n, 4): red, green, blue, opacity


@dataclass(frozen=True)
class Header:
    """What a raster says of itself; it never changes."""

    grid: Grid
    overviews: int
    nodata: float | None
    colors: Table | None  # by value


@lru_cache(1)
def _ramp_table() -> Table:
    """Colours by the step of a probability; clear where there is none."""
    table = np.zeros((BYTE_NODATA + 1, 4), np.uint8)
    steps, stops = np.arange(BYTE_STEPS + 1), np.linspace(0, BYTE_STEPS, len(RAMP))
    for part, numbers in enumerate(zip(*map(rgb, RAMP), strict=True)):
        table[: len(steps), part] = np.interp(steps, stops, numbers).round()
    table[: len(steps), 3] = 255
    return table


@lru_cache(KEPT_HEADERS)
def read_header(path: Path) -> Header:
    """A raster's header, kept."""
    with _opened(path) as raster:
        gcps, gcps_crs = raster.gcps
        grid = lay_grid(raster.height, raster.width, raster.crs or gcps_crs, raster.transform, gcps)
        return Header(grid, len(raster.overviews(1)), raster.nodata, _color_table(raster))


def _color_table(raster: Any) -> Table | None:
    try:
        colors = raster.colormap(1)
    except ValueError:  # it has none
        return None
    table = np.array([colors[value] for value in range(len(colors))], np.uint8)
    table[0] = 0
    return table


@contextmanager
def _opened(path: Path, level: int = 0) -> Iterator[Any]:
    options = {"overview_level": level - 1} if level else {}
    with rasterio.Env(**GDAL_ENV), unplaced_is_fine(), rasterio.open(path, driver="GTiff", **options) as raster:
        yield raster


def render_tile(path: Path, kind: Kind, tile: Tile, band: int = 1) -> bytes:
    """A tile as PNG, clear where the raster has no data or does not reach."""
    header = read_header(path)
    bands = [1, 2, 3] if kind == "picture" else [band]
    values = read_tile(path, header, tile, bands, is_smooth=kind != "classes")
    if kind == "picture":
        return _picture(values)
    if kind == "classes":
        return _classes(values[0], header)
    return png_by_table(_steps(values[0]), _ramp_table())


def _classes(values: NDArray[Any], header: Header) -> bytes:
    assert header.colors is not None
    table = header.colors[: int(values.max()) + 1]
    return png_by_table(values.astype(np.uint8), table) if len(table) <= 256 else png_of_colors(table[values])


def _steps(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Probabilities in the steps of a byte, whatever they are kept in."""
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
    """Values (bands, rows, cols) of a tile; what is not there holds the raster's no-data value."""
    grid = header.grid
    place = grid.tile_transform(tile)
    shrinkage = place.a / grid.pixel_size  # pixels of the raster in one of the tile, along a side
    level = min(header.overviews, max(0, math.floor(math.log2(shrinkage) + 0.01)))
    with _opened(path, level) as raster:
        out = np.full((len(bands), tile.px, tile.px), header.nodata, raster.dtypes[0])
        scale = Affine.scale(grid.cols / raster.width, grid.rows / raster.height)
        thickened = _thickened(grid, place.a)
        window = _window(grid, tile, thickened @ scale, raster.height, raster.width) if grid.is_touched(tile) else None
        if window is None:
            return out
        values = raster.read(bands, window=window)
    source = grid.transform if grid.is_mercator else Affine(1, 0, 0, 0, -1, 0)
    crs = grid.crs if grid.is_mercator else MERCATOR  # any will do, as long as it is the same
    # GDAL takes a place with steps of 1 from 0 for none at all, and its rows for the other way round.
    aside = Affine.identity() if grid.is_mercator else Affine.translation(1, 1)
    source = aside @ source @ thickened @ scale @ Affine.translation(window.col_off, window.row_off)
    reproject(
        values, out, src_transform=source, src_crs=crs, dst_transform=aside @ place, dst_crs=MERCATOR,
        src_nodata=header.nodata, dst_nodata=header.nodata,
        resampling=Resampling.average if is_smooth and shrinkage > 1 else Resampling.nearest,
    )  # fmt: skip
    return out


def _thickened(grid: Grid, step: float) -> Affine:
    """From the raster's (col, row) to where they are drawn in a tile with such a step: elsewhere if it is thin."""
    wider = max(1.0, THINNEST_PX * step / (grid.col_width * grid.cols))
    higher = max(1.0, THINNEST_PX * step / (grid.row_height * grid.rows))
    middle = Affine.translation(grid.cols / 2, grid.rows / 2)
    return middle @ Affine.scale(wider, higher) @ ~middle


def _window(grid: Grid, tile: Tile, drawn: Affine, height: int, width: int) -> Window | None:
    """The part of an overview that a tile shows; None where it shows none."""
    cols, rows = grid.places_in(tile, LATTICE_POINTS)
    if tile.zoom < grid.min_zoom or not (np.isfinite(cols).all() and np.isfinite(rows).all()):
        return Window(0, 0, width, height)
    cols, rows = ~drawn @ (cols, rows)
    left, right = _stretch(cols, width)
    top, bottom = _stretch(rows, height)
    return Window(left, top, right - left, bottom - top) if right > left and bottom > top else None


def _stretch(places: NDArray[np.float64], size: int) -> tuple[int, int]:
    low, high = math.floor(places.min()) - MARGIN_PX, math.ceil(places.max()) + MARGIN_PX
    return max(0, low), min(size, high)


def read_pixel(path: Path, row: int, col: int) -> NDArray[np.float64]:
    """Every band's value of one pixel, scaled; NaN where there is no data."""
    with _opened(path) as raster:
        raw = raster.read(window=Window(col, row, 1, 1))[:, 0, 0].astype(np.float64)
        if raster.nodata is not None:
            raw[raw == raster.nodata] = np.nan
        values: NDArray[np.float64] = raw * raster.scales + raster.offsets
        return values
