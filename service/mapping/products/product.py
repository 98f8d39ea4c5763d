"""What a sensor module reads from a product: its image, bands, masks and georeference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine

Numbers = NDArray[np.float64]

MaskKind = Literal[
    "cloud", "shadow", "cirrus", "haze", "snow", "water", "saturated", "dilated-cloud", "defective", "aggregate",
    "missing",
]  # fmt: skip
MASK_KINDS = (
    "cloud", "shadow", "cirrus", "haze", "snow", "water", "saturated", "dilated-cloud", "defective", "aggregate",
)  # fmt: skip
DEFAULT_MASKS = ("cloud", "shadow")
# A detector overlap of EnMAP and PRISMA is settled like this, as EnMAP-Box does by default.
OVERLAP = "the overlap of both detectors, where the SWIR is used"


@dataclass(frozen=True)
class ReadOptions:
    """What a user chooses when a scene is read."""

    masks: tuple[str, ...] | None = None  # kinds that make pixels invalid; None: the default
    wavelengths: Path | None = None  # a text file with one number for each band
    variable: str | None = None  # of a file with several cubes


@dataclass(frozen=True)
class RasterImage:
    """Images that GDAL reads, on one grid; bands are numbered from 1 across all of them."""

    paths: tuple[Path, ...]
    driver: str
    counts: tuple[int, ...] = ()  # the bands of each, if there are several
    firsts: tuple[tuple[int, int], ...] = ()  # row and column of each where the grid begins, if they are apart


@dataclass(frozen=True)
class CubeDataset:
    """A cube in an HDF5 file: its path in the file, and the order of its axes (r: rows, b: bands, c: columns)."""

    name: str
    axes: str
    offset: int = 0  # where an array starts that is not in HDF5, and its type on disk
    stored: str = ""


@dataclass(frozen=True)
class CubeImage:
    """Cubes of one file on one grid; bands are numbered from 1 across all of them."""

    path: Path
    datasets: tuple[CubeDataset, ...]
    rows: int
    cols: int
    bands: int
    dtype: str
    nodata: float | None = None
    chunk_bytes: int = 0  # the largest part that has to be unpacked as a whole


@dataclass(frozen=True)
class Plane:
    """Values (rows, cols): a dataset of an HDF5 file, or a band of a raster."""

    path: Path
    dataset: str = ""  # of an HDF5 file
    band: int = 1  # of a raster, or of the last axis of a dataset with three axes
    driver: str = "GTiff"  # of a raster


@dataclass(frozen=True)
class BandFlags:
    """Flags of each sample, with the bands of the image; a pixel is masked by a flag of one of the bands used."""

    image: RasterImage | CubeImage


@dataclass(frozen=True)
class MaskLayer:
    """A layer of the size of the image; a pixel is masked by one of `values`, or by one of the `bits`."""

    kind: MaskKind
    source: Plane | BandFlags
    values: tuple[int, ...] = ()  # none: every value but 0
    bits: int = 0
    first: tuple[int, int] = (0, 0)  # row and column where the image begins


@dataclass(frozen=True)
class LookupTable:
    """A geometry lookup table (GLT): column and row of the image, from 1, for each pixel on the ground; 0 is none."""

    columns: Plane
    rows: Plane
    crs: CRS
    transform: Affine


@dataclass(frozen=True)
class PixelPositions:
    """Coordinates of each pixel's centre; without a reference system, longitude and latitude."""

    x: Plane
    y: Plane
    crs: CRS | None = None


@dataclass(frozen=True)
class RationalFunctions:
    """Row and column of the image as ratios of cubic polynomials of longitude, latitude and height (RPC).

    Each polynomial has 20 coefficients in the order of RPC00B; 0, 0 is the centre of the first pixel.
    """

    numerators: tuple[Numbers, Numbers]  # of row and column
    denominators: tuple[Numbers, Numbers]
    offsets: Numbers  # of row, column, longitude, latitude and height
    scales: Numbers
    height_m: float  # of the ground
    corners: Numbers  # (n, 2): longitude and latitude round the image


Ground = LookupTable | PixelPositions | RationalFunctions


@dataclass(frozen=True)
class DroppedBand:
    """A band that is not used."""

    number: int  # of the image, from 1
    wavelength_nm: float | None
    reason: str


@dataclass(frozen=True)
class Product:
    """A product's metadata. Numbers of bands are those of the image, from 1; None: as the image's file says."""

    sensor: str
    level: str
    name: str
    image: RasterImage | CubeImage
    acquired: str = ""  # ISO 8601
    unit: str = ""
    wavelengths_nm: Numbers | None = None  # of every band of the image, as are the next three
    fwhm_nm: Numbers | None = None
    scales: Numbers | None = None
    offsets: Numbers | None = None
    dropped: Mapping[int, str] = field(default_factory=dict)  # the reason by band
    masks: tuple[MaskLayer, ...] = ()
    nodata: float | None = None  # of an image that declares none
    crs: CRS | None = None
    transform: Affine | None = None
    ground: Ground | None = None  # for an image in sensor geometry
    warnings: tuple[str, ...] = ()


def overlapping_bands(wavelengths_nm: Numbers, is_swir: NDArray[np.bool_]) -> dict[int, str]:
    """Bands of the VNIR at or above the first one of the SWIR; a wavelength of 0 or less is none."""
    known = wavelengths_nm > 0
    if not (is_swir & known).any():
        return {}
    first = wavelengths_nm[is_swir & known].min()
    return {int(index) + 1: OVERLAP for index in np.flatnonzero(known & ~is_swir & (wavelengths_nm >= first))}
