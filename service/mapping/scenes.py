"""Scenes on disk: what is understood of a GeoTIFF or ENVI file, and its pixels by window."""

from __future__ import annotations

import gzip
import re
import warnings as python_warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.transform import Affine
from rasterio.windows import Window

from model.spectra import Wavelengths, from_band_names, parse_list, to_nm, unit_in_nm
from service.errors import DtypeUnsupported, PlaceUnreachable, SceneIncomplete, SceneTooLarge, SceneUnreadable
from service.mapping.remote import REMOTE_ENV, address_of, fingerprint, is_remote, probe
from service.mapping.tiff import declared_size, expected_bytes, packed_strip_bytes, reference_text

TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # classic and BigTIFF, both byte orders
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
# What GDAL raises through rasterio: some of its errors are let through as they are.
GDAL_ERRORS = (RasterioError, CPLE_BaseError)
ENVI_SUFFIXES = (".img", ".bsq", ".bil", ".bip", ".dat", ".raw")
FORMATS = "GeoTIFF, or ENVI (a data file and its .hdr)"
# Blocks of a tiled file are met again by the next strip: enough for a row of them in most scenes, and a bound.
CACHE_BYTES = 192 << 20
# A scene in another place is read once only if a row of its blocks stays in memory, and two where a strip lies on both.
REMOTE_ROW_BYTES = 1 << 30
# The largest piece of a packed file that a server unpacks.
BLOCK_BYTES = 512 << 20
# GDAL looks through all keys of an ENVI header for each: 5,000 take it 0.4 s, 150,000 more than 100 s.
HEADER_KEYS = 5_000
# The longest row that a server takes, as float32: 150,000 pixels of 224 bands. Strips hold 16 rows and more.
ROW_BYTES = 128 << 20


@dataclass(frozen=True)
class Limits:
    """What a scene may ask for at most; a server sets them, a person's own machine has none."""

    pixels: int
    bands: int
    unpacked_bytes: int
    header_bytes: int

    def check_size(self, name: str, rows: int, cols: int, bands: int) -> None:
        """Refuse what is too large by its own account, before anything is made of it."""
        if rows * cols > self.pixels:
            raise SceneTooLarge(f"{name} is {rows} x {cols} pixels; this server accepts {self.pixels} in all: crop it")
        if bands > self.bands:
            raise SceneTooLarge(f"{name} has {bands} bands; this server accepts {self.bands}: drop some")

    def check_unpacked(self, name: str, unpacked_bytes: int, block_bytes: int) -> None:
        """Refuse what grows too large when it is unpacked, as a whole or in one piece."""
        if unpacked_bytes > self.unpacked_bytes:
            raise SceneTooLarge(
                f"{name} holds {unpacked_bytes} bytes when unpacked; this server accepts {self.unpacked_bytes}: crop it"
            )
        if block_bytes > BLOCK_BYTES:
            raise SceneTooLarge(
                f"{name} is packed in blocks of {block_bytes >> 20} MB, which have to be unpacked whole; at most "
                f"{BLOCK_BYTES >> 20} MB are accepted: write it with smaller tiles or strips"
            )

    def check_row(self, name: str, cols: int, bands: int) -> None:
        """Refuse rows that are too long: some of them are held in memory at a time."""
        row_bytes = 4 * cols * bands
        if row_bytes > ROW_BYTES:
            raise SceneTooLarge(
                f"a row of {name} is {cols} pixels of {bands} bands, {row_bytes >> 20} MB; at most "
                f"{ROW_BYTES >> 20} MB are accepted: crop it, or turn it by 90 degrees"
            )


@dataclass(frozen=True)
class Scene:
    """A scene that was opened and found sound; bands are the good ones only."""

    path: Path
    name: str  # what its owner calls it
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
    gcps: tuple[GroundControlPoint, ...]  # in `crs`, where the file has points instead of a transform
    warnings: tuple[str, ...]
    version: str = ""  # of a file in another place, which may be replaced while it is read

    @property
    def is_georeferenced(self) -> bool:
        return bool(self.gcps) or self.transform != Affine.identity()

    def narrowed(self, places: NDArray[np.int64]) -> Scene:
        """The same scene with the bands at `places` only."""
        return replace(
            self,
            bands=tuple(self.bands[place] for place in places),
            wavelengths_nm=None if self.wavelengths_nm is None else self.wavelengths_nm[places],
            fwhm_nm=None if self.fwhm_nm is None else self.fwhm_nm[places],
            scales=self.scales[places],
            offsets=self.offsets[places],
            nodata=tuple(self.nodata[place] for place in places),
        )


