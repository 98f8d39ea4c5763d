"""The position of a raster in the grid of map tiles: in Web Mercator, or in pixels without a position on Earth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import Affine, from_gcps
from rasterio.warp import transform as transform_points

from hyperscene.service.mapping.gdal import GDAL_ERRORS

TILE_PX = 256
MAX_ZOOM = 30
LON_LAT, MERCATOR = CRS.from_epsg(4326), CRS.from_epsg(3857)
RADIUS_M = 6_378_137.0
WORLD_M = 2 * math.pi * RADIUS_M
MAX_LATITUDE = math.degrees(2 * math.atan(math.exp(math.pi)) - math.pi / 2)  # the edge of Web Mercator's square
# Coordinates beyond this are not on Earth, in any unit; PROJ would need minutes to wrap 1e18 m around it.
MAX_COORDINATE = 1e9
EDGE_POINTS = 101  # on each side of a scene, because its edges are curves in another reference system

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Tile:
    """A map tile of the XYZ scheme: x to the right, y down."""

    zoom: int
    x: int
    y: int
    px: int = TILE_PX


@dataclass(frozen=True)
class Grid:
    """A raster's size, its georeference and its zoom levels."""

    rows: int
    cols: int
    crs: CRS | None  # None: no position on Earth
    transform: Affine  # from (col, row) into `crs`
    is_mercator: bool  # otherwise tiles count pixels from the upper left corner
    pixel_size: float  # of the middle pixel, in units of the tiles: the root of its area
    row_height: float  # of that pixel, across its row
    col_width: float
    bounds: tuple[float, float, float, float] | None  # west, south, east, north; east is above 180 across the date line
    min_zoom: int  # the whole raster fits into a tile
    max_zoom: int  # a pixel of a tile is about a pixel of the raster

    def tile_transform(self, tile: Tile) -> Affine:
        """From a tile's (col, row) to units of the tiles; the vertical axis points up, as GDAL expects."""
        if self.is_mercator:
            span, left, top = WORLD_M / 2**tile.zoom, -WORLD_M / 2, WORLD_M / 2
        else:
            span, left, top = TILE_PX * 2.0 ** (self.max_zoom - tile.zoom), 0.0, 0.0
        size = span / tile.px
        return Affine(size, 0, left + tile.x * span, 0, -size, top - tile.y * span)

    def intersects(self, tile: Tile) -> bool:
        """Whether a tile may show a part of the raster."""
        transform = self.tile_transform(tile)
        left, top = transform.c, transform.f
        right, bottom = transform @ (tile.px, tile.px)
        if not self.is_mercator:
            return bool(left < self.cols and right > 0 and -top < self.rows and -bottom > 0)
        if not (0 <= tile.x < 2**tile.zoom and 0 <= tile.y < 2**tile.zoom):
            return False
        assert self.bounds is not None
        (west, east), (south, north) = mercator(np.array(self.bounds[::2]), np.array(self.bounds[1::2]))
        turns = [left < east - turn and right > west - turn for turn in (-WORLD_M, 0.0, WORLD_M)]
        return bool(any(turns) and bottom < north and top > south)

    def pixels_in(self, tile: Tile, points: int) -> tuple[Numbers, Numbers]:
        """The raster's (cols, rows) at a grid of points over a tile; not finite outside the reference system."""
        steps = np.linspace(0, tile.px, points)
        x, y = (np.asarray(numbers, float) for numbers in self.tile_transform(tile) @ tuple(np.meshgrid(steps, steps)))
        if not self.is_mercator:
            return x.ravel(), -y.ravel()
        return self._to_pixels(MERCATOR, x.ravel(), y.ravel())

    def lon_lat(self, row: int, col: int) -> tuple[float, float] | None:
        """Longitude and latitude of a pixel's centre."""
        found = None if self.crs is None else _lon_lat(self.crs, self.transform, [col + 0.5], [row + 0.5])
        if found is None:
            return None
        return float((found[0][0] + 180) % 360 - 180), float(found[1][0])

    def pixel_at(self, lon: float, lat: float) -> tuple[int, int] | None:
        """Row and column, also outside the raster; None if it has no position on Earth."""
        if self.crs is None:
            return None
        cols, rows = self.pixels_of(np.array([lon]), np.array([lat]))
        if not (np.isfinite(cols[0]) and np.isfinite(rows[0])):
            return -1, -1
        return math.floor(rows[0]), math.floor(cols[0])

    def pixels_of(self, lon: Numbers, lat: Numbers) -> tuple[Numbers, Numbers]:
        """The raster's (cols, rows), not rounded, at longitudes and latitudes; not finite without a position."""
        return self._to_pixels(LON_LAT, lon, lat)

    def _to_pixels(self, crs: CRS, x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
        assert self.crs is not None
        try:
            x, y = (np.array(numbers, float) for numbers in transform_points(crs, self.crs, x, y))
        except GDAL_ERRORS:  # one bad point fails all of them
            return np.full(len(x), np.inf), np.full(len(x), np.inf)
        if self.crs.is_geographic:  # longitudes may be off by full turns
            middle = (self.transform @ (self.cols / 2, self.rows / 2))[0]
            x = x - 360 * np.round((x - middle) / 360)
        with np.errstate(all="ignore"):  # of infinite points
            return ~self.transform @ (x, y)  # type: ignore[no-any-return]


def make_grid(
    rows: int, cols: int, crs: CRS | None, transform: Affine, gcps: Sequence[GroundControlPoint] = ()
) -> Grid:
    """The grid of a raster with this georeference."""
    if gcps:
        transform = from_gcps(list(gcps)) if span_a_plane(gcps) else Affine.identity()
    ring = None
    if crs is not None and transform != Affine.identity() and can_be_inverted(transform):
        ring = outline(rows, cols, crs, transform, EDGE_POINTS)
    if crs is None or ring is None:
        return _pixel_grid(rows, cols, None, Affine.identity())
    middle = _lon_lat(crs, transform, cols / 2 + np.array([0.0, 1, 0]), rows / 2 + np.array([0.0, 0, 1]))
    sizes = None if middle is None else _pixel_sizes(*middle)
    if sizes is None:
        return _pixel_grid(rows, cols, crs, transform)
    pixel_m = sizes[0]
    lon, lat = ring
    west, south, east, north = bounds_of(lon, lat, poles_inside(rows, cols, crs, transform))
    south, north = np.clip((south, north), -MAX_LATITUDE, MAX_LATITUDE)
    x, y = mercator(np.array([west, east]), np.array([south, north]))
    extent_m = max(x[1] - x[0], y[1] - y[0], pixel_m)
    # A pixel may appear a fifth larger than it is; the next zoom level would have four times as many tiles.
    max_zoom = min(MAX_ZOOM, max(0, math.ceil(math.log2(WORLD_M / TILE_PX / pixel_m) - 0.25)))
    min_zoom = min(max_zoom, max(0, math.floor(math.log2(WORLD_M / extent_m))))
    bounds = (float(west), float(south), float(east), float(north))
    return Grid(rows, cols, crs, transform, True, *sizes, bounds, min_zoom, max_zoom)


def span_a_plane(gcps: Sequence[GroundControlPoint]) -> bool:
    """Whether ground control points do not lie on a line."""
    pixels = np.array([(point.row, point.col) for point in gcps])
    return len(pixels) >= 3 and bool(np.linalg.matrix_rank(pixels - pixels[0]) == 2)


def can_be_inverted(transform: Affine) -> bool:
    """GDAL's criterion, slightly stricter."""
    largest = max(abs(number) for number in (transform.a, transform.b, transform.d, transform.e))
    return bool(abs(transform.determinant) > 1e-9 * largest * largest)


def is_on_earth(coordinates: Any) -> bool:
    """Whether coordinates are finite and small enough to be transformed."""
    return bool((np.abs(coordinates) <= MAX_COORDINATE).all())  # false for NaN


def mercator(lon: Numbers, lat: Numbers) -> tuple[Numbers, Numbers]:
    """Coordinates in Web Mercator, in metres."""
    return RADIUS_M * np.radians(lon), RADIUS_M * np.arctanh(np.sin(np.radians(lat)))


def _pixel_grid(rows: int, cols: int, crs: CRS | None, transform: Affine) -> Grid:
    max_zoom = max(0, math.ceil(math.log2(max(rows, cols) / TILE_PX)))
    return Grid(rows, cols, crs, transform, False, 1.0, 1.0, 1.0, None, 0, max_zoom)


def _lon_lat(crs: CRS, transform: Affine, cols: Any, rows: Any) -> tuple[Numbers, Numbers] | None:
    """Longitudes without jumps at the date line, and latitudes; None if there are none."""
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = transform @ (np.asarray(cols, float), np.asarray(rows, float))
    if not is_on_earth((x, y)):
        return None
    try:
        lon, lat = (np.array(numbers, float) for numbers in transform_points(crs, LON_LAT, x, y))
    except GDAL_ERRORS:  # a local reference system, or one of another planet
        return None
    if not (np.isfinite(lon).all() and (np.abs(lat) <= 90 + 1e-6).all()):
        return None
    return np.unwrap(lon, period=360), lat


def poles_inside(rows: int, cols: int, crs: CRS, transform: Affine) -> list[float]:
    """Latitudes of the poles inside a raster: only there does the outline not contain the extreme latitudes."""
    found = []
    for pole in () if crs.is_geographic else (-90.0, 90.0):  # in degrees, the poles are edges
        try:
            (x,), (y,) = transform_points(LON_LAT, crs, [0.0], [pole])
        except GDAL_ERRORS:  # outside the reference system
            continue
        if is_on_earth((x, y)):
            col, row = ~transform @ (x, y)
            if 0 < col < cols and 0 < row < rows:
                found.append(pole)
    return found


def bounds_of(lon: Numbers, lat: Numbers, poles: Sequence[float]) -> tuple[float, float, float, float]:
    """West, south, east and north of an outline; west from -180 on, east above 180 across the date line."""
    south, north = min(lat.min(), *poles, 90), max(lat.max(), *poles, -90)
    west, east = lon.min(), lon.max()
    if poles or east - west >= 360:
        return -180.0, float(south), 180.0, float(north)
    turn = 360 * math.floor((west + 180) / 360)
    return float(west - turn), float(south), float(east - turn), float(north)


def outline(rows: int, cols: int, crs: CRS, transform: Affine, points: int) -> tuple[Numbers, Numbers] | None:
    """Longitudes and latitudes along a raster's edge, with `points` on each side, without jumps; None if invalid."""
    steps = np.linspace(0, 1, points)
    low, high = np.zeros(points), np.ones(points)
    across = np.concatenate([steps, high, steps[::-1], low])
    down = np.concatenate([low, steps, high, steps[::-1]])
    return _lon_lat(crs, transform, across * cols, down * rows)


def _pixel_sizes(lon: Numbers, lat: Numbers) -> tuple[float, float, float] | None:
    """A pixel's size, height and width from three of its corners; None beyond Web Mercator."""
    if np.abs(lat).max() > MAX_LATITUDE:
        return None
    x, y = mercator(lon, lat)
    right, down = (x[1] - x[0], y[1] - y[0]), (x[2] - x[0], y[2] - y[0])
    area = abs(right[0] * down[1] - down[0] * right[1])
    if not (np.isfinite(area) and area > 0):
        return None
    return math.sqrt(area), float(area / math.hypot(*right)), float(area / math.hypot(*down))
