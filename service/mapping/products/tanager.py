"""Planet Tanager: HDF-EOS5, orthorectified (GRIDS) or in sensor geometry (SWATHS), reflectance or radiance.

Layout: Planet's Tanager product specification of November 2025, and HyperCoast's reader.
"""

from __future__ import annotations

import re

import numpy as np
from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.service.mapping.products.cube_files import cube_image
from hyperscene.service.mapping.products.hdf5 import Hdf5File
from hyperscene.service.mapping.products.planes import find_positions
from hyperscene.service.mapping.products.product import (
    CubeDataset,
    MaskKind,
    MaskLayer,
    Plane,
    Product,
)

CUBES = {"surface_reflectance": "reflectance", "toa_radiance": "W/(m2 sr um)"}
MASKS: dict[MaskKind, str] = {"cloud": "beta_cloud_mask", "cirrus": "beta_cirrus_mask", "missing": "nodata_pixels"}
NUMBER = r"(-?[\d.]+(?:[eE][-+]?\d+)?)"


def describe(file: Hdf5File) -> Product | None:
    """The product; None if the file is of another sensor."""
    root = next((root for root in ("HDFEOS/GRIDS/HYP", "HDFEOS/SWATHS/HYP") if file.is_group(root)), None)
    fields, places = f"{root}/Data Fields", f"{root}/Geolocation Fields"
    name = next((name for name in CUBES if root is not None and file.has(f"{fields}/{name}")), None)
    if root is None or name is None:
        return None
    cube = f"{fields}/{name}"
    image = cube_image(file, [CubeDataset(cube, "brc")], nodata=file.number("_FillValue", cube))
    lists = {key: file.attribute_list(key, cube) for key in ("wavelengths", "fwhm", "good_wavelengths")}
    nm, fwhm, good = (None if found is None or len(found) != image.bands else found for found in lists.values())
    bad = np.zeros(0, np.int64) if good is None else np.flatnonzero(good == 0)
    is_ortho = root.startswith("HDFEOS/GRIDS")
    crs, transform = _grid(file, root, image.rows, image.cols) if is_ortho else (None, None)
    date = re.match(r"(\d{4})(\d{2})(\d{2})_(\d{2})(\d{2})(\d{2})_", file.path.name)
    return Product(
        sensor="Tanager",
        level=f"{'ortho' if is_ortho else 'basic'} {'SR' if name == 'surface_reflectance' else 'TOA radiance'}",
        name=file.path.stem,
        image=image,
        acquired="{}-{}-{}T{}:{}:{}Z".format(*date.groups()) if date else "",
        unit=CUBES[name],
        wavelengths_nm=nm,
        fwhm_nm=fwhm,
        dropped={int(index) + 1: "marked bad (good_wavelengths)" for index in bad},
        masks=tuple(
            MaskLayer(kind, Plane(file.path, f"{fields}/{layer}"), values=(1,))
            for kind, layer in MASKS.items()
            if file.has(f"{fields}/{layer}")
        ),
        crs=crs,
        transform=transform,
        ground=None if is_ortho else find_positions(file, f"{places}/Longitude", f"{places}/Latitude"),
    )


def _grid(file: Hdf5File, root: str, rows: int, cols: int) -> tuple[CRS | None, Affine | None]:
    """The corners in StructMetadata, which are those of the outer pixels, and the code of the reference system."""
    text = "".join(file.strings("HDFEOS INFORMATION/StructMetadata.0"))
    corners = [re.search(rf"{name}=\({NUMBER},{NUMBER}\)", text) for name in ("UpperLeftPointMtrs", "LowerRightMtrs")]
    zone = re.search(r"ZoneCode=(-?\d+)", text)
    epsg = file.number("epsg_code", root)
    if epsg is None and zone is not None:
        epsg = 32600 + int(zone[1]) if int(zone[1]) > 0 else 32700 - int(zone[1])
    if corners[0] is None or corners[1] is None:
        return None, None
    left, top, right, bottom = (float(number) for corner in corners if corner for number in corner.groups())
    transform = Affine((right - left) / cols, 0, left, 0, (bottom - top) / rows, top)
    return None if epsg is None else CRS.from_epsg(int(epsg)), transform
