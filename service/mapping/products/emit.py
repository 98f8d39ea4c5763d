"""EMIT L2A reflectance and L1B radiance: netCDF-4 in sensor geometry with a geometry lookup table.

Layout: emit-sds/emit-utils (daac_converter.py), nasa/EMIT-Data-Resources, and GDAL's test files.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping.products.cube_files import cube_image
from hyperscene.service.mapping.products.hdf5 import Hdf5File, open_hdf5
from hyperscene.service.mapping.products.product import CubeDataset, LookupTable, MaskLayer, Plane, Product
from hyperscene.service.mapping.scene_checks import refuse_grids

CUBES = {"reflectance": ("L2A", "reflectance"), "radiance": ("L1B", "uW/(cm2 sr nm)")}
NODATA = -9999.0
MASK_NAME = re.compile(r"EMIT_L2A_MASK_.+\.nc", re.IGNORECASE)
# The names of flags in `mask_bands`, without "flag".
MASKS = {"cloud": "cloud", "cirrus": "cirrus", "water": "water", "dilated cloud": "dilated-cloud",
         "aggregate": "aggregate"}  # fmt: skip


def describe(file: Hdf5File) -> Product | None:
    """The product; None if the file is of another sensor."""
    if "EMIT" not in file.text("instrument").upper() and not file.path.name.upper().startswith("EMIT_"):
        return None
    name = next((name for name in CUBES if file.has(name) and not file.is_group(name)), None)
    if name is None:
        return None
    level, unit = CUBES[name]
    nodata = file.number("_FillValue", name)
    image = cube_image(file, [CubeDataset(name, "rcb")], nodata=NODATA if nodata is None else nodata)
    good = file.values("sensor_band_parameters/good_wavelengths")
    bad = np.zeros(0, np.int64) if good is None or len(good) != image.bands else np.flatnonzero(good == 0)
    nm, fwhm = (_of_bands(file, f"sensor_band_parameters/{key}", image.bands) for key in ("wavelengths", "fwhm"))
    return Product(
        sensor="EMIT",
        level=level,
        name=file.path.stem,
        image=image,
        acquired=file.text("time_coverage_start"),
        unit=unit,
        wavelengths_nm=nm,
        fwhm_nm=fwhm,
        dropped={int(index) + 1: "marked bad (good_wavelengths)" for index in bad},
        masks=_masks(file, image.rows, image.cols),
        ground=_lookup(file),
    )


def require_image(path: Path) -> None:
    """Refuse the mask file of a product, which also holds a cube."""
    if MASK_NAME.fullmatch(path.name):
        raise SceneUnreadable(f"{path.name} is the mask of an EMIT product: give the file EMIT_L2A_RFL instead")


def _of_bands(file: Hdf5File, name: str, bands: int) -> np.ndarray | None:
    values = file.values(name)
    return values if values is not None and len(values) == bands else None


def _lookup(file: Hdf5File) -> LookupTable | None:
    numbers, wkt = file.attribute_list("geotransform"), file.text("spatial_ref")
    columns, rows = "location/glt_x", "location/glt_y"
    if numbers is None or len(numbers) != 6 or not wkt or not (file.has(columns) and file.has(rows)):
        return None
    refuse_grids(file.path.name, wkt.encode())
    planes = Plane(file.path, columns), Plane(file.path, rows)
    return LookupTable(*planes, CRS.from_wkt(wkt), Affine.from_gdal(*numbers.tolist()))


def _masks(file: Hdf5File, rows: int, cols: int) -> tuple[MaskLayer, ...]:
    """The layers of the mask file that is delivered beside the reflectance."""
    path = file.path.with_name(re.sub("_(RFL|RAD)_", "_MASK_", file.path.name).replace("_L1B_", "_L2A_"))
    if path == file.path or path.is_symlink() or not path.is_file():
        return ()
    with open_hdf5(path) as masks:
        names = [re.sub(r"\s+flag$", "", name.strip().lower()) for name in masks.strings(
            "sensor_band_parameters/mask_bands")]  # fmt: skip
        if not masks.has("mask") or masks.dataset("mask").shape[:2] != (rows, cols):
            raise SceneUnreadable(f"{path.name} has not the size of {file.path.name}: copy both again, or remove it")
    return tuple(
        MaskLayer(MASKS[name], Plane(path, "mask", band), values=(1,))  # type: ignore[arg-type]
        for band, name in enumerate(names, start=1)
        if name in MASKS
    )
