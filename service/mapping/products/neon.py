"""NEON AOP reflectance: HDF5 on a UTM grid, by tile or by flight line.

Layout: NEON's data product DP3.30006 and the readers of NEON's tutorials and HyperCoast.
"""

from __future__ import annotations

import re

import numpy as np
from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping.products.cube_files import cube_image
from hyperscene.service.mapping.products.hdf5 import Hdf5File
from hyperscene.service.mapping.products.product import CubeDataset, Numbers, Product

WINDOWS = ("Band_Window_1_Nanometers", "Band_Window_2_Nanometers")


def describe(file: Hdf5File) -> Product | None:
    """The product; None if the file is of another sensor."""
    sites = [name for name in file.members("") if file.has(f"{name}/Reflectance/Reflectance_Data")]
    if len(sites) != 1:
        return None
    group = f"{sites[0]}/Reflectance"
    cube, metadata = f"{group}/Reflectance_Data", f"{group}/Metadata"
    nodata, scale = file.number("Data_Ignore_Value", cube), file.number("Scale_Factor", cube)
    image = cube_image(file, [CubeDataset(cube, "rcb")], nodata=-9999.0 if nodata is None else nodata)
    nm = file.values(f"{metadata}/Spectral_Data/Wavelength")
    if nm is None or len(nm) != image.bands:
        raise SceneUnreadable(f"{file.path.name} lacks the wavelengths of its bands: copy it again")
    crs, transform = _grid(file, f"{metadata}/Coordinate_System")
    level = re.search(r"_(DP[13])_", file.path.name)
    return Product(
        sensor="NEON AOP",
        level=level[1] if level else "",
        name=file.path.stem,
        image=image,
        unit="reflectance",
        wavelengths_nm=nm,
        fwhm_nm=file.values(f"{metadata}/Spectral_Data/FWHM"),
        scales=np.full(image.bands, 1 / scale if scale else 1e-4),
        dropped=_dropped(file, group, nm),
        crs=crs,
        transform=transform,
    )


def _dropped(file: Hdf5File, group: str, nm: Numbers) -> dict[int, str]:
    dropped = {}
    for name in WINDOWS:
        window = file.attribute_list(name, group)
        if window is not None and len(window) == 2:
            low, high = window
            for index in np.flatnonzero((nm >= low) & (nm <= high)):
                dropped[int(index) + 1] = f"in the bad band window {low:.0f} to {high:.0f} nm"
    return dropped


def _grid(file: Hdf5File, group: str) -> tuple[CRS | None, Affine | None]:
    """ENVI's map info: reference column and row, their easting and northing, pixel width and height."""
    info = (file.strings(f"{group}/Map_Info") or [""])[0].strip("{} ").split(",")
    if len(info) < 7:
        return None, None
    col, row, east, north, width, height = (float(part) for part in info[1:7])
    rotation = re.search(r"rotation\s*=\s*([-\d.]+)", ",".join(info))
    angle = float(rotation[1]) if rotation else 0.0
    transform = (
        Affine.translation(east, north)
        @ Affine.rotation(-angle)
        @ Affine.scale(width, -height)
        @ Affine.translation(1 - col, 1 - row)
    )
    epsg = (file.strings(f"{group}/EPSG Code") or [""])[0].strip()
    return CRS.from_epsg(int(epsg)) if epsg.isdigit() else None, transform
