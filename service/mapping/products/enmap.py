"""EnMAP L2A, L1C and L1B: rasters with METADATA.XML beside them.

Layout: the EnMAP product specification (EN-PCV-ICD-2009), DLR's test data in the EnMAP reader of SNAP, the importers of
EnMAP-Box, and EnPT for the geometry of L1B.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from hyperscene.errors import SceneIncomplete, SceneUnreadable
from hyperscene.service.mapping.gdal import JPEG_2000
from hyperscene.service.mapping.products.metadata_xml import numbers_of, read_xml, text_of
from hyperscene.service.mapping.products.product import (
    BandFlags,
    MaskKind,
    MaskLayer,
    Numbers,
    Plane,
    Product,
    RasterImage,
    RationalFunctions,
    overlapping_bands,
)
from hyperscene.service.mapping.products.rational import functions_of_corners, image_positions, read_functions
from hyperscene.service.mapping.scene_files import JPEG_2000_MAGIC, TIFF_MAGIC, header_of

# Users order the images as GeoTIFF, JPEG 2000, or BSQ, BIL or BIP with a header.
RASTER = r"(_COG)?\.(TIFF?|GEOTIFF|JP2|JPEG2000|BSQ|BIL|BIP)"
METADATA = re.compile(r"(?P<stem>ENMAP.+-____(?P<level>L1B|L1C|L2A)-.+)-METADATA\.XML", re.IGNORECASE)
IMAGE = re.compile(rf"(?P<stem>ENMAP.+-____L(1B|1C|2A)-.+)-SPECTRAL_IMAGE(_VNIR|_SWIR)?({RASTER}|\.HDR)", re.IGNORECASE)
NAMES = re.compile(r"ENMAP.+-(METADATA\.XML|SPECTRAL_IMAGE.*)", re.IGNORECASE)
ENVI = (".BSQ", ".BIL", ".BIP")
EMPTY_MEAN = -1e6  # with a deviation of 0 in the band statistics
# Quality layers, and the values that mask a pixel. Cirrus has three degrees.
LAYERS: dict[MaskKind, tuple[str, tuple[int, ...]]] = {
    "cloud": ("CLOUD", (1,)), "shadow": ("CLOUDSHADOW", (1,)), "cirrus": ("CIRRUS", (1, 2, 3)),
    "haze": ("HAZE", (1,)), "snow": ("SNOW", (1,)), "water": ("CLASSES", (2,)),
}  # fmt: skip
SATURATED_BITS = 16 | 32  # of the test flags: in the SWIR, in the VNIR
DEFECTIVE = (1,)  # of the pixel masks, which have a band for each band of the image
UNITS = {"L2A": "reflectance", "L1C": "W/(m2 sr nm)", "L1B": "W/(m2 sr nm)"}
DETECTORS = ("VNIR", "SWIR")
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


def lacking_metadata(path: Path) -> str:
    """What an image without METADATA.XML lacks; nothing for other files."""
    found = IMAGE.fullmatch(path.name)
    return f"{path.name} lacks its metadata: add {found['stem']}-METADATA.XML" if found is not None else ""


def describe(metadata: Path, siblings: Sequence[Path]) -> Product:
    """The product of a METADATA.XML."""
    found = METADATA.fullmatch(metadata.name)
    assert found is not None
    root = read_xml(metadata)
    files = _Files(metadata, found["stem"], siblings)
    is_l1b = (level := found["level"].upper()) == "L1B"
    bands = _read_bands(root, metadata.name, is_by_detector=is_l1b)
    counts = (int((~bands.is_swir).sum()), int(bands.is_swir.sum())) if is_l1b else ()
    ground, firsts = _ground(root, metadata.name, counts) if is_l1b else (None, ())
    paths = files.images(DETECTORS if is_l1b else ("",))
    background = numbers_of(root, "specific/backgroundValue", metadata.name)
    return Product(
        sensor="EnMAP",
        level=level,
        name=files.stem,
        image=RasterImage(paths, _driver_of(paths[0]), counts, firsts),
        acquired=text_of(root, "base/temporalCoverage/startTime"),
        unit=UNITS[level],
        wavelengths_nm=bands.wavelengths_nm,
        fwhm_nm=bands.fwhm_nm,
        scales=bands.gains,
        offsets=bands.offsets,
        dropped=bands.dropped,
        masks=files.masks(counts, firsts),
        nodata=background[0] if background else None,
        ground=ground,
    )


@dataclass(frozen=True)
class _Bands:
    wavelengths_nm: Numbers
    fwhm_nm: Numbers
    gains: Numbers
    offsets: Numbers
    is_swir: np.ndarray
    dropped: dict[int, str]


def _read_bands(root: Element, name: str, *, is_by_detector: bool) -> _Bands:
    """The bands in the order of the image, or of the images of both detectors."""
    bands = "specific/bandCharacterisation/bandID"
    nm, fwhm, gains, offsets = (
        np.array(numbers_of(root, f"{bands}/{tag}", name))
        for tag in ("wavelengthCenterOfBand", "FWHMOfBand", "GainOfBand", "OffsetOfBand")
    )
    if not len(nm) or len({len(nm), len(fwhm), len(gains), len(offsets)}) != 1:
        raise SceneUnreadable(f"{name} does not list wavelength, width, gain and offset of each band")
    means, deviations = (
        numbers_of(root, f"product/bandStatistics/bandID/{tag}", name) for tag in ("mean", "stdDeviation")
    )
    empty = [
        band
        for band, (mean, deviation) in enumerate(zip(means, deviations, strict=False), start=1)
        if mean == EMPTY_MEAN and deviation == 0
    ]
    numbers = np.arange(1, len(nm) + 1)
    channels = [_channels(root, detector, name) for detector in ("vnir", "swir")]
    # The channel lists number the bands by wavelength. L1B has its bands by detector in images and metadata.
    is_swir = numbers > len(channels[0]) if is_by_detector else np.isin(numbers, channels[1])
    if is_by_detector and sum(map(len, channels)) != len(nm):
        raise SceneUnreadable(f"{name} does not name the bands of both detectors: copy it again")
    # An empty band of the SWIR cannot stand for the VNIR.
    overlap = overlapping_bands(nm, is_swir & ~np.isin(numbers, empty))
    return _Bands(nm, fwhm, gains, offsets, is_swir, overlap | dict.fromkeys(empty, "empty"))


def _channels(root: Element, detector: str, name: str) -> list[int]:
    """The numbers of a detector's bands, by wavelength."""
    path = f"specific/{detector}ProductQuality/expectedChannelsList"
    try:
        return [int(part) for part in text_of(root, path).split(",") if part.strip()]
    except ValueError as error:
        raise SceneUnreadable(f"{path} of {name} is no list of bands ({error}): copy the product again") from error


