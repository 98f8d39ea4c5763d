"""Scenes on disk: what is understood of a GeoTIFF or ENVI file, and its pixels by window."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import RasterioError
from rasterio.transform import Affine
from rasterio.windows import Window

from model.spectra import Wavelengths, from_band_names, parse_list, to_nm, unit_in_nm
from service.errors import DtypeUnsupported, SceneIncomplete, SceneUnreadable

TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # classic and BigTIFF, both byte orders
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
ENVI_ITEM_BYTES = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 9: 16, 12: 2, 13: 4, 14: 8, 15: 8}
FORMATS = "GeoTIFF, or ENVI (a data file and its .hdr)"


@dataclass(frozen=True)
class Scene:
    """A scene that was opened and found sound; bands are the good ones only."""

    path: Path
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
    warnings: tuple[str, ...]

    @property
    def is_georeferenced(self) -> bool:
        return self.crs is not None or self.transform != Affine.identity()


def open_scene(path: Path) -> Scene:
    """Understand a scene, or refuse it."""
    path, driver = _locate(path)
    try:
        with rasterio.open(path, driver=driver) as dataset:
            return _understand(path, driver, dataset)
    except RasterioError as error:
        raise SceneUnreadable(f"{path.name} cannot be read as {driver}: {error}; send {FORMATS}") from error
    except ValueError as error:  # numbers or letters in a header that are none
        raise SceneUnreadable(f"the header of {path.name} cannot be understood ({error}): mend it") from error


def read_cube(scene: Scene, window: Window | None = None) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values (rows, cols, bands) in the scene's physical units, and which pixels (rows, cols) are valid.

    NaN stays in the values of invalid pixels, so that a caller can tell it from a declared no-data value.
    """
    try:
        with rasterio.open(scene.path, driver=scene.driver) as dataset:
            raw = dataset.read(list(scene.bands), window=window)  # (bands, rows, cols)
            valid = np.ones(raw.shape[1:], bool)
            if scene.has_mask:
                valid &= dataset.dataset_mask(window=window) > 0
    except RasterioError as error:
        raise SceneUnreadable(f"{scene.path.name} is cut short or damaged: {error}; copy it again") from error
    valid &= ~_is_nodata(raw, scene.nodata)
    cube = raw.astype(np.float32, copy=False)
    for band, (scale, offset) in enumerate(zip(scene.scales, scene.offsets, strict=True)):
        if (scale, offset) != (1, 0):
            cube[band] = cube[band] * scale + offset
    valid &= np.isfinite(cube).all(axis=0)
    return np.ascontiguousarray(np.moveaxis(cube, 0, -1)), valid


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
    if not path.is_file():
        raise SceneUnreadable(f"there is no file {path}: give the path of {FORMATS}")
    with path.open("rb") as file:
        start = file.read(8)
    if start[:4] in TIFF_MAGIC:
        return path, "GTiff"
    if start[:4] == b"ENVI":
        return _data_of(path), "ENVI"
    if _header_of(path) is not None:
        return path, "ENVI"
    if path.suffix.lower() in (".img", ".bsq", ".bil", ".bip", ".dat", ".raw"):
        raise SceneIncomplete(f"{path.name} has no ENVI header beside it: add {path.with_suffix('.hdr').name}")
    raise SceneUnreadable(f"{path.name} is neither: send {FORMATS}")


def _header_of(path: Path) -> Path | None:
    names = (path.stem + ".hdr", path.stem + ".HDR", path.name + ".hdr", path.name + ".HDR")
    for header in map(path.with_name, names):
        if header.is_file() and header.read_bytes()[:4] == b"ENVI":
            return header
    return None


def _data_of(header: Path) -> Path:
    stem = header.with_suffix("")
    candidates = [stem, *(stem.with_suffix(suffix) for suffix in (".img", ".bsq", ".bil", ".bip", ".dat", ".raw"))]
    for candidate in candidates:
        if candidate.is_file() and candidate != header:
            return candidate
    raise SceneIncomplete(f"{header.name} is an ENVI header without its data: add {stem.with_suffix('.img').name}")


def _understand(path: Path, driver: str, dataset: Any) -> Scene:
    dtype = str(dataset.dtypes[0])
    if any(kind not in DTYPES for kind in dataset.dtypes):
        raise DtypeUnsupported(f"{path.name} holds {dtype} samples; real numbers are needed: {', '.join(DTYPES)}")
    header = dataset.tags(ns="ENVI") if driver == "ENVI" else {}
    if driver == "ENVI":
        _check_size(path, dataset, header)
    colors = dataset.colorinterp
    candidates = [band for band in dataset.indexes if colors[band - 1] != ColorInterp.alpha]
    listed = {name: _listed(dataset, header, name) for name in ("bbl", "wavelength", "fwhm")}
    warnings = [
        f"{name} lists {len(numbers)} values for {dataset.count} bands and was ignored"
        for name, numbers in listed.items()
        if numbers and len(numbers) != dataset.count
    ]
    bad_flags = listed["bbl"] if len(listed["bbl"]) == dataset.count else [1.0] * dataset.count
    good = [band for band in candidates if bad_flags[band - 1]]
    if not good:
        raise SceneUnreadable(f"the header of {path.name} marks every band as bad (bbl): mend it")
    wavelengths_nm, fwhm_nm = _wavelengths(dataset, listed["fwhm"], good)
    factor = _reflectance_factor(header)
    return Scene(
        path=path,
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
        has_mask=MaskFlags.per_dataset in dataset.mask_flag_enums[0],
        crs=dataset.crs,
        transform=dataset.transform,
        warnings=tuple(warnings),
    )


def _check_size(path: Path, dataset: Any, header: dict[str, str]) -> None:
    """GDAL reads zeros where an ENVI file ends too early; count its bytes instead."""
    if header.get("file_compression", "0").strip() == "1":
        return
    item_bytes = ENVI_ITEM_BYTES[int(header["data_type"])]
    expected = int(header.get("header_offset", "0")) + dataset.width * dataset.height * dataset.count * item_bytes
    found = path.stat().st_size
    if found < expected:
        raise SceneUnreadable(f"{path.name} is cut short: {found} bytes of {expected}; copy it again")


def _listed(dataset: Any, header: dict[str, str], name: str) -> list[float]:
    return parse_list(header.get(name) or dataset.tags().get(name) or "")


def _wavelengths(dataset: Any, fwhm: list[float], good: list[int]) -> tuple[Wavelengths | None, Wavelengths | None]:
    """Band tags are exact; GDAL's IMAGERY domain is rounded to 1 nm; band names come last."""
    tags = [dataset.tags(band) for band in good]
    imagery = [dataset.tags(band, ns="IMAGERY") for band in good]
    unit = tags[0].get("wavelength_units") if tags else None
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
