"""Maps in sensor geometry, laid out on the ground: each pixel on the ground takes the nearest pixel of the sensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.warp import transform as transform_points
from rasterio.windows import Window

from hyperscene.errors import SceneTooLarge, SceneUnreadable, write_error
from hyperscene.service.mapping.gdal import GDAL_ERRORS, ignore_missing_georeference
from hyperscene.service.mapping.grids import LON_LAT
from hyperscene.service.mapping.products.hdf5 import Hdf5File, hdf5_errors, open_hdf5
from hyperscene.service.mapping.products.product import LookupTable, PixelPositions
from hyperscene.service.mapping.rasters import GDAL_ENV, create_plain, declare_nodata, require_complete
from hyperscene.service.mapping.scenes import Scene

Indices = NDArray[np.int64]

TILE_PX = 256
BLOCK_ROWS = 128
# Beyond this, in pixels on the ground, a pixel of the sensor does not fill a gap.
REACH_PX = 1.5
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
    with open_hdf5(ground.path) as file:
        if isinstance(ground, LookupTable):
            table = _TableLookup(file, ground, scene)
            yield _placed(scene, table.shape, ground.crs, ground.transform), table
        else:
            found = _from_positions(file, ground, scene)
            yield found


def _placed(scene: Scene, shape: tuple[int, int], crs: CRS, transform: Affine) -> Scene:
    return replace(scene, rows=shape[0], cols=shape[1], crs=crs, transform=transform, gcps=())


class _TableLookup:
    """The lookup table of a product; negative entries are pixels that fill gaps."""

    def __init__(self, file: Hdf5File, table: LookupTable, scene: Scene) -> None:
        self._columns, self._rows = file.dataset(table.columns), file.dataset(table.rows)
        self._fill = file.number("_FillValue", table.columns)
        self._scene, self._path = scene, table.path
        if self._columns.ndim != 2 or self._columns.shape != self._rows.shape:
            raise SceneUnreadable(f"the lookup table of {table.path.name} has two sizes: copy it again")
        self.shape = (int(self._rows.shape[0]), int(self._rows.shape[1]))
        _check_size(scene, *self.shape)

    def find(self, window: Window) -> Indices:
        rows, cols = (slice(start, stop) for start, stop in window.toranges())
        with hdf5_errors(self._path):
            col, row = (np.asarray(table[rows, cols], np.int64) for table in (self._columns, self._rows))
        is_known = (col != 0) & (row != 0)
        if self._fill is not None:
            is_known &= (col != self._fill) & (row != self._fill)
        row, col = np.abs(row) - 1, np.abs(col) - 1
        is_known &= (row < self._scene.rows) & (col < self._scene.cols)
        return np.where(is_known, row * self._scene.cols + col, NONE)


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


def _from_positions(file: Hdf5File, ground: PixelPositions, scene: Scene) -> tuple[Scene, Lookup]:
    """A north-up grid with pixels as large as the sensor's, and for each the nearest pixel of the sensor."""
    positions = _Positions(file, ground, scene)
    crs, size = positions.choose_grid()
    left, bottom, right, top = positions.bounds(crs)
    cols, rows = (math.ceil((high - low) / size) + 1 for low, high in ((left, right), (bottom, top)))
    _check_size(scene, rows, cols)
    transform = Affine(size, 0, left - size / 2, 0, -size, top + size / 2)
    nearest = np.full((rows, cols), NONE, np.int32)
    distances = np.full((rows, cols), np.inf, np.float32)
    for first, x, y in positions.blocks(crs):
        known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        col, row = ~transform @ (x.ravel()[known], y.ravel()[known])
        _take_nearest(nearest, distances, first + known, row - 0.5, col - 0.5)
    nearest[distances > REACH_PX] = NONE
    return _placed(scene, (rows, cols), crs, transform), _PlaneLookup(nearest)


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
    """Longitudes and latitudes of a swath, by blocks of rows."""

    def __init__(self, file: Hdf5File, ground: PixelPositions, scene: Scene) -> None:
        self._lon, self._lat = file.dataset(ground.lon), file.dataset(ground.lat)
        self._scene, self._path = scene, ground.path
        if self._lon.shape != (scene.rows, scene.cols) or self._lat.shape != self._lon.shape:
            raise SceneUnreadable(f"the positions in {ground.path.name} have not the size of its image: copy it again")

    def _read(self, top: int, bottom: int) -> tuple[Any, Any]:
        with hdf5_errors(self._path):
            lon, lat = (np.asarray(values[top:bottom], np.float64) for values in (self._lon, self._lat))
        is_known = (np.abs(lon) <= 360) & (np.abs(lat) <= 90)
        return np.where(is_known, lon, np.nan), np.where(is_known, lat, np.nan)

    def choose_grid(self) -> tuple[CRS, float]:
        """UTM, or degrees for wide swaths and near the poles; and the pixel size in its units."""
        middle = self._scene.rows // 2
        lon, lat = self._read(max(0, middle - 1), middle + 1)
        if not np.isfinite(lon).any():
            raise SceneUnreadable(f"{self._path.name} has no positions in its middle rows: it cannot be laid out")
        lon_0, lat_0 = float(np.nanmedian(lon)), float(np.nanmedian(lat))
        self._turn_at = lon_0
        width = float(np.nanmax(np.abs((lon - lon_0 + 180) % 360 - 180)))
        crs = LON_LAT
        if width <= WIDEST_UTM_DEG and abs(lat_0) <= HIGHEST_UTM_DEG:
            zone = min(60, int(((lon_0 + 180) % 360) // 6) + 1)
            crs = CRS.from_epsg((32600 if lat_0 >= 0 else 32700) + zone)
        x, y = self._project(crs, lon, lat)
        steps = [np.hypot(np.diff(x, axis=axis), np.diff(y, axis=axis)) for axis in (0, 1)]
        known = [float(np.nanmedian(step)) for step in steps if np.isfinite(step).any()]
        size = math.sqrt(math.prod(known)) if len(known) == 2 else (known or [0.0])[0]
        if not (math.isfinite(size) and size > 0):
            raise SceneUnreadable(
                f"the positions in {self._path.name} do not change from pixel to pixel: copy it again"
            )
        return crs, float(f"{size:.3g}")

    def _project(self, crs: CRS, lon: Any, lat: Any) -> tuple[Any, Any]:
        lon = self._turn_at + (lon - self._turn_at + 180) % 360 - 180  # without a jump at the date line
        known = np.isfinite(lon) & np.isfinite(lat)
        x, y = np.full(lon.shape, np.nan), np.full(lon.shape, np.nan)
        if crs == LON_LAT:
            return lon, lat
        x[known], y[known] = transform_points(LON_LAT, crs, lon[known], lat[known])
        return x, y

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
