"""The map's rasters: strips go into plain GeoTIFFs, which become cloud-optimised ones when the last strip is in."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import rasterio
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.shutil import copy as copy_raster
from rasterio.windows import Window

from model.bundle import Manifest
from service.errors import disk_is_full, unwritten
from service.mapping.scenes import CACHE_BYTES, GDAL_ERRORS, Scene, unplaced_is_fine
from service.mapping.strips import BYTE_NODATA, BYTE_STEPS, ProbabilityType, StoredStrip, class_type

RASTERS = ("classes.tif", "probabilities.tif", "confidence.tif")
GDAL_ENV = {"GDAL_PAM_ENABLED": "NO", "GDAL_CACHEMAX": CACHE_BYTES}


class MapWriter:
    """Three rasters of the scene's size and place, written strip by strip into a folder."""

    def __init__(self, folder: Path, scene: Scene, manifest: Manifest, probability_type: ProbabilityType) -> None:
        self._folder = folder
        self._scene = scene
        self._manifest = manifest
        self._type = probability_type
        self._open_things = ExitStack()
        self._files: dict[str, Any] = {}

    def __enter__(self) -> MapWriter:
        with self._open_things as things:  # closed at once where something goes wrong before the end
            things.enter_context(rasterio.Env(**GDAL_ENV))
            self._create()
            self._describe()
            self._open_things = things.pop_all()
        return self

    def _create(self) -> None:
        nodata = BYTE_NODATA if self._type == "uint8" else float("nan")
        self._open("classes.tif", 1, class_type(self._manifest.classes), 0)
        self._open("probabilities.tif", self._manifest.classes, self._type, nodata)
        self._open("confidence.tif", 1, self._type, nodata)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_things.close()
        if error is None:
            for file in self._files.values():
                require_whole(file)

    def write(self, strip: StoredStrip) -> None:
        """Put a strip in its place."""
        rows, cols = strip.classes.shape
        window = Window(0, strip.top, cols, rows)
        try:
            self._files["classes.tif"].write(strip.classes, 1, window=window)
            self._files["probabilities.tif"].write(np.moveaxis(strip.probabilities, -1, 0), window=window)
            self._files["confidence.tif"].write(strip.confidence, 1, window=window)
        except GDAL_ERRORS as error:
            raise unwritten(error) from error

    def _open(self, name: str, bands: int, dtype: str, nodata: float) -> None:
        file = create_plain(plain_name(self._folder, name), self._scene, bands, dtype, nodata)
        self._files[name] = self._open_things.enter_context(file)

    def _describe(self) -> None:
        """Names, colours and scales, while the headers can still take them."""
        manifest = self._manifest
        classes, probabilities, confidence = (self._files[name] for name in RASTERS)
        colors = {0: (0, 0, 0, 0)}
        colors |= {value: (*rgb(color), 255) for value, color in enumerate(manifest.class_colors, start=1)}
        classes.write_colormap(1, colors)
        classes.set_band_description(1, "class")
        classes.update_tags(class_names="{" + ", ".join(["no data", *manifest.class_names]) + "}")
        for band, name in enumerate(manifest.class_names, start=1):
            probabilities.set_band_description(band, name)
        confidence.set_band_description(1, "confidence")
        for file in (probabilities, confidence):
            file.colorinterp = [ColorInterp.gray] + [ColorInterp.undefined] * (file.count - 1)
            if self._type == "uint8":
                file.scales = [1 / BYTE_STEPS] * file.count


def plain_name(folder: Path, name: str) -> Path:
    """Where a raster lies before it is cloud-optimised."""
    return folder / f"plain_{name}"


def create_plain(
    path: Path, scene: Scene, bands: int, dtype: str, nodata: float, photometric: str = "minisblack"
) -> Any:
    """A new raster of the scene's size and place, open to be written."""
    place: dict[str, Any] = {"crs": scene.crs, "transform": scene.transform}
    if scene.gcps:
        place = {"crs": scene.crs or CRS(), "gcps": list(scene.gcps)}
    # Plain strips, since they are written once and read once; blocks and compression come with the copy.
    with unplaced_is_fine():
        return rasterio.open(
            path, "w", driver="GTiff", height=scene.rows, width=scene.cols, count=bands, dtype=dtype, nodata=nodata,
            interleave="pixel", bigtiff="if_safer", photometric=photometric, **place,
        )  # fmt: skip


def require_whole(file: Any) -> None:
    """rasterio closes a file on a full disk without a word."""
    least = file.count * file.height * file.width * np.dtype(file.dtypes[0]).itemsize
    if Path(file.name).stat().st_size < least:
        raise disk_is_full()


def optimise(folder: Path, name: str, threads: int) -> None:
    """Turn a plain raster into a COG beside it, and drop the plain one."""
    plain = plain_name(folder, name)
    # Classes have no average: an overview shows the class most of its pixels have.
    resampling = "MODE" if name == "classes.tif" else "AVERAGE"
    try:
        with rasterio.Env(**GDAL_ENV), unplaced_is_fine():
            copy_raster(
                plain, folder / name, driver="COG", compress="DEFLATE", blocksize=256, bigtiff="IF_SAFER",
                overview_resampling=resampling, num_threads=threads, strict=True,
            )  # fmt: skip
    except GDAL_ERRORS as error:
        raise unwritten(error) from error
    plain.unlink()


def rgb(color: str) -> tuple[int, int, int]:
    """The parts of `#rrggbb`."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
