"""PRISMA L2D, L2C, L2B and L1: HDF-EOS5 with a cube for each detector, bands in reverse order.

Layout: ASI's PRISMA product specification as read by prismaread, EnMAP-Box and SNAP's PRISMA reader.
"""

from __future__ import annotations

import numpy as np
from rasterio.crs import CRS
from rasterio.transform import Affine, from_origin

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping.products.cube_files import cube_image
from hyperscene.service.mapping.products.hdf5 import Hdf5File
from hyperscene.service.mapping.products.planes import find_positions
from hyperscene.service.mapping.products.product import (
    BandFlags,
    CubeDataset,
    CubeImage,
    MaskKind,
    MaskLayer,
    Numbers,
    Plane,
    Product,
    overlapping_bands,
)

LEVELS = ("L2D", "L2C", "L2B", "L1")
DETECTORS = ("Vnir", "Swir")
RADIANCE = "W/(m2 sr um)"
STEPS = 65535.0  # the highest sample of level 2
PIXEL_M = 30.0
# Pixel error matrices, and their values. Level 1: 1 is a defective pixel, 2 saturated, 3 of lower confidence, 4 not a
# number. Level 2: 1 is invalid in level 1, 2 negative; SNAP takes 3 as saturated and EnMAP-Box 4, so both count.
SAMPLE_FLAGS: dict[str, tuple[str, dict[MaskKind, tuple[int, ...]]]] = {
    "L1": ("PIXEL_SAT_ERR_MATRIX", {"saturated": (2,), "defective": (1, 4)}),
    "L2": ("PIXEL_L2_ERR_MATRIX", {"saturated": (3, 4), "defective": (1,)}),
}
NOT_A_BAND = "not a band of this product (flag 0)"


def describe(file: Hdf5File) -> Product | None:
    """The product; None if the file is of another sensor."""
    level = next((level for level in LEVELS if file.is_group(f"HDFEOS/SWATHS/PRS_{level}_HCO/Data Fields")), None)
    if level is None:
        return None
    swath = f"HDFEOS/SWATHS/PRS_{level}_HCO"
    datasets = [CubeDataset(f"{swath}/Data Fields/{name.upper()}_Cube", "rbc") for name in DETECTORS]
    image = cube_image(file, datasets, nodata=0)
    counts = [file.dataset(dataset.name).shape[1] for dataset in datasets]
    nm, fwhm = (_lists(file, f"List_{name}", counts) for name in ("Cw", "Fwhm"))
    flags = _lists(file, "List_Cw", counts, "_Flags") if file.attribute("List_Cw_Vnir_Flags") is not None else nm
    is_band = (flags != 0) & (nm > 0)
    is_swir = np.repeat([False, True], counts)
    dropped = {int(index) + 1: NOT_A_BAND for index in np.flatnonzero(~is_band)}
    scales, offsets = _scales(file, level, counts)
    crs, transform = _grid(file) if level == "L2D" else (None, None)
    detector = "_VNIR" if level == "L1" else ""
    places = [f"{swath}/Geolocation Fields/{name}{detector}" for name in ("Longitude", "Latitude")]
    return Product(
        sensor="PRISMA",
        level=level,
        name=file.path.stem,
        image=image,
        acquired=file.text("Product_StartTime"),
        unit="reflectance" if level in ("L2D", "L2C") else RADIANCE,
        wavelengths_nm=nm,
        fwhm_nm=fwhm,
        scales=scales,
        offsets=offsets,
        dropped=overlapping_bands(np.where(is_band, nm, 0), is_swir) | dropped,
        masks=(*_masks(file, swath), *_flags(file, swath, level, image)),
        crs=crs,
        transform=transform,
        ground=None if level == "L2D" else find_positions(file, *places),
    )


def _lists(file: Hdf5File, name: str, counts: list[int], ending: str = "") -> Numbers:
    lists = []
    for detector, count in zip(DETECTORS, counts, strict=True):
        values = file.attribute_list(f"{name}_{detector}{ending}")
        if values is None or len(values) != count:
            raise SceneUnreadable(f"{file.path.name} lacks {name}_{detector}{ending} for {count} bands: copy it again")
        lists.append(values)
    return np.concatenate(lists)


def _scales(file: Hdf5File, level: str, counts: list[int]) -> tuple[Numbers, Numbers]:
    """Level 1: sample / factor - offset; level 2: from a minimum to a maximum in 65,535 steps."""
    scales, offsets = [], []
    for detector in DETECTORS:
        names = (f"ScaleFactor_{detector}", f"Offset_{detector}")
        if level != "L1":
            names = (f"L2Scale{detector}Min", f"L2Scale{detector}Max")
        first, second = (file.number(name) for name in names)
        if first is None or second is None or (level == "L1" and first == 0):
            raise SceneUnreadable(f"{file.path.name} lacks {names[0]} and {names[1]}: it is no complete product")
        scales.append(1 / first if level == "L1" else (second - first) / STEPS)
        offsets.append(-second if level == "L1" else first)
    return np.repeat(scales, counts), np.repeat(offsets, counts)


def _grid(file: Hdf5File) -> tuple[CRS, Affine]:
    """The corner that the file names is the centre of its pixel."""
    epsg, east, north = (
        file.number(name) for name in ("Epsg_Code", "Product_ULcorner_easting", "Product_ULcorner_northing")
    )
    if epsg is None or east is None or north is None:
        raise SceneUnreadable(f"{file.path.name} lacks Epsg_Code and its upper left corner: it is no complete product")
    return CRS.from_epsg(int(epsg)), from_origin(east - PIXEL_M / 2, north + PIXEL_M / 2, PIXEL_M, PIXEL_M)


def _masks(file: Hdf5File, swath: str) -> tuple[MaskLayer, ...]:
    """Level 1 has a cloud mask (1: cloud) and a land cover mask (0: water, 1: snow)."""
    layers: tuple[tuple[MaskKind, str, int], ...] = (
        ("cloud", "Cloud_Mask", 1),
        ("water", "LandCover_Mask", 0),
        ("snow", "LandCover_Mask", 1),
    )
    return tuple(
        MaskLayer(kind, Plane(file.path, f"{swath}/Data Fields/{name}"), values=(value,))
        for kind, name, value in layers
        if file.has(f"{swath}/Data Fields/{name}")
    )


def _flags(file: Hdf5File, swath: str, level: str, image: CubeImage) -> tuple[MaskLayer, ...]:
    """The pixel error matrices, which have the axes of the cubes."""
    name, kinds = SAMPLE_FLAGS["L1" if level == "L1" else "L2"]
    datasets = [CubeDataset(f"{swath}/Data Fields/{detector.upper()}_{name}", "rbc") for detector in DETECTORS]
    if not all(file.has(dataset.name) for dataset in datasets):
        return ()
    flags = cube_image(file, datasets, nodata=None)
    if (flags.rows, flags.cols, flags.bands) != (image.rows, image.cols, image.bands):
        raise SceneUnreadable(f"the pixel error matrices of {file.path.name} have not the size of its cubes")
    return tuple(MaskLayer(kind, BandFlags(flags), values=values) for kind, values in kinds.items())
