"""EnMAP L2A, L1C and L1B: GeoTIFFs with METADATA.XML beside them.

Layout: the EnMAP product specification (EN-PCV-ICD-2009), DLR's test data, and the importers of EnMAP-Box.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS

from hyperscene.errors import SceneIncomplete, SceneUnreadable
from hyperscene.service.mapping.products.metadata_xml import numbers_of, read_xml, text_of
from hyperscene.service.mapping.products.product import (
    MaskLayer,
    Numbers,
    Product,
    RasterImage,
    overlapping_bands,
)

METADATA = re.compile(r"(?P<stem>ENMAP.+-____(?P<level>L1B|L1C|L2A)-.+)-METADATA\.XML", re.IGNORECASE)
IMAGE = re.compile(r"(?P<stem>ENMAP.+-____L(1B|1C|2A)-.+)-SPECTRAL_IMAGE(_VNIR|_SWIR)?(_COG)?\.(TIFF?|GEOTIFF)", re.I)
NAMES = re.compile(r"ENMAP.+-(METADATA\.XML|SPECTRAL_IMAGE.*)", re.IGNORECASE)
EMPTY_MEAN = -1e6  # with a deviation of 0 in the band statistics
# Quality layers, and the values that mask a pixel. Cirrus has three degrees.
LAYERS = {"cloud": ("CLOUD", (1,)), "shadow": ("CLOUDSHADOW", (1,)), "cirrus": ("CIRRUS", (1, 2, 3)),
          "haze": ("HAZE", (1,)), "snow": ("SNOW", (1,)), "water": ("CLASSES", (2,))}  # fmt: skip
UNITS = {"L2A": "reflectance", "L1C": "W/(m2 sr nm)", "L1B": "W/(m2 sr nm)"}
FRAMES = ("upper_left", "upper_right", "lower_right", "lower_left")


def key_of(path: Path, siblings: Sequence[Path]) -> Path | None:
    """The METADATA.XML of the product that a file belongs to."""
    if METADATA.fullmatch(path.name):
        return path
    found = IMAGE.fullmatch(path.name)
    if found is None:
        return None
    wanted = f"{found['stem']}-METADATA.XML".upper()
    return next((file for file in siblings if file.name.upper() == wanted), None)


def describe(metadata: Path, siblings: Sequence[Path]) -> Product:
    """The product of a METADATA.XML."""
    found = METADATA.fullmatch(metadata.name)
    assert found is not None
    stem, level, root = found["stem"], found["level"].upper(), read_xml(metadata)
    bands = "specific/bandCharacterisation/bandID"
    wavelengths_nm, fwhm_nm, gains, offsets = (
        np.array(numbers_of(root, f"{bands}/{name}", metadata.name))
        for name in ("wavelengthCenterOfBand", "FWHMOfBand", "GainOfBand", "OffsetOfBand")
    )
    if not len(wavelengths_nm) or len({len(wavelengths_nm), len(fwhm_nm), len(gains), len(offsets)}) != 1:
        raise SceneUnreadable(f"{metadata.name} does not list wavelength, width, gain and offset of each band")
    dropped = _dropped(root, wavelengths_nm, metadata.name)
    if level == "L1B":  # its images have the bands by detector, the metadata may have them by wavelength
        order = np.array([band - 1 for name in ("vnir", "swir") for band in _expected(root, name, metadata.name)], int)
        if sorted(order) != list(range(len(wavelengths_nm))):
            raise SceneUnreadable(f"{metadata.name} does not name the bands of both detectors: copy it again")
        wavelengths_nm, fwhm_nm, gains, offsets = (
            values[order] for values in (wavelengths_nm, fwhm_nm, gains, offsets)
        )
        dropped = {place + 1: dropped[band + 1] for place, band in enumerate(order.tolist()) if band + 1 in dropped}
    images = _images(stem, level, metadata, siblings)
    gcps = _corners(root, metadata.name) if level == "L1B" else ()
    return Product(
        sensor="EnMAP",
        level=level,
        name=stem,
        image=RasterImage(images, "GTiff", _counts(root, len(wavelengths_nm), metadata.name) if level == "L1B" else ()),
        acquired=text_of(root, "base/temporalCoverage/startTime"),
        unit=UNITS[level],
        wavelengths_nm=wavelengths_nm,
        fwhm_nm=fwhm_nm,
        scales=gains,
        offsets=offsets,
        dropped=dropped,
        masks=_masks(stem, siblings) if level != "L1B" else (),
        gcps=gcps,
        crs=CRS.from_epsg(4326) if gcps else None,
    )


def _images(stem: str, level: str, metadata: Path, siblings: Sequence[Path]) -> tuple[Path, ...]:
    parts = ("_VNIR", "_SWIR") if level == "L1B" else ("",)
    images = []
    for part in parts:
        wanted = re.compile(re.escape(f"{stem}-SPECTRAL_IMAGE{part}") + r"(_COG)?\.(TIFF?|GEOTIFF)", re.IGNORECASE)
        image = next((file for file in siblings if wanted.fullmatch(file.name)), None)
        if image is None:
            raise SceneIncomplete(
                f"{metadata.name} lacks its image: add {stem}-SPECTRAL_IMAGE{part}.TIF, or order the product as GeoTIFF"
            )
        images.append(image)
    return tuple(images)


def _counts(root: Element, bands: int, name: str) -> tuple[int, int]:
    """The bands of the VNIR and the SWIR image."""
    vnir = len(_expected(root, "vnir", name))
    return vnir, bands - vnir


def _dropped(root: Element, wavelengths_nm: Numbers, name: str) -> dict[int, str]:
    """Empty bands by the statistics, and the overlap of both detectors."""
    swir = _expected(root, "swir", name)
    is_swir = np.isin(np.arange(1, len(wavelengths_nm) + 1), swir)
    means = numbers_of(root, "product/bandStatistics/bandID/mean", name)
    deviations = numbers_of(root, "product/bandStatistics/bandID/stdDeviation", name)
    empty = {
        band: "empty"
        for band, (mean, deviation) in enumerate(zip(means, deviations, strict=False), start=1)
        if mean == EMPTY_MEAN and deviation == 0
    }
    # An empty band of the SWIR cannot stand for the VNIR.
    is_swir &= ~np.isin(np.arange(1, len(wavelengths_nm) + 1), list(empty))
    return overlapping_bands(wavelengths_nm, is_swir) | empty


def _expected(root: Element, detector: str, name: str) -> list[int]:
    """The numbers of a detector's bands."""
    path = f"specific/{detector}ProductQuality/expectedChannelsList"
    try:
        return [int(part) for part in text_of(root, path).split(",") if part.strip()]
    except ValueError as error:
        raise SceneUnreadable(f"{path} of {name} is no list of bands ({error}): copy the product again") from error