def open_scene(
    path: Path, limits: Limits | None = None, *, counts_packed: bool = True, version: str | None = None
) -> Scene:
    """Understand a scene, or refuse it; packed ENVI data are read whole, to see that nothing is missing, if asked.

    With `version`, a file in another place has to be the one that had it.
    """
    path, driver = _locate(path)
    said = probe(path) if is_remote(path) else ""
    if limits is not None and not is_remote(path):
        limits.check_size(path.name, *_declared_size(path, driver, limits))
        _check_crs_text(path, driver)
    if driver == "GTiff" and not is_remote(path):
        _check_tail(path)
    try:
        with _opened(path, driver) as dataset, np.errstate(over="ignore"):
            if limits is not None:
                _check_blocks(path, dataset, limits)
            scene = _understand(path, driver, dataset, counts_packed=counts_packed)
            if not is_remote(path):
                return scene
            _refuse_grids(scene.name, scene.crs.to_wkt().encode() if scene.crs else b"")
            scene = replace(scene, version=fingerprint(said, dataset))
            if version not in (None, scene.version):
                raise _replaced(path)
            return scene
    except GDAL_ERRORS as error:
        if is_remote(path):
            raise _out_of_reach(path, error) from error
        raise SceneUnreadable(
            f"{path.name} cannot be read as {driver}: {_told(error, path)}; send {FORMATS}"
        ) from error
    except ValueError as error:  # numbers or letters in a header that are none
        raise SceneUnreadable(f"the header of {path.name} cannot be understood ({error}): mend it") from error


def scene_files(path: Path) -> list[Path]:
    """The files that make up a scene: one GeoTIFF, or ENVI data and header."""
    data, driver = _locate(path)
    header = _header_of(data) if driver == "ENVI" else None
    return [data] if header is None else [data, header]


def read_cube(scene: Scene, window: Window | None = None) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values (rows, cols, bands) in the scene's physical units, and which pixels (rows, cols) are valid.

    NaN stays in the values of invalid pixels, so that a caller can tell it from a declared no-data value.
    """
    with open_pixels(scene) as pixels:
        return pixels.read(window)


@contextmanager
def open_pixels(scene: Scene) -> Iterator[ScenePixels]:
    """The scene's pixels by window, from one open file; for one thread."""
    try:
        with _opened(scene.path, scene.driver) as dataset, _rows_kept(scene, dataset):
            yield ScenePixels(scene, dataset)
    except GDAL_ERRORS as error:
        if is_remote(scene.path):
            require_unchanged(scene)
            raise PlaceUnreachable(
                f"{address_of(scene.path)} could not be read to its end: its place fell silent, or the file is bad: "
                "check it, and send it again"
            ) from error
        raise SceneUnreadable(
            f"{scene.name} is cut short or damaged: {_told(error, scene.path)}; copy it again"
        ) from error


def require_unchanged(scene: Scene) -> None:
    """Refuse what was made of a scene in another place, if the file there has been replaced meanwhile."""
    if scene.version:
        open_scene(scene.path, version=scene.version)


def _replaced(path: Path) -> SceneUnreadable:
    return SceneUnreadable(f"{address_of(path)} was replaced since it was sent: send it again")


def _out_of_reach(path: Path, error: Exception) -> SceneUnreadable:
    """The refusal of a file in another place; GDAL's words may hold the whole address, secrets and all."""
    found = re.search(r"HTTP response code: \d+|not recognized as[^/]*format", str(error))
    reason = f" ({found[0]})" if found else ""
    return SceneUnreadable(
        f"{address_of(path)} cannot be read in place{reason}: it has to be a tiled GeoTIFF (a COG) that this server "
        "may read; check it, or upload the scene with POST /scenes"
    )


