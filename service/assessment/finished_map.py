"""A finished map on disk, opened once and read in blocks of rows, so that memory does not grow with its height."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.windows import Window

from hyperscene.errors import MapUnusable
from hyperscene.service.mapping.gdal import GDAL_ERRORS, gdal_message, ignore_missing_georeference
from hyperscene.service.mapping.grids import make_grid
from hyperscene.service.mapping.metadata import pixel_hectares
from hyperscene.service.mapping.rasters import GDAL_ENV

CLASSES, SUMMARY = "classes.tif", "summary.json"
BLOCK_PIXELS = 8 << 20  # of one block of rows, whatever the width
TILE_ROWS = 256  # of a COG: a block of whole tiles is read once
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Totals:
    """Pixels and hectares of each class; hectares are None without a position on Earth."""

    pixels: NDArray[np.int64]  # of the classes 1..K
    hectares: NDArray[np.float64] | None
    no_data_pixels: int

    @property
    def weights(self) -> NDArray[np.float64]:
        """What shares of the map are made of: hectares, or pixels where there are none."""
        return self.pixels.astype(float) if self.hectares is None else self.hectares

    def record(self) -> list[dict[str, Any]]:
        """One entry for each class."""
        hectares = [None] * len(self.pixels) if self.hectares is None else self.hectares.tolist()
        return [
            {"pixels": int(pixels), "hectares": None if area is None else round(area, 4)}
            for pixels, area in zip(self.pixels, hectares, strict=True)
        ]


@dataclass(frozen=True)
class FinishedMap:
    """A class raster with the names of its classes; values are 1..K, and 0 is no data."""

    path: Path  # of the class raster
    rows: int
    cols: int
    crs: CRS | None
    transform: Affine
    class_names: tuple[str, ...]
    class_colors: tuple[str, ...]
    summary: dict[str, Any] = field(repr=False)  # empty for a raster without a summary
    gcps: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """A name for messages and reports."""
        return str(self.summary.get("scene", {}).get("name") or self.path.stem)

    @property
    def is_georeferenced(self) -> bool:
        return bool(self.gcps) or self.transform != Affine.identity()

    @property
    def grid_crs(self) -> CRS | None:
        """The reference system of coordinates by the transform; None for control points, which give none."""
        return None if self.gcps else self.crs

    @cached_property
    def sha256(self) -> str:
        """The checksum of the class raster, which identifies the map."""
        return file_sha256(self.path)

    def lon_lat(self, row: int, col: int) -> tuple[float, float] | None:
        """Longitude and latitude of a pixel's centre."""
        return make_grid(self.rows, self.cols, self.crs, self.transform, self.gcps).lon_lat(row, col)

    @contextmanager
    def open(self) -> Iterator[Any]:
        """The class raster, open for reading."""
        with open_raster(self.path) as raster:
            yield raster

    def blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """The first row and the classes (rows, cols) of each block, from top to bottom."""
        with self.open() as raster:
            yield from raster_blocks(raster)

    def totals(self) -> Totals:
        """The pixels and hectares of the whole map."""
        return self.add_up(self.blocks())

    def add_up(self, blocks: Iterable[tuple[int, NDArray[Any]]]) -> Totals:
        """Count the pixels and add up the hectares of each class."""
        count = len(self.class_names) + 1
        pixels = np.zeros(count, np.int64)
        hectares: NDArray[np.float64] | None = np.zeros(count)
        for top, classes in blocks:
            self._require_known(int(classes.max(initial=0)))
            bins = classes.astype(np.int64) + count * np.arange(len(classes))[:, None]
            by_row = np.bincount(bins.ravel(), minlength=count * len(classes)).reshape(len(classes), count)
            pixels += by_row.sum(axis=0)
            area = pixel_hectares(self, top, top + len(classes))
            hectares = None if area is None or hectares is None else hectares + area @ by_row
        return Totals(pixels[1:], None if hectares is None else hectares[1:], int(pixels[0]))

    def classes_at(self, pixels: NDArray[np.int64]) -> NDArray[np.int64]:
        """The class of pixels (n, 2); 0 outside of the map."""
        found = np.zeros(len(pixels), np.int64)
        inside = ((pixels >= 0) & (pixels < (self.rows, self.cols))).all(axis=1)
        order = np.flatnonzero(inside)[np.argsort(pixels[inside, 0], kind="stable")]
        with self.open() as raster:
            for number in order:  # in row order, so that GDAL's cache holds the tiles
                row, col = pixels[number].tolist()
                found[number] = int(raster.read(1, window=Window(col, row, 1, 1))[0, 0])
        return found

    def _require_known(self, largest: int) -> None:
        if largest > len(self.class_names):
            raise MapUnusable(
                f"{self.path.name} holds class {largest}, but {len(self.class_names)} classes have names: "
                "take the whole results folder of one map"
            )


