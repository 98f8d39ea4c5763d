"""Scenes on disk: what a GeoTIFF or ENVI file holds, and its pixels by window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.windows import Window

from hyperscene.errors import DtypeUnsupported, SceneUnreadable, SourceUnreachable
from hyperscene.model.spectra import Wavelengths
from hyperscene.service.mapping.band_metadata import read_band_metadata
from hyperscene.service.mapping.block_map import BlockMap
from hyperscene.service.mapping.gdal import (
    CACHE_BYTES,
    DTYPES,
    GDAL_ERRORS,
    gdal_message,
    open_dataset,
    row_of_blocks_bytes,
)
from hyperscene.service.mapping.georeference import read_georeference
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.prefetch import Stop
from hyperscene.service.mapping.remote import address_of, fingerprint, is_remote, name_of
from hyperscene.service.mapping.remote_file import open_remote, replaced
from hyperscene.service.mapping.scene_checks import (
    check_blocks,
    check_data_size,
    check_reference_text,
    check_tiff_length,
    read_declared_size,
    refuse_grids,
)
from hyperscene.service.mapping.scene_files import FORMATS, locate
from hyperscene.service.mapping.tiff import read_block_map

# Values read at once, so that reading can be cancelled; of a tiled file, as many columns as if so many rows were read.
PART_VALUES, PART_ROWS = 1 << 22, 64


@dataclass(frozen=True)
class Scene:
    """A scene's header, checked; bands are the good ones only."""

    path: Path
    name: str  # the name its owner gave it
    driver: str
    rows: int
    cols: int
    dtype: str
    bands: tuple[int, ...]  # GDAL's band numbers, from 1
    bad_bands: int
    wavelengths_nm: Wavelengths | None
    fwhm_nm: Wavelengths | None
    scales: NDArray[np.float64]
    offsets: NDArray[np.float64]
    nodata: tuple[float | None, ...]
    has_mask: bool
    crs: CRS | None
    transform: Affine
    gcps: tuple[GroundControlPoint, ...]  # in `crs`, if the file has points instead of a transform
    warnings: tuple[str, ...]
    version: str = ""  # fingerprint of a remote file, which may be replaced while it is read
    blocks: BlockMap | None = None  # of a TIFF with absent blocks that is on this machine

    @property
    def is_georeferenced(self) -> bool:
        return bool(self.gcps) or self.transform != Affine.identity()

    def narrowed(self, indices: NDArray[np.int64]) -> Scene:
        """The same scene with the bands at `indices` only."""
        return replace(
            self,
            bands=tuple(self.bands[index] for index in indices),
            wavelengths_nm=None if self.wavelengths_nm is None else self.wavelengths_nm[indices],
            fwhm_nm=None if self.fwhm_nm is None else self.fwhm_nm[indices],
            scales=self.scales[indices],
            offsets=self.offsets[indices],
            nodata=tuple(self.nodata[index] for index in indices),
        )


def open_scene(
    path: Path,
    limits: Limits | None = None,
    *,
    counts_packed: bool = True,
    version: str | None = None,
    stop: Stop | None = None,
) -> Scene:
    """Read a scene's header and check its files; raises if it cannot be mapped.

    With `counts_packed`, compressed ENVI data are unpacked to see that nothing is missing. With `version`, a remote
    file must still have that version. Unpacking may be cancelled by `stop`.
    """
    path, driver = locate(path)
    if limits is not None and not is_remote(path):
        limits.check_size(path.name, *read_declared_size(path, driver, limits))
        check_reference_text(path, driver)
    if driver == "GTiff" and not is_remote(path):
        check_tiff_length(path)
    try:
        with (
            open_remote(path) as remote,
            open_dataset(path, driver, remote) as dataset,
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),
        ):
            if limits is not None:
                check_blocks(path, dataset, limits)
            scene = _read_header(path, driver, dataset, counts_packed=counts_packed, stop=stop)
            if remote is None:
                return scene if driver == "ENVI" else replace(scene, blocks=_block_map(path, dataset))
            refuse_grids(scene.name, scene.crs.to_wkt().encode() if scene.crs else b"")
            scene = replace(scene, version=fingerprint(remote.headers, dataset))
            if version not in (None, scene.version, fingerprint("", dataset)):  # older versions knew no headers from S3
                raise replaced(address_of(path))
            return scene
    except GDAL_ERRORS as error:
        if is_remote(path):
            raise _remote_refusal(path, error) from error
        raise SceneUnreadable(
            f"{path.name} cannot be read as {driver}: {gdal_message(error, path)}; send {FORMATS}"
        ) from error
    except ValueError as error:  # invalid numbers or text in a header
        raise SceneUnreadable(f"the header of {path.name} cannot be parsed ({error}): correct it") from error