class _Files:
    """The files of a product by what their names say."""

    def __init__(self, metadata: Path, stem: str, siblings: Sequence[Path]) -> None:
        self.stem = stem
        self._metadata = metadata
        self._rasters: dict[str, Path] = {}
        for file in siblings:
            found = re.fullmatch(re.escape(f"{stem}-") + rf"(?P<name>.+?){RASTER}", file.name, re.IGNORECASE)
            if found:
                self._rasters[found["name"].upper()] = file

    def images(self, detectors: Sequence[str]) -> tuple[Path, ...]:
        """The spectral images; raises SceneIncomplete."""
        names = [f"SPECTRAL_IMAGE_{detector}" if detector else "SPECTRAL_IMAGE" for detector in detectors]
        for name in names:
            if name not in self._rasters:
                raise SceneIncomplete(f"{self._metadata.name} lacks its image: add {self.stem}-{name}.TIF")
        return tuple(self._rasters[name] for name in names)

    def masks(self, counts: tuple[int, ...], firsts: tuple[tuple[int, int], ...]) -> tuple[MaskLayer, ...]:
        """The quality layers that there are; those of L1B have the grid of the VNIR, or of their detector."""
        first = firsts[0] if firsts else (0, 0)
        layers = [
            MaskLayer(kind, self._plane(self._rasters[f"QL_QUALITY_{name}"]), values=values, first=first)
            for kind, (name, values) in LAYERS.items()
            if f"QL_QUALITY_{name}" in self._rasters
        ]
        detectors = [f"_{name}" for name in DETECTORS] if counts else [""]
        for detector, own in zip(detectors, firsts or ((0, 0),) * 2, strict=False):
            if (flags := self._rasters.get(f"QL_QUALITY_TESTFLAGS{detector}")) is not None:
                layers.append(MaskLayer("saturated", self._plane(flags), bits=SATURATED_BITS, first=own))
        pixels = [self._rasters.get(f"QL_PIXELMASK{detector}") for detector in detectors]
        paths = tuple(path for path in pixels if path is not None)
        if len(paths) == len(detectors):
            flagged = BandFlags(RasterImage(paths, _driver_of(paths[0]), counts, firsts))
            layers.append(MaskLayer("defective", flagged, values=DEFECTIVE))
        return tuple(layers)

    @staticmethod
    def _plane(path: Path) -> Plane:
        return Plane(path, driver=_driver_of(path))