@contextmanager
def open_raster(path: Path) -> Iterator[Any]:
    """A raster of our own, opened by one driver and without files beside it."""
    try:
        with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR", **GDAL_ENV), ignore_missing_georeference():
            raster = rasterio.open(path, driver="GTiff")
            with raster:
                yield raster
    except GDAL_ERRORS as error:
        raise MapUnusable(f"{path.name} cannot be read ({gdal_message(error, path)}): make the map again") from error


def raster_blocks(raster: Any) -> Iterator[tuple[int, NDArray[Any]]]:
    """The first row and the first band of each block of rows."""
    rows = max(1, min(raster.height, BLOCK_PIXELS // raster.width))
    rows = rows // TILE_ROWS * TILE_ROWS or rows
    for top in range(0, raster.height, rows):
        yield top, raster.read(1, window=Window(0, top, raster.width, min(rows, raster.height - top)))


def open_map(path: Path) -> FinishedMap:
    """A map by the folder of its results, or by a class raster with a colour table."""
    folder, raster_path = (path, path / CLASSES) if path.is_dir() else (path.parent, path)
    if not raster_path.is_file():
        raise MapUnusable(f"{path} holds no {CLASSES}: give the folder that hyperscene classify wrote")
    summary = _read_summary(folder / SUMMARY) if raster_path.name == CLASSES else {}
    with open_raster(raster_path) as raster:
        if raster.dtypes[0] not in ("uint8", "uint16"):
            raise MapUnusable(
                f"{raster_path.name} holds {raster.dtypes[0]}, and a class map holds whole numbers from 0: "
                "give a map's folder, or its class raster"
            )
        names, colors = _legend(raster_path, raster, summary)
        gcps, gcps_crs = raster.gcps
        return FinishedMap(
            raster_path, raster.height, raster.width, raster.crs or gcps_crs, raster.transform, names, colors, summary,
            tuple(gcps),
        )  # fmt: skip


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        [(entry["name"], entry["color"]) for entry in document["classes"]]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MapUnusable(f"{path.name} is no summary of a map ({error}): make the map again") from error
    return document


def _legend(path: Path, raster: Any, summary: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and colours: of the summary, or of the raster's tags and colour table."""
    if summary:
        entries = summary["classes"]
        return tuple(entry["name"] for entry in entries), tuple(entry["color"] for entry in entries)
    listed = raster.tags().get("class_names", "").strip("{}").split(",")
    names = [name.strip() for name in listed[1:]]
    try:
        table = raster.colormap(1)
    except ValueError:
        table = {}
    count = max([len(names), *(value for value, color in table.items() if any(color[:3]))])
    if not count:
        raise MapUnusable(f"{path.name} names no classes: give the folder that hyperscene classify wrote")
    colors = ["#{:02x}{:02x}{:02x}".format(*table.get(value, (128, 128, 128))[:3]) for value in range(1, count + 1)]
    return tuple(names or [f"class {value}" for value in range(1, count + 1)]), tuple(colors)


def file_sha256(path: Path) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while content := file.read(READ_BYTES):
            digest.update(content)
    return digest.hexdigest()