def _block_map(path: Path, dataset: Any) -> BlockMap | None:
    found = read_block_map(path)
    is_of_dataset = found is not None and found.fits(dataset.height, dataset.width, dataset.count)
    return found if is_of_dataset else None


def _read_header(path: Path, driver: str, dataset: Any, *, counts_packed: bool, stop: Stop | None) -> Scene:
    name = name_of(path)
    dtype = str(dataset.dtypes[0])
    if any(kind not in DTYPES for kind in dataset.dtypes):
        raise DtypeUnsupported(f"{name} holds {dtype} samples; real numbers are needed: {', '.join(DTYPES)}")
    if driver == "ENVI":
        check_data_size(path, dataset, counts_packed=counts_packed, stop=stop)
    metadata = read_band_metadata(name, dataset)
    indices = [band - 1 for band in metadata.bands]
    georeference = read_georeference(name, dataset)
    scales, offsets = (
        np.array(numbers)[indices] / metadata.scale_factor for numbers in (dataset.scales, dataset.offsets)
    )
    if not np.isfinite([scales.astype(np.float32), offsets.astype(np.float32)]).all():
        raise SceneUnreadable(f"a scale or an offset of {name} is not a finite number in 32 bits: correct it")
    return Scene(
        path=path,
        name=name,
        driver=driver,
        rows=dataset.height,
        cols=dataset.width,
        dtype=dtype,
        bands=metadata.bands,
        bad_bands=metadata.bad_bands,
        wavelengths_nm=metadata.wavelengths_nm,
        fwhm_nm=metadata.fwhm_nm,
        scales=scales,
        offsets=offsets,
        nodata=tuple(dataset.nodatavals[index] for index in indices),
        has_mask=metadata.has_mask,
        crs=georeference.crs,
        transform=georeference.transform,
        gcps=georeference.gcps,
        warnings=(*metadata.warnings, *georeference.warnings),
    )


def read_cube(scene: Scene, window: Window | None = None) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values (rows, cols, bands) in the scene's physical units, and which pixels (rows, cols) are valid.

    Values of invalid pixels are not changed, so NaN can be told from a declared no-data value.
    """
    with open_pixels(scene) as pixels:
        return pixels.read(window)


@contextmanager
def open_pixels(scene: Scene) -> Iterator[SceneReader]:
    """A reader of the scene's pixels, for one thread."""
    try:
        with (
            open_remote(scene.path) as remote,
            open_dataset(scene.path, scene.driver, remote) as dataset,
            _rows_kept(scene, dataset),
        ):
            yield SceneReader(scene, dataset)
    except GDAL_ERRORS as error:
        if is_remote(scene.path):
            require_unchanged(scene)
            raise SourceUnreachable(
                f"{address_of(scene.path)} could not be read to its end: its host stopped responding, or the file is "
                "damaged: check it, and send it again"
            ) from error
        raise SceneUnreadable(
            f"{scene.name} is cut short or damaged: {gdal_message(error, scene.path)}; copy it again"
        ) from error


def require_unchanged(scene: Scene) -> None:
    """Refuse a remote scene whose file was replaced while it was read."""
    if scene.version:
        open_scene(scene.path, version=scene.version)


def _remote_refusal(path: Path, error: Exception) -> SceneUnreadable:
    """The refusal of a remote file; GDAL's message is left out, because it may hold the whole URL with its secrets."""
    found = re.search(r"HTTP response code: \d+|not recognized as[^/]*format", str(error))
    reason = f" ({found[0]})" if found else ""
    return SceneUnreadable(
        f"{address_of(path)} cannot be read in place{reason}: it must be a tiled GeoTIFF (a COG) that this server "
        "may read; check it, or upload the scene with POST /scenes"
    )


