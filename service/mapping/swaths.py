"""Scenes in sensor geometry: the grid of their maps on the ground, and for each of its cells the nearest pixel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.warp import transform as transform_points
from rasterio.windows import Window

from hyperscene.errors import SceneTooLarge, SceneUnreadable
from hyperscene.service.mapping.georeference import LARGEST_COORDINATE
from hyperscene.service.mapping.grids import LON_LAT
from hyperscene.service.mapping.products.planes import OpenPlane, open_plane
from hyperscene.service.mapping.products.product import LookupTable, RationalFunctions
from hyperscene.service.mapping.products.rational import image_positions
from hyperscene.service.mapping.scenes import Scene

Indices = NDArray[np.int64]

BLOCK_ROWS = 128
# Beyond this, in pixels on the ground, a pixel of the sensor does not fill a gap.
REACH_PX = 1.5
# Corners are those of a mean height: terrain moves pixels beyond them.
MARGIN_PX = 16
NONE = -1
# A UTM zone is 6 degrees wide; a swath that is wider is laid out in degrees.
WIDEST_UTM_DEG, HIGHEST_UTM_DEG = 9.0, 84.0
# On the ground, a rotated swath needs more pixels than in sensor geometry; more than this is no swath.
LARGEST_FACTOR = 16


class Lookup(Protocol):
    """For each pixel on the ground, the pixel of the sensor."""

    def find(self, window: Window) -> Indices:
        """Indices row * cols + col (rows, cols) of the scene in sensor geometry; NONE where there is none."""


@contextmanager
def open_ground(scene: Scene) -> Iterator[tuple[Scene, Lookup]]:
    """The same scene with the size and georeference of its map on the ground, and the way to its pixels."""
    ground = scene.ground
    assert ground is not None
    with ExitStack() as stack:
        if isinstance(ground, LookupTable):
            columns, rows = (stack.enter_context(open_plane(part)) for part in (ground.columns, ground.rows))
            table = _TableLookup(columns, rows, scene)
            yield _placed(scene, table.shape, ground.crs, ground.transform), table
        elif isinstance(ground, RationalFunctions):
            yield _from_functions(ground, scene)
        else:
            x, y = (stack.enter_context(open_plane(part)) for part in (ground.x, ground.y))
            yield _from_positions(_Positions(x, y, ground.crs or LON_LAT, scene), scene)


def _placed(scene: Scene, shape: tuple[int, int], crs: CRS, transform: Affine) -> Scene:
    return replace(scene, rows=shape[0], cols=shape[1], crs=crs, transform=transform, gcps=())


class _TableLookup:
    """The lookup table of a product; negative entries are pixels that fill gaps."""

    def __init__(self, columns: OpenPlane, rows: OpenPlane, scene: Scene) -> None:
        self._columns, self._rows, self._scene = columns, rows, scene
        if columns.shape != rows.shape:
            raise SceneUnreadable(f"the lookup table of {scene.name} has two sizes: copy it again")
        self.shape = rows.shape
        _check_size(scene, *self.shape)

    def find(self, window: Window) -> Indices:
        col, row = (table.read(window).astype(np.int64) for table in (self._columns, self._rows))
        is_known = (col != 0) & (row != 0)
        for table, values in ((self._columns, col), (self._rows, row)):
            if table.fill is not None and np.isfinite(table.fill):
                is_known &= values != int(table.fill)
        row, col = np.abs(row) - 1, np.abs(col) - 1
        is_known &= (row < self._scene.rows) & (col < self._scene.cols)
        return np.where(is_known, row * self._scene.cols + col, NONE)


class _FunctionLookup:
    """Rational functions of the position on the ground."""

    def __init__(self, functions: RationalFunctions, placed: Scene, scene: Scene) -> None:
        self._functions, self._placed, self._scene = functions, placed, scene

    def find(self, window: Window) -> Indices:
        rows, cols = (np.arange(start, stop) + 0.5 for start, stop in window.toranges())
        x, y = self._placed.transform @ tuple(np.meshgrid(cols, rows))
        assert self._placed.crs is not None
        lon, lat = (
            np.reshape(values, x.shape) for values in transform_points(self._placed.crs, LON_LAT, x.ravel(), y.ravel())
        )
        found = image_positions(self._functions, lon, lat)
        row, col = (np.nan_to_num(np.rint(values), nan=NONE, posinf=NONE, neginf=NONE) for values in found)
        is_known = (row >= 0) & (row < self._scene.rows) & (col >= 0) & (col < self._scene.cols)
        return np.where(is_known, row * self._scene.cols + col, NONE).astype(np.int64)


class _PlaneLookup:
    """A lookup table in memory: four bytes for each pixel on the ground."""

    def __init__(self, indices: NDArray[np.int32]) -> None:
        self._indices = indices

    def find(self, window: Window) -> Indices:
        rows, cols = (slice(start, stop) for start, stop in window.toranges())
        return self._indices[rows, cols].astype(np.int64)


def _check_size(scene: Scene, rows: int, cols: int) -> None:
    if rows * cols > LARGEST_FACTOR * (scene.rows + 100) * (scene.cols + 100):
        raise SceneTooLarge(
            f"{scene.name} would be {rows} x {cols} pixels on the ground, for {scene.rows} x {scene.cols} of the "
            "sensor: its positions are damaged; copy it again"
        )


def _from_functions(functions: RationalFunctions, scene: Scene) -> tuple[Scene, Lookup]:
    """A north-up grid with pixels as large as the sensor's round the corners of the image."""
    lon, lat = functions.corners.T
    crs = utm_of(float(lon.mean()), float(lat.mean()))
    x, y = (np.array(values) for values in transform_points(LON_LAT, crs, lon, lat))
    row, col = image_positions(functions, lon, lat)
    metres, pixels = (
        np.hypot(np.diff(over, append=over[:1]), np.diff(up, append=up[:1])).sum() for over, up in ((x, y), (col, row))
    )
    size = _rounded(metres / pixels)
    edge = MARGIN_PX * size
    bounds = (x.min() - edge, y.min() - edge, x.max() + edge, y.max() + edge)
    placed = _on_grid(scene, crs, size, bounds)
    return placed, _FunctionLookup(functions, placed, scene)


