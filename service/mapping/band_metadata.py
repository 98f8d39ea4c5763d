"""Metadata of a scene's bands: which are good, their wavelengths, scales and masks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rasterio.enums import ColorInterp, MaskFlags

from hyperscene.errors import SceneUnreadable
from hyperscene.model.spectra import Wavelengths, from_band_names, parse_list, to_nm, unit_in_nm
from hyperscene.service.mapping.gdal import envi_header
from hyperscene.service.mapping.products.product import DroppedBand, Product
from hyperscene.service.mapping.scene_files import FORMATS

MARKED_BAD = "marked bad (bbl)"


@dataclass(frozen=True)
class BandMetadata:
    """The good bands of a file."""

    bands: tuple[int, ...]  # GDAL's band numbers, from 1
    dropped: tuple[DroppedBand, ...]
    wavelengths_nm: Wavelengths | None
    fwhm_nm: Wavelengths | None
    scale_factor: float  # divides all values
    has_mask: bool
    warnings: tuple[str, ...]


def read_band_metadata(name: str, dataset: Any, product: Product | None = None) -> BandMetadata:
    """Read the metadata of an open file, or of its product; refuses one without a good band."""
    header = envi_header(dataset)
    alphas = _alpha_bands(dataset)
    candidates = [band for band in dataset.indexes if band not in alphas]
    if not candidates:
        raise SceneUnreadable(f"{name} holds a mask and no band: send {FORMATS}")
    lists = {key: _list_of(dataset, header, key) for key in ("bbl", "wavelength", "fwhm")}
    reasons = _marked_bad(dataset, candidates, lists["bbl"]) | dict(product.dropped if product else {})
    good = [band for band in candidates if band not in reasons]
    if not good:
        raise SceneUnreadable(f"the header of {name} marks every band as bad (bbl): correct it")
    # GDAL drops the unit `Index` from the tags.
    unit = dataset.tags(good[0]).get("wavelength_units") or header.get("wavelength_units")
    if product is not None and product.wavelengths_nm is not None:
        every: Wavelengths | None = product.wavelengths_nm
        fwhm = product.fwhm_nm
    else:
        every, fwhm = _wavelengths(dataset, candidates, unit), _fwhm(dataset, candidates, unit, lists["fwhm"])
    places = {band: place for place, band in enumerate(candidates)}
    if every is None:  # some bad bands have no wavelength
        every, fwhm = _wavelengths(dataset, good, unit), _fwhm(dataset, good, unit, lists["fwhm"])
        places = {band: place for place, band in enumerate(good)}
    return BandMetadata(
        bands=tuple(good),
        dropped=tuple(
            DroppedBand(band, None if every is None or band not in places else float(every[places[band]]), reason)
            for band, reason in sorted(reasons.items())
        ),
        wavelengths_nm=None if every is None else every[[places[band] for band in good]],
        fwhm_nm=None if fwhm is None else fwhm[[places[band] for band in good]],
        scale_factor=1.0 if product is not None and product.scales is not None else _reflectance_factor(header),
        has_mask=_has_mask(dataset, alphas),
        warnings=tuple(
            f"{key} lists {len(numbers)} values for {dataset.count} bands and was ignored"
            for key, numbers in lists.items()
            if numbers and len(numbers) != dataset.count
        ),
    )


def _marked_bad(dataset: Any, candidates: list[int], flags: list[float]) -> dict[int, str]:
    """Bands that a list `bbl`, or a tag `bbl` of the band itself, marks as bad."""
    if len(flags) != dataset.count:
        tags = [dataset.tags(band).get("bbl") for band in range(1, dataset.count + 1)]
        flags = [float(tag) if tag is not None and _is_number(tag) else 1.0 for tag in tags]
    return {band: MARKED_BAD for band in candidates if not flags[band - 1]}


def _alpha_bands(dataset: Any) -> list[int]:
    """Alpha bands; GDAL also reports the last of four byte bands as alpha, which is wrong if it has a wavelength."""
    return [
        band
        for band, meaning in zip(dataset.indexes, dataset.colorinterp, strict=True)
        if meaning == ColorInterp.alpha and "wavelength" not in dataset.tags(band)
    ]


def _has_mask(dataset: Any, alphas: list[int]) -> bool:
    flags = dataset.mask_flag_enums[0]
    return MaskFlags.per_dataset in flags and (bool(alphas) or MaskFlags.alpha not in flags)


def _list_of(dataset: Any, header: dict[str, str], key: str) -> list[float]:
    return parse_list(header.get(key) or dataset.tags().get(key) or "")


def _wavelengths(dataset: Any, good: list[int], unit: str | None) -> Wavelengths | None:
    """From band tags, which are exact; else from GDAL's IMAGERY domain, rounded to 1 nm; else from band names."""
    tags = [dataset.tags(band) for band in good]
    if all(_is_number(tag.get("wavelength")) for tag in tags):
        return to_nm([float(tag["wavelength"]) for tag in tags], unit)
    imagery = [dataset.tags(band, ns="IMAGERY") for band in good]
    if all("CENTRAL_WAVELENGTH_UM" in tag for tag in imagery):
        return to_nm([float(tag["CENTRAL_WAVELENGTH_UM"]) for tag in imagery], "um")
    return from_band_names([dataset.descriptions[band - 1] for band in good])


def _fwhm(dataset: Any, good: list[int], unit: str | None, listed: list[float]) -> Wavelengths | None:
    """Band widths (full width at half maximum) from the header's list, else from GDAL's IMAGERY domain."""
    if len(listed) == dataset.count:
        guessed = "nm" if max(listed) > 1 else "um"  # no band is 1 um wide, and some are wider than 1 nm
        return to_nm([listed[band - 1] for band in good], unit if unit_in_nm(unit) else guessed)
    imagery = [dataset.tags(band, ns="IMAGERY") for band in good]
    if all("FWHM_UM" in tag for tag in imagery):
        return to_nm([float(tag["FWHM_UM"]) for tag in imagery], "um")
    return None


def _is_number(text: str | None) -> bool:
    return bool(text and re.fullmatch(r"\s*(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*", text))


def _reflectance_factor(header: dict[str, str]) -> float:
    text = header.get("reflectance_scale_factor")
    return float(text) if _is_number(text) and text is not None and float(text) > 0 else 1.0  # may be infinite
