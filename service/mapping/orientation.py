"""What a program that shows a map needs to know of its ground: pixels by longitude and latitude, north, and metres."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from rasterio.crs import CRS

from hyperscene.service.mapping.grids import RADIUS_M, Grid

TABLE_POINTS = 17  # along a side: a UTM scene of 100 km is off by 1 m between the points
ECCENTRICITY_2 = 0.00669437999014  # of WGS 84, squared
STEP_DEG = 1e-4  # to the north


def describe_orientation(grid: Grid) -> dict[str, Any]:
    """The fields of a TileJSON document for coordinates, scale bar and north arrow; None where unknown."""
    return {
        "scene_crs": None if grid.crs is None else crs_name(grid.crs),
        "transform": None if grid.crs is None else [*grid.transform][:6],
        "pixel_m": pixel_width_m(grid),
        "north_deg": north_deg(grid),
        "pixel_table": pixel_table(grid) if grid.is_mercator else None,
    }


def crs_name(crs: CRS) -> str:
    """The code of a reference system, or its name if it has none."""
    text = crs.to_string()
    name = re.match(r'\w+\["([^"]*)"', text)
    return name[1] if name else text


def pixel_width_m(grid: Grid) -> float | None:
    """Metres on the ground from the middle pixel to its right neighbour."""
    if grid.crs is None:
        return None
    row, col = grid.rows // 2, grid.cols // 2
    here, right = grid.lon_lat(row, col), grid.lon_lat(row, col + 1)
    return None if here is None or right is None else round(_metres(here, right), 6)


def _metres(here: tuple[float, float], there: tuple[float, float]) -> float:
    """The distance of two near points (lon, lat) on the ellipsoid."""
    latitude = math.radians((here[1] + there[1]) / 2)
    turns = (there[0] - here[0] + 180) % 360 - 180
    bulge = 1 - ECCENTRICITY_2 * math.sin(latitude) ** 2
    east = math.radians(turns) * math.cos(latitude) * RADIUS_M / math.sqrt(bulge)
    north = math.radians(there[1] - here[1]) * RADIUS_M * (1 - ECCENTRICITY_2) / bulge**1.5
    return math.hypot(east, north)


def north_deg(grid: Grid) -> float | None:
    """Where north is in the middle of the map, clockwise from up."""
    if grid.is_mercator:
        return 0.0
    row, col = grid.rows // 2, grid.cols // 2
    here = grid.lon_lat(row, col)
    if here is None:
        return None
    lat = min(here[1] + STEP_DEG, 90.0)
    cols, rows = grid.pixels_of(np.array([here[0]] * 2), np.array([here[1], lat]))
    right, down = cols[1] - cols[0], rows[1] - rows[0]
    if not (np.isfinite(right) and np.isfinite(down)) or right == down == 0:
        return None
    return round(math.degrees(math.atan2(right, -down)) % 360, 2)


def pixel_table(grid: Grid) -> dict[str, Any] | None:
    """Columns and rows, not rounded, at a table of longitudes and latitudes: bilinear between them."""
    assert grid.bounds is not None
    west, south, east, north = grid.bounds
    lons, lats = np.linspace(west, east, TABLE_POINTS), np.linspace(north, south, TABLE_POINTS)
    cols, rows = grid.pixels_of(np.tile(lons, TABLE_POINTS), np.repeat(lats, TABLE_POINTS))
    if not (np.isfinite(cols).all() and np.isfinite(rows).all()):
        return None
    shape = (TABLE_POINTS, TABLE_POINTS)
    return {
        "west": west,
        "east": east,
        "north": north,
        "south": south,
        "cols": np.round(cols.reshape(shape), 4).tolist(),
        "rows": np.round(rows.reshape(shape), 4).tolist(),
    }