def _on_grid(scene: Scene, crs: CRS, size: float, bounds: Sequence[float]) -> Scene:
    """The scene on a north-up grid whose outer pixels have their centres on or beyond these bounds."""
    left, bottom, right, top = map(float, bounds)
    cols, rows = (math.ceil((high - low) / size) + 1 for low, high in ((left, right), (bottom, top)))
    _check_size(scene, rows, cols)
    return _placed(scene, (rows, cols), crs, Affine(size, 0, left - size / 2, 0, -size, top + size / 2))


def utm_of(lon: float, lat: float) -> CRS:
    """The reference system of the UTM zone at a position."""
    zone = min(60, int(((lon + 180) % 360) // 6) + 1)
    return CRS.from_epsg((32600 if lat >= 0 else 32700) + zone)


def _rounded(size: float) -> float:
    return float(f"{size:.3g}")


def _from_positions(positions: _Positions, scene: Scene) -> tuple[Scene, Lookup]:
    """A north-up grid with pixels as large as the sensor's, and for each the nearest pixel of the sensor."""
    crs, size = positions.choose_grid()
    placed = _on_grid(scene, crs, size, positions.bounds(crs))
    nearest = np.full((placed.rows, placed.cols), NONE, np.int32)
    distances = np.full(nearest.shape, np.inf, np.float32)
    for first, x, y in positions.blocks(crs):
        known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        col, row = ~placed.transform @ (x.ravel()[known], y.ravel()[known])
        _take_nearest(nearest, distances, first + known, row - 0.5, col - 0.5)
    nearest[distances > REACH_PX] = NONE
    return placed, _PlaneLookup(nearest)


def _take_nearest(
    nearest: NDArray[np.int32], distances: NDArray[np.float32], indices: Indices, row: Any, col: Any
) -> None:
    """Give each cell around each position the position's index, if it is nearer than what the cell has."""
    rows, cols = nearest.shape
    middle_row, middle_col = np.round(row).astype(np.int64), np.round(col).astype(np.int64)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            cell_row, cell_col = middle_row + down, middle_col + right
            inside = (cell_row >= 0) & (cell_row < rows) & (cell_col >= 0) & (cell_col < cols)
            distance = np.hypot(cell_row - row, cell_col - col).astype(np.float32)
            inside &= distance < distances[cell_row.clip(0, rows - 1), cell_col.clip(0, cols - 1)]
            order = np.flatnonzero(inside)
            order = order[np.argsort(-distance[order], kind="stable")]  # the nearest is assigned last and stays
            places = cell_row[order], cell_col[order]
            nearest[places], distances[places] = indices[order], distance[order]


class _Positions:
    """Coordinates of the pixels of a swath, by blocks of rows."""

    def __init__(self, x: OpenPlane, y: OpenPlane, crs: CRS, scene: Scene) -> None:
        self._x, self._y, self._crs, self._scene = x, y, crs, scene
        if x.shape != (scene.rows, scene.cols) or y.shape != x.shape:
            raise SceneUnreadable(f"the positions of {scene.name} have not the size of its image: copy it again")

    def _read(self, top: int, bottom: int) -> tuple[Any, Any]:
        window = Window(0, top, self._scene.cols, bottom - top)
        x, y = (plane.read(window).astype(np.float64) for plane in (self._x, self._y))
        highest = (360, 90) if self._crs == LON_LAT else (LARGEST_COORDINATE,) * 2
        is_known = (np.abs(x) <= highest[0]) & (np.abs(y) <= highest[1])
        for plane, values in ((self._x, x), (self._y, y)):
            is_known &= values != (np.nan if plane.fill is None else plane.fill)
        return np.where(is_known, x, np.nan), np.where(is_known, y, np.nan)

    def choose_grid(self) -> tuple[CRS, float]:
        """The reference system of the map, which is that of positions in metres, and the size of its pixels."""
        middle = self._scene.rows // 2
        x, y = self._read(max(0, middle - 1), middle + 1)
        if not np.isfinite(x).any():
            raise SceneUnreadable(f"{self._scene.name} has no positions in its middle rows: it cannot be laid out")
        crs = self._crs
        if crs == LON_LAT:
            self._turn_at, lat = float(np.nanmedian(x)), float(np.nanmedian(y))
            width = float(np.nanmax(np.abs((x - self._turn_at + 180) % 360 - 180)))
            if width <= WIDEST_UTM_DEG and abs(lat) <= HIGHEST_UTM_DEG:
                crs = utm_of(self._turn_at, lat)
        x, y = self._project(crs, x, y)
        steps = [np.hypot(np.diff(x, axis=axis), np.diff(y, axis=axis)) for axis in (0, 1)]
        known = [float(np.nanmedian(step)) for step in steps if np.isfinite(step).any()]
        size = math.sqrt(math.prod(known)) if len(known) == 2 else (known or [0.0])[0]
        if not (math.isfinite(size) and size > 0):
            raise SceneUnreadable(
                f"the positions of {self._scene.name} do not change from pixel to pixel: copy it again"
            )
        return crs, _rounded(size)

    def _project(self, crs: CRS, x: Any, y: Any) -> tuple[Any, Any]:
        if self._crs != LON_LAT:
            return x, y
        lon = self._turn_at + (x - self._turn_at + 180) % 360 - 180  # without a jump at the date line
        if crs == LON_LAT:
            return lon, y
        known = np.isfinite(lon) & np.isfinite(y)
        east, north = np.full(lon.shape, np.nan), np.full(lon.shape, np.nan)
        east[known], north[known] = transform_points(LON_LAT, crs, lon[known], y[known])
        return east, north

    def blocks(self, crs: CRS) -> Iterator[tuple[int, Any, Any]]:
        """The index of each block's first pixel, and coordinates (rows, cols)."""
        for top in range(0, self._scene.rows, BLOCK_ROWS):
            x, y = self._project(crs, *self._read(top, min(top + BLOCK_ROWS, self._scene.rows)))
            yield top * self._scene.cols, x, y

    def bounds(self, crs: CRS) -> tuple[float, float, float, float]:
        """Left, bottom, right and top."""
        low, high = np.full(2, np.inf), np.full(2, -np.inf)
        for _, x, y in self.blocks(crs):
            if np.isfinite(x).any():
                low = np.minimum(low, (np.nanmin(x), np.nanmin(y)))
                high = np.maximum(high, (np.nanmax(x), np.nanmax(y)))
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])
