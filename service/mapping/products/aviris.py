"""AVIRIS: AVIRIS-3 and AVIRIS-5 in netCDF-4; AVIRIS-Classic, AVIRIS-NG and AVIRIS-3 in ENVI.

Layout: ORNL DAAC's user guides, JPL's distribution documents, and the readers of emit-sds, HyTools and HyperCoast. ENVI
files are read by their headers. Images that are not orthorectified come with a lookup table (glt) or positions (igm).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping.gdal import envi_header, open_dataset
from hyperscene.service.mapping.products.cube_files import cube_image
from hyperscene.service.mapping.products.hdf5 import Hdf5File
from hyperscene.service.mapping.products.product import (
    CubeDataset,
    Ground,
    LookupTable,
    Numbers,
    PixelPositions,
    Plane,
    Product,
    RasterImage,
)
from hyperscene.service.mapping.scene_checks import refuse_grids
from hyperscene.service.mapping.scene_files import header_of

CUBES = {"reflectance": ("L2A", "reflectance"), "radiance": ("L1B", "uW/(cm2 sr nm)")}
SENSORS = {"ang": "AVIRIS-NG", "av3": "AVIRIS-3", "av5": "AVIRIS-5", "f": "AVIRIS-Classic"}
# ang20170707t200459_corr_v2p9_img, f080709t01p00r06rdn_c_sc01_ort_img; others beside it are tables and quality layers.
LINE = r"(?P<line>(?P<sensor>ang|av3|av5|f)(?P<date>\d{8}|\d{6})t(\d+(p\d+r\d+)?))"
NAMES = re.compile(LINE + r"\w*?(?P<kind>corr|rfl|refl|rdn|rad)\w*(\.\w+)?", re.IGNORECASE)
NO_IMAGE = re.compile(r"(glt|igm|obs|ort_igm|h2o|mask|unc|clip|eph|lonlat|loc)(?=_|$)|_uncert", re.IGNORECASE)
TABLE, POSITIONS = (re.compile(LINE + rf"\w*_{name}(\.\w+)?", re.IGNORECASE) for name in ("glt", "igm"))
GAIN = re.compile(LINE + r"\w*\.gain", re.IGNORECASE)
NETCDF_TABLE = "geolocation_lookup_table"
MAX_GAIN_BYTES = 1 << 20


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
    ground = _netcdf_table(file, (image.rows, image.cols), crs, transform)
    return Product(
        sensor=SENSORS[found["sensor"].lower()] if found else "AVIRIS",
        level=level,
        name=file.path.stem,
        image=image,
        acquired=file.text("time_coverage_start") or (_date(found["date"]) if found else ""),
        unit=unit,
        wavelengths_nm=nm if nm is not None and len(nm) == image.bands else None,
        fwhm_nm=fwhm if fwhm is not None and len(fwhm) == image.bands else None,
        crs=crs if ground is None else None,
        transform=transform if ground is None else None,
        ground=ground,
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


def _netcdf_table(
    file: Hdf5File, shape: tuple[int, int], crs: CRS | None, transform: Affine | None
) -> LookupTable | None:
    """The lookup table of radiance in sensor geometry; an image with the size of the table is on its grid already."""
    columns, rows = f"{NETCDF_TABLE}/sample", f"{NETCDF_TABLE}/line"
    if crs is None or transform is None or not (file.has(columns) and file.has(rows)):
        return None
    if file.dataset(columns).shape == shape:
        return None
    return LookupTable(Plane(file.path, columns), Plane(file.path, rows), crs, transform)


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
    gains = _gains(_sibling(GAIN, found["line"], siblings)) if is_radiance else None
    return Product(
        sensor=SENSORS[found["sensor"].lower()],
        level="L1B" if is_radiance else "L2",
        name=data.name,
        image=RasterImage((data,), "ENVI"),
        acquired=_date(found["date"]),
        unit="radiance" if is_radiance else "reflectance",
        scales=gains,
        ground=_envi_ground(data, found["line"], siblings),
    )


def _sibling(wanted: re.Pattern[str], line: str, siblings: Sequence[Path]) -> Path | None:
    """The data file of a kind, of the same flight line."""
    for file in siblings:
        found = wanted.fullmatch(file.name)
        if found and found["line"].lower() == line.lower() and file.suffix.lower() != ".hdr":
            return file
    return None


def _gains(path: Path | None) -> Numbers | None:
    """AVIRIS-Classic: radiance is sample / gain, with a gain in the first column for each band."""
    if path is None or path.stat().st_size > MAX_GAIN_BYTES:
        return None
    try:
        found = [float(line.split()[0]) for line in path.read_text("ascii").splitlines() if line.strip()]
    except (ValueError, UnicodeDecodeError) as error:
        raise SceneUnreadable(f"{path.name} is no list of gains ({error}): copy it again, or remove it") from error
    return 1 / np.array(found) if found and all(found) else None


def _envi_ground(data: Path, line: str, siblings: Sequence[Path]) -> Ground | None:
    """The lookup table or the positions beside an image without georeference of its own."""
    table, positions = (_sibling(wanted, line, siblings) for wanted in (TABLE, POSITIONS))
    shape, crs, transform = _envi_grid(data)
    if transform != Affine.identity() or (table is None and positions is None):
        return None
    table_crs, table_transform = (None, Affine.identity()) if table is None else _envi_grid(table)[1:]
    if table is not None and table_crs is not None and table_transform != Affine.identity():
        columns, rows = (Plane(table, band=band, driver="ENVI") for band in (1, 2))
        return LookupTable(columns, rows, table_crs, table_transform)
    if positions is None or _envi_grid(positions)[0] != shape:
        return None
    x, y = (Plane(positions, band=band, driver="ENVI") for band in (1, 2))
    own = _envi_grid(positions)[1] or table_crs or crs
    return PixelPositions(x, y, own if own is not None and own.is_projected else None)


def _envi_grid(path: Path) -> tuple[tuple[int, int], CRS | None, Affine]:
    """Size, reference system and transform of an ENVI file."""
    header = header_of(path)
    if header is None:
        return (0, 0), None, Affine.identity()
    refuse_grids(path.name, header.read_bytes()[:MAX_GAIN_BYTES])
    with open_dataset(path, "ENVI") as raster:
        text = envi_header(raster).get("coordinate_system_string", "").strip("{} ")
        crs = raster.crs or (CRS.from_wkt(text) if text else None)  # GDAL reads it with a map info only
        return (raster.height, raster.width), crs, raster.transform


def _date(digits: str) -> str:
    """YYYYMMDD, or YYMMDD of AVIRIS-Classic, which has flown since 1987."""
    if len(digits) == 6:
        digits = ("19" if int(digits[:2]) > 80 else "20") + digits
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
