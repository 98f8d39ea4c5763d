"""The map's rasters: strips are written to plain GeoTIFFs, which become cloud-optimised (COG) at the end."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import rasterio
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.shutil import copy as copy_raster
from rasterio.windows import Window

from hyperscene.errors import disk_full_error, write_error
from hyperscene.model.bundle import Manifest
from hyperscene.service.mapping.gdal import CACHE_BYTES, GDAL_ERRORS, ignore_missing_georeference
from hyperscene.service.mapping.scenes import Scene
from hyperscene.service.mapping.strips import BYTE_NODATA, BYTE_STEPS, ProbabilityType, StoredStrip, class_type

RASTERS = ("classes.tif", "probabilities.tif", "confidence.tif")
GDAL_ENV = {"GDAL_PAM_ENABLED": "NO", "GDAL_CACHEMAX": CACHE_BYTES}


class MapWriter:
    """Writes the three rasters strip by strip; size and georeference are those of the scene.

    `shown` has the legend of the class raster, if that has more classes than the bundle.
    """

    def __init__(
        self,
        folder: Path,
        scene: Scene,
        manifest: Manifest,
        probability_type: ProbabilityType,
        shown: Manifest | None = None,
    ) -> None:
        self._folder = folder
        self._scene = scene
        self._manifest = manifest
        self._shown = shown or manifest
        self._type = probability_type
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        self._nodata: dict[Path, float] = {}

    def __enter__(self) -> MapWriter:
        with self._stack as stack:  # closes the files if an error is raised here
            stack.enter_context(rasterio.Env(**GDAL_ENV))
            self._create()
            self._describe()
            self._stack = stack.pop_all()
        return self

    def _create(self) -> None:
        nodata = BYTE_NODATA if self._type == "uint8" else float("nan")
        self._open("classes.tif", 1, class_type(self._shown.classes), 0)
        self._open("probabilities.tif", self._manifest.classes, self._type, nodata)
        self._open("confidence.tif", 1, self._type, nodata)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is None:
            for file in self._files.values():
                require_complete(file)
                declare_nodata(Path(file.name), self._nodata[Path(file.name)])

    def write(self, strip: StoredStrip) -> None:
        """Write a strip."""
        rows, cols = strip.classes.shape
        window = Window(0, strip.top, cols, rows)
        try:
            self._files["classes.tif"].write(strip.classes, 1, window=window)
            self._files["probabilities.tif"].write(np.moveaxis(strip.probabilities, -1, 0), window=window)
            self._files["confidence.tif"].write(strip.confidence, 1, window=window)
        except GDAL_ERRORS as error:
            raise write_error(error) from error

    def _open(self, name: str, bands: int, dtype: str, nodata: float) -> None:
        self._nodata[plain_name(self._folder, name)] = nodata
        file = create_plain(plain_name(self._folder, name), self._scene, bands, dtype)
        self._files[name] = self._stack.enter_context(file)

    def _describe(self) -> None:
        """Set names, colours and scales before the first strip, while headers can grow."""
        manifest = self._manifest
        classes, probabilities, confidence = (self._files[name] for name in RASTERS)
        colors = {0: (0, 0, 0, 0)}
        colors |= {value: (*rgb(color), 255) for value, color in enumerate(self._shown.class_colors, start=1)}
        classes.write_colormap(1, colors)
        classes.set_band_description(1, "class")
        classes.update_tags(class_names="{" + ", ".join(["no data", *self._shown.class_names]) + "}")
        for band, name in enumerate(manifest.class_names, start=1):
            probabilities.set_band_description(band, name)
        confidence.set_band_description(1, "confidence")
        for file in (probabilities, confidence):
            file.colorinterp = [ColorInterp.gray] + [ColorInterp.undefined] * (file.count - 1)
            if self._type == "uint8":
                file.scales = [1 / BYTE_STEPS] * file.count


def plain_name(folder: Path, name: str) -> Path:
    """The path of a raster before it is cloud-optimised."""
    return folder / f"plain_{name}"


def create_plain(path: Path, scene: Scene, bands: int, dtype: str, photometric: str = "minisblack") -> Any:
    """A new raster with the scene's size and georeference, open for writing.

    It has no no-data value yet: GDAL would fill all missing blocks with it when the file is closed, gigabytes after a
    run that was cancelled, and Python could do nothing else meanwhile. Zeros take no time.
    """
    georeference: dict[str, Any] = {"crs": scene.crs, "transform": scene.transform}
    if scene.gcps:
        georeference = {"crs": scene.crs or CRS(), "gcps": list(scene.gcps)}
    # Without tiles and compression, because it is written once and read once; the COG has both.
    with ignore_missing_georeference():
        return rasterio.open(
            path, "w", driver="GTiff", height=scene.rows, width=scene.cols, count=bands, dtype=dtype,
            interleave="pixel", bigtiff="if_safer", photometric=photometric, **georeference,
        )  # fmt: skip


def require_complete(file: Any) -> None:
    """Refuse a truncated file: rasterio closes files on a full disk without an error."""
    least = file.count * file.height * file.width * np.dtype(file.dtypes[0]).itemsize
    if Path(file.name).stat().st_size < least:
        raise disk_full_error()


def declare_nodata(path: Path, nodata: float) -> None:
    """Set the no-data value of a complete plain raster."""
    try:
        with rasterio.Env(**GDAL_ENV), ignore_missing_georeference():
            with rasterio.open(path, "r+", driver="GTiff") as file:
                file.nodata = nodata
            with rasterio.open(path, driver="GTiff") as file:
                if file.nodata is None:
                    raise disk_full_error()
    except GDAL_ERRORS as error:
        raise write_error(error) from error


class HeldFiles:
    """What GDAL's copy reads in a folder, held open so that it can be emptied even after someone has removed it.

    The copy cannot be cancelled, but ends with an error without its input: the plain raster and the overviews. Without
    its own output it would never end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handles: dict[str, int] = {}

    def hold(self) -> None:
        """Open input that is new."""
        with suppress(OSError):  # the folder or a file was removed meanwhile
            for path in self._folder.iterdir():
                is_input = path.name.startswith("plain_") or path.suffix == ".tmp"
                if is_input and path.name not in self._handles:
                    self._handles[path.name] = os.open(path, os.O_RDWR)

    def empty(self) -> None:
        """Truncate all input."""
        self.hold()
        for handle in self._handles.values():
            os.ftruncate(handle, 0)

    def close(self) -> None:
        """Close all input."""
        for handle in self._handles.values():
            os.close(handle)


def optimise(folder: Path, name: str, threads: int) -> None:
    """Turn a plain raster into a COG and delete the plain one."""
    plain = plain_name(folder, name)
    # Classes have no average: an overview shows the most frequent class.
    resampling = "MODE" if name in ("classes.tif", "mask.tif") else "AVERAGE"
    try:
        with rasterio.Env(**GDAL_ENV), ignore_missing_georeference():
            copy_raster(
                plain, folder / name, driver="COG", compress="DEFLATE", blocksize=256, bigtiff="IF_SAFER",
                overview_resampling=resampling, num_threads=threads, strict=True,
            )  # fmt: skip
    except GDAL_ERRORS as error:
        raise write_error(error) from error
    plain.unlink()


def rgb(color: str) -> tuple[int, int, int]:
    """The parts of `#rrggbb`."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