class ScenePixels:
    """An open scene; made by `open_pixels`."""

    def __init__(self, scene: Scene, dataset: Any) -> None:
        self._scene = scene
        self._dataset = dataset
        self._scales, self._offsets = scene.scales.astype(np.float32), scene.offsets.astype(np.float32)
        self._is_plain = bool((self._scales == 1).all() and (self._offsets == 0).all())

    def read(self, window: Window | None = None) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values (rows, cols, bands), and which pixels (rows, cols) are valid."""
        scene = self._scene
        raw = self._dataset.read(list(scene.bands), window=window)  # (bands, rows, cols)
        valid = ~_is_nodata(raw, scene.nodata)
        if scene.has_mask:
            valid &= self._dataset.dataset_mask(window=window) > 0
        cube = np.empty((*valid.shape, len(raw)), np.float32)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and so invalid
            self._fill(cube, raw)
        if raw.dtype.kind == "f":
            valid &= np.isfinite(cube).all(axis=-1)
        return cube, valid

    def spectrum(self, row: int, col: int) -> NDArray[np.float32]:
        """One pixel's values in every band; NaN where a band has no data, whatever the others have."""
        scene, window = self._scene, Window(col, row, 1, 1)
        raw = self._dataset.read(list(scene.bands), window=window)  # (bands, 1, 1)
        cube = np.empty((1, 1, len(raw)), np.float32)
        with np.errstate(over="ignore"):
            self._fill(cube, raw)
        missing = np.array([_is_nodata(raw[[place]], (value,))[0, 0] for place, value in enumerate(scene.nodata)])
        is_zero = np.array([value == 0 for value in scene.nodata])
        if not missing[is_zero].all():  # dark pixels hold real zeros
            missing &= ~is_zero
        if scene.has_mask and not self._dataset.dataset_mask(window=window)[0, 0]:
            missing[:] = True
        values: NDArray[np.float32] = np.where(missing | ~np.isfinite(cube[0, 0]), np.nan, cube[0, 0])
        return values

    def _fill(self, cube: NDArray[np.float32], raw: NDArray[Any]) -> None:
        for row in range(len(cube)):  # a row at a time stays in the cache while it is turned, converted and scaled
            cube[row] = raw[:, row].T
            if not self._is_plain:
                cube[row] *= self._scales
                cube[row] += self._offsets


@contextmanager
def _opened(path: Path, driver: str) -> Iterator[Any]:
    # Nothing beside a scene changes what is read: no .aux.xml (PAM), and for a TIFF no mask, overview or world file
    # either, since each of them may be a VRT that leads to other files. ENVI needs its folder to find the header.
    siblings = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"} if driver == "GTiff" else {}
    network = REMOTE_ENV if is_remote(path) else {}
    with rasterio.Env(GDAL_PAM_ENABLED="NO", GDAL_CACHEMAX=CACHE_BYTES, **siblings, **network):
        with unplaced_is_fine():
            dataset = rasterio.open(path, driver=driver)
        with dataset:
            yield dataset


@contextmanager
def _rows_kept(scene: Scene, dataset: Any) -> Iterator[None]:
    """Keep in memory what the next strip will read again, where it would have to come over a network."""
    if not is_remote(scene.path):
        yield
        return
    with rasterio.Env(GDAL_CACHEMAX=max(CACHE_BYTES, 2 * _row_of_blocks_bytes(dataset))):
        yield


