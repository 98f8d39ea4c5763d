"""AVIRIS: AVIRIS-3 and AVIRIS-5 orthorectified netCDF-4; names of AVIRIS-Classic and AVIRIS-NG in ENVI.

Layout: ORNL DAAC's user guides, and the readers of emit-sds and HyperCoast. ENVI files are read by their headers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.service.mapping.products.cube_files import cube_image
from hyperscene.service.mapping.products.hdf5 import Hdf5File
from hyperscene.service.mapping.products.product import CubeDataset, Product, RasterImage
from hyperscene.service.mapping.scene_checks import refuse_grids
from hyperscene.service.mapping.scene_files import header_of

CUBES = {"reflectance": ("L2A", "reflectance"), "radiance": ("L1B", "uW/(cm2 sr nm)")}
SENSORS = {"ang": "AVIRIS-NG", "av3": "AVIRIS-3", "av5": "AVIRIS-5", "f": "AVIRIS-Classic"}
# ang20170707t200459_corr_v2p9_img, f080709t01p00r06rdn_c_sc01_ort_img; others beside it are tables and quality layers.
NAMES = re.compile(
    r"(?P<sensor>ang|av3|av5|f)(?P<date>\d{8}|\d{6})t\w*?(?P<kind>corr|rfl|refl|rdn|rad)\w*(\.\w+)?", re.IGNORECASE
)
NO_IMAGE = re.compile(r"(glt|igm|obs|ort_igm|h2o|mask|unc|clip|eph|lonlat)(?=_|$)|_uncert", re.IGNORECASE)


def describe(file: Hdf5File) -> Product | None:
    """The product of a netCDF file; None if it is of another sensor."""
    name = next((name for name in CUBES if file.has(f"{name}/{name}") and file.has(f"{name}/wavelength")), None)
    if name is None:
        return None
    cube = f"{name}/{name}"
    nodata = file.number("_FillValue", cube)
    image = cube_image(file, [CubeDataset(cube, "brc")], nodata=-9999.0 if nodata is None else nodata)
    nm, fwhm = (file.values(f"{name}/{key}") for key in ("wavelength", "fwhm"))
    level, unit = CUBES[name]
    found = NAMES.match(file.path.stem)
    crs, transform = _grid(file, cube)
    return Product(
        sensor=SENSORS[found["sensor"].lower()] if found else "AVIRIS",
        level=level,
        name=file.path.stem,
        image=image,
        acquired=file.text("time_coverage_start") or (_date(found["date"]) if found else ""),
        unit=unit,
        wavelengths_nm=nm if nm is not None and len(nm) == image.bands else None,
        fwhm_nm=fwhm if fwhm is not None and len(fwhm) == image.bands else None,
        crs=crs,
        transform=transform,
    )


def _grid(file: Hdf5File, cube: str) -> tuple[CRS | None, Affine | None]:
    mapping = file.text("grid_mapping", cube) or "transverse_mercator"
    wkt, numbers = (
        file.text("spatial_ref", mapping) or file.text("crs_wkt", mapping),
        file.text("GeoTransform", mapping),
    )
    if not wkt or len(numbers.split()) != 6:
        return None, None
    refuse_grids(file.path.name, wkt.encode())
    return CRS.from_wkt(wkt), Affine.from_gdal(*map(float, numbers.split()))


def key_of(path: Path, siblings: Sequence[Path]) -> Path | None:
    """The data file of an ENVI product."""
    if NO_IMAGE.search(path.stem):
        return None
    if path.suffix.lower() == ".hdr":
        data = [file for file in siblings if file != path and header_of(file) == path]
        return data[0] if len(data) == 1 else None
    return path if header_of(path) is not None else None


def describe_envi(data: Path, siblings: Sequence[Path]) -> Product:
    """The product of an ENVI file; bands, scales and georeference are those of its header."""
    found = NAMES.match(data.name)
    assert found is not None
    is_radiance = found["kind"].lower() in ("rdn", "rad")
    return Product(
        sensor=SENSORS[found["sensor"].lower()],
        level="L1B" if is_radiance else "L2",
        name=data.name,
        image=RasterImage((data,), "ENVI"),
        acquired=_date(found["date"]),
        unit="radiance" if is_radiance else "reflectance",
    )


def _date(digits: str) -> str:
    """YYYYMMDD, or YYMMDD of AVIRIS-Classic, which has flown since 1987."""
    if len(digits) == 6:
        digits = ("19" if int(digits[:2]) > 80 else "20") + digits
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