class SceneReader:
    """An open scene; made by `open_pixels`."""

    def __init__(self, scene: Scene, dataset: Any) -> None:
        self._scene = scene
        self._dataset = dataset
        self._scales, self._offsets = scene.scales.astype(np.float32), scene.offsets.astype(np.float32)
        self._is_plain = bool((self._scales == 1).all() and (self._offsets == 0).all())

    def windows(self, top: int, bottom: int) -> Iterator[Window]:
        """The rows in parts, each read within a fraction of a second; few parts cut a block of the file.

        Where the parts of a row begin does not depend on the rows.
        """
        block_rows, block_cols = self._dataset.block_shapes[0]
        bands, cols = self._dataset.count, self._scene.cols
        rows, width = bottom - top, cols
        if block_cols < cols:
            width = block_cols * max(1, PART_VALUES // (PART_ROWS * block_cols * bands))
        else:
            rows = block_rows * max(1, PART_VALUES // (block_rows * cols * bands))
            if block_rows == 1:  # GDAL keeps the block of a long row for its next part
                width = max(1, PART_VALUES // bands)
        while top < bottom:
            end = min(bottom, top // rows * rows + rows) if rows < bottom - top else bottom
            for left in range(0, cols, width):
                yield Window(left, top, min(width, cols - left), end - top)
            top = end

    def read(self, window: Window | None = None) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values (rows, cols, bands), and which pixels (rows, cols) are valid."""
        scene = self._scene
        present = self._present(window or Window(0, 0, scene.cols, scene.rows))
        if present is not None and not present.any():
            return np.zeros((*present.shape, len(scene.bands)), np.float32), present
        raw = self._dataset.read(list(scene.bands), window=window)  # (bands, rows, cols)
        valid = ~_is_nodata(raw, scene.nodata)
        if present is not None:
            valid &= present
        if scene.has_mask:
            valid &= self._dataset.dataset_mask(window=window) > 0
        cube = np.empty((*valid.shape, len(raw)), np.float32)
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, and so invalid
            self._fill(cube, raw)
        if raw.dtype.kind == "f":
            valid &= np.isfinite(cube).all(axis=-1)
        return cube, valid

    def _present(self, window: Window) -> NDArray[np.bool_] | None:
        """Pixels (rows, cols) that lie in blocks which were written; None if all do."""
        if self._scene.blocks is None:
            return None
        shape = int(window.height), int(window.width)
        return self._scene.blocks.pixels(self._scene.bands, int(window.row_off), int(window.col_off), shape)

    def spectrum(self, row: int, col: int) -> NDArray[np.float32]:
        """One pixel's values in every band; NaN in each band without data."""
        scene, window = self._scene, Window(col, row, 1, 1)
        if (present := self._present(window)) is not None and not present.any():
            return np.full(len(scene.bands), np.nan, np.float32)
        raw = self._dataset.read(list(scene.bands), window=window)  # (bands, 1, 1)
        cube = np.empty((1, 1, len(raw)), np.float32)
        with np.errstate(over="ignore"):
            self._fill(cube, raw)
        missing = np.array([_is_nodata(raw[[index]], (value,))[0, 0] for index, value in enumerate(scene.nodata)])
        is_zero = np.array([value == 0 for value in scene.nodata])
        if not missing[is_zero].all():  # dark pixels hold real zeros
            missing &= ~is_zero
        if scene.has_mask and not self._dataset.dataset_mask(window=window)[0, 0]:
            missing[:] = True
        values: NDArray[np.float32] = np.where(missing | ~np.isfinite(cube[0, 0]), np.nan, cube[0, 0])
        return values

    def _fill(self, cube: NDArray[np.float32], raw: NDArray[Any]) -> None:
        for row in range(len(cube)):  # a row at a time stays in the cache while it is transposed, converted and scaled
            cube[row] = raw[:, row].T
            if not self._is_plain:
                cube[row] *= self._scales
                cube[row] += self._offsets


@contextmanager
def _rows_kept(scene: Scene, dataset: Any) -> Iterator[None]:
    """Keep blocks of a remote file in memory that the next strip reads again."""
    if not is_remote(scene.path):
        yield
        return
    with rasterio.Env(GDAL_CACHEMAX=max(CACHE_BYTES, 2 * row_of_blocks_bytes(dataset))):
        yield


def _is_nodata(raw: NDArray[Any], nodata: tuple[float | None, ...]) -> NDArray[np.bool_]:
    """Pixels where a band has its no-data value; zeros count only in all bands, because dark pixels hold real zeros."""
    any_band = np.zeros(raw.shape[1:], bool)
    zero_bands = [band for band, value in enumerate(nodata) if value == 0]
    for band, value in enumerate(nodata):
        if value is not None and value != 0 and not np.isnan(value):
            any_band |= raw[band] == value
    if zero_bands:
        any_band |= (raw[zero_bands] == 0).all(axis=0)
    return any_band