def _masks(stem: str, siblings: Sequence[Path]) -> tuple[MaskLayer, ...]:
    files = {re.sub(r"(_COG)?\.(TIFF?|GEOTIFF)$", "", file.name.upper()): file for file in siblings}
    found = {kind: files.get(f"{stem}-QL_QUALITY_{name}".upper()) for kind, (name, _) in LAYERS.items()}
    return tuple(
        MaskLayer(kind, file, values=LAYERS[kind][1])  # type: ignore[arg-type]
        for kind, file in found.items()
        if file is not None
    )


def _corners(root: Element, name: str) -> tuple[GroundControlPoint, ...]:
    """The four corners of a scene in sensor geometry, as ground control points at the outer edges of its pixels."""
    rows, cols = (numbers_of(root, f"product/image/vnir/dimension/{side}", name)[:1] for side in ("rows", "columns"))
    corners = {}
    for point in root.findall("base/spatialCoverage/boundingPolygon/point"):
        values = [numbers_of(point, side, name) for side in ("longitude", "latitude")]
        if all(values):
            corners[text_of(point, "frame")] = [found[0] for found in values]
    if not (rows and cols) or not all(frame in corners for frame in FRAMES):
        return ()
    places = zip(FRAMES, ((0.0, 0.0), (0.0, cols[0]), (rows[0], cols[0]), (rows[0], 0.0)), strict=True)
    return tuple(GroundControlPoint(row, col, *corners[frame]) for frame, (row, col) in places)
