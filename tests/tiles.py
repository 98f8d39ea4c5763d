"""Helpers for tile tests: rasters with a known georeference, and the colours of a PNG."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import rasterio
from rasterio.io import MemoryFile
from rasterio.transform import Affine
from rasterio.warp import transform as transform_points

from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.rasters import optimise, plain_name
from tests.scenes import GRID, UTM

COLORS = {value: ((37 * value) % 256, (91 * value + 50) % 256, (200 - 13 * value) % 256, 255) for value in range(1, 21)}


def rgba(png: bytes) -> np.ndarray:
    """The colours (rows, cols, 4) of a PNG."""
    with MemoryFile(png) as memory, ignore_missing_georeference(), memory.open(driver="PNG") as picture:
        bands = picture.read()
        if picture.count == 1:
            table = picture.colormap(1)
            return np.array([table[value] for value in range(len(table))], np.uint8)[bands[0]]
        colors = np.moveaxis(bands, 0, -1)
    if colors.shape[-1] == 3:
        colors = np.dstack([colors, np.full(colors.shape[:2], 255, np.uint8)])
    return colors


def write_cog(
    folder: Path,
    name: str,
    values: np.ndarray,
    *,
    nodata: float = 0,
    colors: dict | None = None,
    scale: float = 1.0,
    **georeference: object,
) -> Path:
    """Values (rows, cols) or (rows, cols, bands) as one of our rasters; by default with the grid of `write_tif`."""
    layers = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
    count, rows, cols = layers.shape
    georeference = {"crs": UTM} | ({} if "gcps" in georeference else {"transform": GRID}) | georeference
    with ignore_missing_georeference():
        file = rasterio.open(
            plain_name(folder, name), "w", driver="GTiff", height=rows, width=cols, count=count, dtype=layers.dtype,
            nodata=nodata, photometric="minisblack", interleave="pixel", **georeference,
        )  # fmt: skip
    with file:
        file.write(layers)
        file.scales = [scale] * count
        if colors:
            file.write_colormap(1, {0: (0, 0, 0, 0)} | colors)
    optimise(folder, name, 1)
    return folder / name


def write_classes(folder: Path, values: np.ndarray, **georeference) -> Path:
    """A class map in known colours."""
    return write_cog(folder, "classes.tif", values, colors=COLORS, **georeference)


def lon_lats(rows: int, cols: int, crs, transform: Affine) -> tuple[np.ndarray, np.ndarray]:
    """Longitudes and latitudes (rows, cols) of all pixels' centres."""
    col, row = np.meshgrid(np.arange(cols) + 0.5, np.arange(rows) + 0.5)
    x, y = transform @ (col.ravel(), row.ravel())
    lon, lat = (np.array(numbers) for numbers in transform_points(crs, "EPSG:4326", x, y))
    return lon.reshape(rows, cols), lat.reshape(rows, cols)


def tile_pixels(lon: np.ndarray, lat: np.ndarray, zoom: int, px: int = 256) -> tuple[np.ndarray, ...]:
    """Tile (x, y) and (row, col) inside it for coordinates, by the formulas of the XYZ scheme."""
    x = ((lon + 180) % 360) / 360 * 2**zoom
    y = (1 - np.arcsinh(np.tan(np.radians(lat))) / math.pi) / 2 * 2**zoom
    tile_x, tile_y = np.floor(x).astype(int), np.floor(y).astype(int)
    return tile_x, tile_y, ((y - tile_y) * px).astype(int), ((x - tile_x) * px).astype(int)