def _row_of_blocks_bytes(dataset: Any) -> int:
    block_rows, block_cols = dataset.block_shapes[0]
    cols = -(-dataset.width // block_cols) * block_cols
    return int(block_rows * cols * dataset.count * np.dtype(dataset.dtypes[0]).itemsize)


def _told(error: Exception, path: Path) -> str:
    """GDAL's words without the folder, which is nobody's business."""
    return str(error).replace(f"{path.parent}/", "")


@contextmanager
def unplaced_is_fine() -> Iterator[None]:
    """Opens rasters without georeference in silence: the scene's own warnings tell of it."""
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield


def _is_nodata(raw: NDArray[Any], nodata: tuple[float | None, ...]) -> NDArray[np.bool_]:
    """Pixels without data: any band says so; where the value is 0, all do, since dark pixels hold real zeros."""
    any_band = np.zeros(raw.shape[1:], bool)
    zero_bands = [band for band, value in enumerate(nodata) if value == 0]
    for band, value in enumerate(nodata):
        if value is not None and value != 0 and not np.isnan(value):
            any_band |= raw[band] == value
    if zero_bands:
        any_band |= (raw[zero_bands] == 0).all(axis=0)
    return any_band


def _locate(path: Path) -> tuple[Path, str]:
    """The data file and the driver that its content asks for."""
    if is_remote(path):
        return path, "GTiff"
    try:
        if path.is_dir():
            raise SceneUnreadable(f"{path} is a folder: give the path of {FORMATS}")
        start = _start_of(path)
        if start in TIFF_MAGIC:
            return path, "GTiff"
        if start == b"ENVI":
            return _data_of(path), "ENVI"
        if _header_of(path) is not None:
            return path, "ENVI"
    except FileNotFoundError as error:
        raise SceneUnreadable(f"there is no file {path}: give the path of {FORMATS}") from error
    except OSError as error:
        raise SceneUnreadable(f"{path} cannot be read ({error.strerror}): check its name and permissions") from error
    if path.suffix.lower() in ENVI_SUFFIXES:
        raise SceneIncomplete(f"{path.name} has no ENVI header beside it: add {path.with_suffix('.hdr').name}")
    raise SceneUnreadable(f"{path.name} is neither GeoTIFF nor ENVI: send {FORMATS}")


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _header_of(path: Path) -> Path | None:
    """The header that GDAL takes for a data file: named after its stem, or after all of its name."""
    names = (path.stem + ".hdr", path.stem + ".HDR", path.name + ".hdr", path.name + ".HDR")
    for header in map(path.with_name, names):
        if header.is_file() and _start_of(header) == b"ENVI":
            return header
    return None


def _data_of(header: Path) -> Path:
    """The data file beside a header; one that belongs to another header does not count."""
    stem = header.name[: -len(header.suffix)] if header.suffix else header.name
    names = {stem.lower(), *(stem.lower() + suffix for suffix in ENVI_SUFFIXES)}
    for candidate in sorted(header.parent.iterdir()):
        is_named_so = candidate.name.lower() in names and candidate != header
        if is_named_so and candidate.is_file() and _header_of(candidate) == header:
            return candidate
    raise SceneIncomplete(f"{header.name} is an ENVI header without its data: add {stem}.img")


def _understand(path: Path, driver: str, dataset: Any, *, counts_packed: bool) -> Scene:
    name = _name_of(path)
    dtype = str(dataset.dtypes[0])
    if any(kind not in DTYPES for kind in dataset.dtypes):
        raise DtypeUnsupported(f"{name} holds {dtype} samples; real numbers are needed: {', '.join(DTYPES)}")
    # ENVI's keys may be in capitals, which GDAL reads and leaves as they are.
    header = {key.lower(): text for key, text in dataset.tags(ns="ENVI").items()} if driver == "ENVI" else {}
    if driver == "ENVI":
        _check_size(path, dataset, header, counts_packed=counts_packed)
    # GDAL takes the fourth of four byte bands for their alpha, which a band with a wavelength is not.
    masks = [
        band
        for band, meaning in zip(dataset.indexes, dataset.colorinterp, strict=True)
        if meaning == ColorInterp.alpha and "wavelength" not in dataset.tags(band)
    ]
    candidates = [band for band in dataset.indexes if band not in masks]
    has_own_mask = MaskFlags.per_dataset in dataset.mask_flag_enums[0]
    has_alpha = MaskFlags.alpha in dataset.mask_flag_enums[0]
    listed = {key: _listed(dataset, header, key) for key in ("bbl", "wavelength", "fwhm")}
    warnings = [
        f"{key} lists {len(numbers)} values for {dataset.count} bands and was ignored"
        for key, numbers in listed.items()
        if numbers and len(numbers) != dataset.count
    ]
    bad_flags = listed["bbl"] if len(listed["bbl"]) == dataset.count else [1.0] * dataset.count
    good = [band for band in candidates if bad_flags[band - 1]]
    if not candidates:
        raise SceneUnreadable(f"{name} holds a mask and no band: send {FORMATS}")
    if not good:
        raise SceneUnreadable(f"the header of {name} marks every band as bad (bbl): mend it")
    wavelengths_nm, fwhm_nm = _wavelengths(dataset, header, listed["fwhm"], good)
    factor = _reflectance_factor(header)
    if not np.isfinite(list(dataset.transform)).all():
        raise SceneUnreadable(f"the georeference of {name} holds numbers that are none: mend it, or remove it")
    gcps, gcps_crs = dataset.gcps
    crs = dataset.crs or gcps_crs
    if not gcps and dataset.transform == Affine.identity():
        warnings.append("the scene has no georeference, so its map has none")
    elif crs is None:
        warnings.append("the scene has no coordinate reference system; its transform is kept")
    return Scene(
        path=path,
        name=name,
        driver=driver,
        rows=dataset.height,
        cols=dataset.width,
        dtype=dtype,
        bands=tuple(good),
        bad_bands=len(candidates) - len(good),
        wavelengths_nm=wavelengths_nm,
        fwhm_nm=fwhm_nm,
        scales=np.array([dataset.scales[band - 1] for band in good]) / factor,
        offsets=np.array([dataset.offsets[band - 1] for band in good]) / factor,
        nodata=tuple(dataset.nodatavals[band - 1] for band in good),
        has_mask=has_own_mask and (bool(masks) or not has_alpha),
        crs=crs,
        transform=dataset.transform,
        gcps=tuple(gcps),
        warnings=tuple(warnings),
    )


def _name_of(path: Path) -> str:
    return address_of(path).rsplit("/", 1)[-1] if is_remote(path) else path.name


def _declared_size(path: Path, driver: str, limits: Limits) -> tuple[int, int, int]:
    """Rows, columns and bands as the file's own header has them, without GDAL."""
    if driver == "GTiff":
        return declared_size(path)
    header = _header_of(path)
    if header is None or header.stat().st_size > limits.header_bytes:
        raise SceneTooLarge(f"the header of {path.name} is longer than {limits.header_bytes} bytes: shorten it")
    text = header.read_bytes()
    if text.count(b"=") > HEADER_KEYS:
        raise SceneTooLarge(f"the header of {path.name} has more than {HEADER_KEYS} keys: shorten it")
    # Keys may be in capitals or stand there twice, and lines may end with a carriage return alone: the largest counts.
    numbers = {b"lines": 0, b"samples": 0, b"bands": 0}
    for key, digits in re.findall(rb"(?i)[\r\n][ \t]*(samples|lines|bands)[ \t]*=[ \t]*(\d+)", text):
        numbers[key.lower()] = max(numbers[key.lower()], int(digits[:18]))
    rows, cols, bands = numbers.values()
    return rows, cols, bands


def _check_crs_text(path: Path, driver: str) -> None:
    """PROJ opens the grids that a reference system names, as soon as it is parsed; a sender's paths stay closed."""
    if driver == "GTiff":
        text = reference_text(path)
    else:
        header = _header_of(path)
        content = header.read_bytes() if header is not None else b""
        text = b"".join(re.findall(rb"(?i)coordinate[ _]+system[ _]+string\s*=([^}]*)", content))
    _refuse_grids(path.name, text)


def _refuse_grids(name: str, text: bytes) -> None:
    # Web Mercator has a slash in its name, and says that it needs no grid.
    text = re.sub(rb"\s", b"", re.sub(rb"nadgrids=@null(?=[\s\"])", b"", text))
    if re.search(rb"(?i)PROJ4_GRIDS|PARAMETERFILE|(grids|file|init|model)=", text) and re.search(rb"[/\\]", text):
        raise SceneUnreadable(
            f"the coordinate reference system of {name} names a grid file by its path, and only what was sent "
            "is read: write it without the grid"
        )


def _check_blocks(path: Path, dataset: Any, limits: Limits) -> None:
    name = _name_of(path)
    limits.check_size(name, dataset.height, dataset.width, dataset.count)
    item_bytes = max(np.dtype(kind).itemsize if kind in DTYPES else 16 for kind in dataset.dtypes)
    block_rows, block_cols = dataset.block_shapes[0]
    is_pixel = dataset.interleaving is not None and dataset.interleaving.value == "PIXEL"
    unpacked_bytes = dataset.height * dataset.width * dataset.count * item_bytes
    block_bytes = block_rows * block_cols * item_bytes * (dataset.count if is_pixel else 1)
    if is_remote(path):
        _check_remote(name, dataset)
    elif dataset.driver == "GTiff":  # GDAL may speak of single rows where it has to unpack a whole strip to get at them
        block_bytes = max(block_bytes, packed_strip_bytes(path))
    limits.check_unpacked(name, unpacked_bytes, block_bytes)
    limits.check_row(name, dataset.width, dataset.count)


def _check_remote(name: str, dataset: Any) -> None:
    """Refuse what could not be read in place about once."""
    block_rows, block_cols = dataset.block_shapes[0]
    if block_rows % 16 or block_cols % 16:  # as TIFF's tiles never have
        raise SceneUnreadable(f"{name} is not tiled, so it is not read in place: write it as COG, or upload it")
    if _row_of_blocks_bytes(dataset) > REMOTE_ROW_BYTES:
        raise SceneTooLarge(
            f"a row of {name}'s blocks is {_row_of_blocks_bytes(dataset) >> 20} MB; of a scene that is read in place "
            f"at most {REMOTE_ROW_BYTES >> 20} MB are accepted: write it with BLOCKSIZE=128, or upload it"
        )


def _check_size(path: Path, dataset: Any, header: dict[str, str], *, counts_packed: bool) -> None:
    """GDAL reads zeros where an ENVI file ends too early; count its bytes instead."""
    item_bytes = np.dtype(dataset.dtypes[0]).itemsize
    expected = int(header.get("header_offset", "0")) + dataset.width * dataset.height * dataset.count * item_bytes
    is_packed = header.get("file_compression", "0").strip() == "1"
    if is_packed and not counts_packed:
        return
    found = _unpacked_bytes(path, expected) if is_packed else path.stat().st_size
    if found < expected:
        raise SceneUnreadable(f"{path.name} is cut short: {found} bytes of {expected}; copy it again")


def _unpacked_bytes(path: Path, enough: int) -> int:
    """How many bytes a gzip file holds, counted until there are enough; what is cut or damaged does not count."""
    found = 0
    with gzip.open(path) as file:
        try:
            while found < enough and (part := file.read(1 << 20)):
                found += len(part)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return found
    return found


def _check_tail(path: Path) -> None:
    """GDAL opens a TIFF that was cut, and may miss its tags without a word; compare its length with its directories."""
    found, expected = path.stat().st_size, expected_bytes(path)
    if expected > found:
        raise SceneUnreadable(f"{path.name} is cut short: {found} bytes of {expected}; copy it again")


def _listed(dataset: Any, header: dict[str, str], name: str) -> list[float]:
    return parse_list(header.get(name) or dataset.tags().get(name) or "")


def _wavelengths(
    dataset: Any, header: dict[str, str], fwhm: list[float], good: list[int]
) -> tuple[Wavelengths | None, Wavelengths | None]:
    """Band tags are exact; GDAL's IMAGERY domain is rounded to 1 nm; band names come last."""
    tags = [dataset.tags(band) for band in good]
    imagery = [dataset.tags(band, ns="IMAGERY") for band in good]
    unit = tags[0].get("wavelength_units") or header.get("wavelength_units")  # GDAL drops `Index` from the tags
    fwhm_nm = None
    if all("FWHM_UM" in tag for tag in imagery):
        fwhm_nm = to_nm([float(tag["FWHM_UM"]) for tag in imagery], "um")
    if len(fwhm) == dataset.count:
        guessed = "nm" if max(fwhm) > 1 else "um"  # no band is 1 um wide, and none as narrow as 1 nm in um
        fwhm_nm = to_nm([fwhm[band - 1] for band in good], unit if unit_in_nm(unit) else guessed)
    if tags and all(_is_number(tag.get("wavelength")) for tag in tags):
        return to_nm([float(tag["wavelength"]) for tag in tags], unit), fwhm_nm
    if imagery and all("CENTRAL_WAVELENGTH_UM" in tag for tag in imagery):
        return to_nm([float(tag["CENTRAL_WAVELENGTH_UM"]) for tag in imagery], "um"), fwhm_nm
    return from_band_names([dataset.descriptions[band - 1] for band in good]), fwhm_nm


def _is_number(text: str | None) -> bool:
    return bool(text and re.fullmatch(r"\s*(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*", text))


def _reflectance_factor(header: dict[str, str]) -> float:
    text = header.get("reflectance_scale_factor")
    return float(text) if _is_number(text) and text is not None and float(text) > 0 else 1.0