def _driver_of(path: Path) -> str:
    """The driver for a raster's content."""
    with path.open("rb") as file:
        start = file.read(4)
    if start in JPEG_2000_MAGIC:
        return JPEG_2000
    if start in TIFF_MAGIC or path.suffix.upper() not in ENVI:
        return "GTiff"
    if header_of(path) is None:
        raise SceneIncomplete(f"{path.name} has no ENVI header: add {path.with_suffix('.HDR').name}")
    return "ENVI"


def _ground(
    root: Element, name: str, counts: tuple[int, ...]
) -> tuple[RationalFunctions | None, tuple[tuple[int, int], ...]]:
    """Where the pixels of L1B are, and where the grid that both detectors share begins in each image."""
    corners = _corners(root, name)
    rows, cols = (numbers_of(root, f"product/image/vnir/dimension/{side}", name)[:1] for side in ("rows", "columns"))
    bands = root.findall("product/navigation/RPC/bandID")
    if corners is None or not rows or not cols:
        return None, ()
    if len(bands) != sum(counts):
        return functions_of_corners(corners, int(rows[0]), int(cols[0])), ()
    height = numbers_of(root, "specific/meanGroundElevation", name)
    vnir, swir = (read_functions(bands[band], height[0] if height else 0.0, corners, name) for band in (0, counts[0]))
    lon, lat = corners.mean(axis=0)
    apart = [
        round(float(of_swir - of_vnir))
        for of_vnir, of_swir in zip(image_positions(vnir, lon, lat), image_positions(swir, lon, lat), strict=True)
    ]
    firsts = tuple((max(0, sign * apart[0]), max(0, sign * apart[1])) for sign in (-1, 1))
    return _moved(vnir, firsts[0]), firsts


def _moved(functions: RationalFunctions, first: tuple[int, int]) -> RationalFunctions:
    """The functions of a grid that begins at this row and column of the image."""
    return replace(functions, offsets=functions.offsets - np.array([*first, 0, 0, 0]))


def _corners(root: Element, name: str) -> Numbers | None:
    """Longitude and latitude of the corner pixels' centres, without a jump at the date line."""
    found = {}
    for point in root.findall("base/spatialCoverage/boundingPolygon/point"):
        values = [numbers_of(point, side, name) for side in ("longitude", "latitude")]
        if all(values):
            found[text_of(point, "frame")] = [numbers[0] for numbers in values]
    if not all(frame in found for frame in FRAMES):
        return None
    corners = np.array([found[frame] for frame in FRAMES])
    corners[:, 0] = corners[0, 0] + (corners[:, 0] - corners[0, 0] + 180) % 360 - 180
    return corners
