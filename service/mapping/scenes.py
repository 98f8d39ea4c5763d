"""Scenes on disk: what a GeoTIFF, an ENVI file or a product holds, and its pixels by window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import SceneUnreadable, SourceUnreachable
from hyperscene.service.mapping.block_map import BlockMap
from hyperscene.service.mapping.gdal import CACHE_BYTES, GDAL_ERRORS, gdal_message, open_dataset, row_of_blocks_bytes
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.prefetch import Stop
from hyperscene.service.mapping.product_scenes import (
    cube_scene,
    raster_scene,
    with_warnings,
    with_wavelengths,
    without_empty_bands,
)
from hyperscene.service.mapping.products.cube_files import Report
from hyperscene.service.mapping.products.cubes import read_wavelengths
from hyperscene.service.mapping.products.finding import find_product, lacking_metadata
from hyperscene.service.mapping.products.masks import MaskReader, choose_layers, open_masks
from hyperscene.service.mapping.products.product import CubeImage, MaskLayer, Product, ReadOptions
from hyperscene.service.mapping.remote import address_of, fingerprint, is_remote
from hyperscene.service.mapping.remote_file import open_remote, replaced
from hyperscene.service.mapping.samples import is_nodata, open_probe, open_samples
from hyperscene.service.mapping.scene_checks import (
    check_blocks,
    check_reference_text,
    check_tiff_length,
    is_packed_envi,
    read_declared_size,
    refuse_grids,
)
from hyperscene.service.mapping.scene_files import FORMATS, locate
from hyperscene.service.mapping.scene_header import Scene, read_header
from hyperscene.service.mapping.tiff import read_block_map

__all__ = [
    "DEFAULT_OPTIONS",
    "Scene",
    "SceneReader",
    "open_pixels",
    "open_scene",
    "read_cube",
    "read_spectrum",
    "require_unchanged",
]

DEFAULT_OPTIONS = ReadOptions()
# Values read at once, so that reading can be cancelled; of a tiled file, as many columns as if so many rows were read.
PART_VALUES, PART_ROWS = 1 << 22, 64


def open_scene(
    path: Path,
    limits: Limits | None = None,
    *,
    counts_packed: bool = True,
    version: str | None = None,
    options: ReadOptions = DEFAULT_OPTIONS,
    work: Path | None = None,
    report: Report | None = None,
    stop: Stop | None = None,
) -> Scene:
    """Read a scene's header and check its files; raises if it cannot be mapped.

    With `counts_packed`, compressed ENVI data are unpacked to see that nothing is missing. With `version`, a remote
    file must still have that version. Archives and cubes that cannot be read by rows are written into the folder
    `work`; None: a folder of this process. `report` is called while an archive is unpacked. Unpacking ENVI data may be
    cancelled by `stop`.
    """
    product = None if is_remote(path) else _find_product(path, work, report, options.variable)
    layers: tuple[MaskLayer, ...] = ()
    if product is None:
        scene = _open_file(*locate(path), limits, counts_packed=counts_packed, version=version, stop=stop)
        if scene.wavelengths_nm is None and (lacking := lacking_metadata(path)):
            scene = replace(scene, warnings=(*scene.warnings, lacking))
    else:
        layers = product.masks
        if isinstance(product.image, CubeImage):
            scene = cube_scene(product, limits)
        else:
            scene = raster_scene(product, lambda path, driver, part: _open_file(path, driver, limits, product=part))
    scene = replace(scene, masks=choose_layers(layers, options.masks), layers=layers, work=work)
    if options.wavelengths is not None:
        scene = with_wavelengths(scene, read_wavelengths(options.wavelengths), options.wavelengths.name)
    return with_warnings(_without_empty_bands(scene))


def _without_empty_bands(scene: Scene) -> Scene:
    try:
        is_packed = scene.driver == "ENVI" and is_packed_envi(scene.path)
        return without_empty_bands(scene, is_packed=is_packed)
    except GDAL_ERRORS as error:
        raise _damaged(scene, error) from error


def _find_product(path: Path, work: Path | None, report: Report | None, variable: str | None) -> Product | None:
    try:
        return find_product(path, work, report, variable)
    except OSError as error:  # ENOENT has a message of its own in `locate`
        if isinstance(error, FileNotFoundError):
            return None
        raise SceneUnreadable(f"{path} cannot be read ({error.strerror}): check its name and permissions") from error


def _open_file(
    path: Path,
    driver: str,
    limits: Limits | None,
    *,
    counts_packed: bool = True,
    version: str | None = None,
    stop: Stop | None = None,
    product: Product | None = None,
) -> Scene:
    """A scene in one file that GDAL reads."""
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
            scene = read_header(path, driver, dataset, counts_packed=counts_packed, stop=stop, product=product)
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


def read_cube(scene: Scene, window: Window | None = None) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values (rows, cols, bands) in the scene's physical units, and which pixels (rows, cols) are valid.

    Values of invalid pixels are not changed, so NaN can be told from a declared no-data value.
    """
    with open_pixels(scene) as pixels:
        return pixels.read(window)


@contextmanager
def open_pixels(scene: Scene, report: Report | None = None) -> Iterator[SceneReader]:
    """A reader of the scene's pixels, for one thread; `report` is called while a cube is rewritten, once."""
    try:
        with (
            open_samples(scene, report) as dataset,
            _rows_kept(scene, dataset),
            open_masks(scene.masks, scene.bands, scene.work) as masks,
        ):
            yield SceneReader(scene, dataset, masks)
    except GDAL_ERRORS as error:
        if is_remote(scene.path):
            require_unchanged(scene)
            raise SourceUnreachable(
                f"{address_of(scene.path)} could not be read to its end: its host stopped responding, or the file is "
                "damaged: check it, and send it again"
            ) from error
        raise _damaged(scene, error) from error


def read_spectrum(scene: Scene, row: int, col: int) -> NDArray[np.float32] | None:
    """One pixel's values in every band, NaN where it has none; None if it lies in a cube that has to be rewritten."""
    if not isinstance(scene.image, CubeImage):
        with open_pixels(scene) as pixels:
            return pixels.spectrum(row, col)
    with open_probe(scene, 1) as samples:
        return None if samples is None else SceneReader(scene, samples, MaskReader(())).spectrum(row, col)


def _damaged(scene: Scene, error: Exception) -> SceneUnreadable:
    return SceneUnreadable(f"{scene.name} is cut short or damaged: {gdal_message(error, scene.path)}; copy it again")


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

    def __init__(self, scene: Scene, dataset: Any, masks: MaskReader) -> None:
        self._scene = scene
        self._dataset = dataset
        self._masks = masks
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
        window = window or Window(0, 0, scene.cols, scene.rows)
        present = self._present(window)
        if present is not None and not present.any():
            return np.zeros((*present.shape, len(scene.bands)), np.float32), present
        raw = self._dataset.read(list(scene.bands), window=window)  # (bands, rows, cols)
        valid = ~is_nodata(raw, scene.nodata)
        if present is not None:
            valid &= present
        if scene.has_mask:
            valid &= self._dataset.dataset_mask(window=window) > 0
        cube = np.empty((*valid.shape, len(raw)), np.float32)
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, and so invalid
            self._fill(cube, raw)
        if raw.dtype.kind == "f":
            valid &= np.isfinite(cube).all(axis=-1)
        if scene.masks:
            valid &= ~self._masks.is_masked(window)
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
        missing = np.array([is_nodata(raw[[index]], (value,))[0, 0] for index, value in enumerate(scene.nodata)])
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
