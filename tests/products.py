"""Small products in the layouts that agencies publish; each writer names the source of its layout."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np
import rasterio
from rasterio.crs import CRS
from rasterio.enums import WktVersion
from rasterio.warp import transform
from scipy.io import netcdf_file

from hyperscene.service.mapping.gdal import ignore_missing_georeference
from tests.scenes import GRID, UTM

ENMAP_STEM = "ENMAP01-____L2A-DT0000001867_20220724T104526Z_008_V010302_20230628T165614Z"
# A short EnMAP: VNIR and SWIR overlap at 910 to 960 nm, and 1360 nm lies in water vapour.
ENMAP_NM = np.array([450.0, 560, 670, 860, 909, 911, 958, 961, 1050, 1360, 1650, 2200])
ENMAP_SWIR = (6, 8, 9, 10, 11, 12)
ENMAP_EMPTY = (10,)
NODATA = -32768


def enmap_values(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Samples (rows, cols, bands) with an empty band and a corner without data."""
    values = np.random.default_rng(seed).integers(200, 6000, (rows, cols, len(ENMAP_NM))).astype(np.int16)
    values[..., [band - 1 for band in ENMAP_EMPTY]] = NODATA
    values[:3, :2] = NODATA
    return values


def write_enmap(folder: Path, values: np.ndarray, *, level: str = "L2A", ending: str = "TIF") -> Path:
    """An EnMAP product folder with METADATA.XML, quality layers, and an image in the format of its ending.

    Layout: DLR's test product in the EnMAP reader of SNAP (senbox-org/optical-toolbox), and EnMAP-Box's importers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = ENMAP_STEM.replace("L2A", level)
    write_enmap_image(folder / f"{stem}-SPECTRAL_IMAGE.{ending}", values)
    rows, cols, _ = values.shape
    for name, mask in enmap_masks(rows, cols).items():
        _write_layers(folder / f"{stem}-QL_QUALITY_{name}.TIF", mask[None].astype(np.uint8), None)
    defective = np.zeros((values.shape[2], rows, cols), np.uint8)
    defective[3, -1, -2], defective[ENMAP_EMPTY[0] - 1, -1, -3] = 1, 1
    _write_layers(folder / f"{stem}-QL_PIXELMASK.TIF", defective, None)
    (folder / f"{stem}-METADATA.XML").write_text(_enmap_xml(level))
    return folder


def write_enmap_image(path: Path, values: np.ndarray) -> None:
    """The image in the format of its ending."""
    layers = np.moveaxis(values, -1, 0)
    if path.suffix in (".BSQ", ".BIL", ".BIP"):
        with rasterio.open(
            path, "w", driver="ENVI", height=layers.shape[1], width=layers.shape[2], count=len(layers),
            dtype=layers.dtype, interleave=path.suffix[1:].lower(), crs=UTM, transform=GRID,
        ) as file:  # fmt: skip
            file.write(layers)
        path.with_suffix(".hdr").rename(path.with_suffix(".HDR"))
    elif path.suffix == ".JP2":
        with rasterio.open(
            path, "w", driver="JP2OpenJPEG", height=layers.shape[1], width=layers.shape[2], count=len(layers),
            dtype=layers.dtype, crs=UTM, transform=GRID, QUALITY=100, REVERSIBLE="YES",
        ) as file:  # fmt: skip
            file.write(layers)
    else:
        _write_layers(path, layers, NODATA)


# Of L1B: what lies at a row and column of the VNIR lies so much further down and right in the SWIR.
ENMAP_APART = (-3, 1)
ENMAP_HEIGHT_M = 120.0


def write_enmap_l1b(folder: Path, values: np.ndarray, *, has_rpc: bool = True) -> Path:
    """An EnMAP L1B product: an image for each detector, in sensor geometry, with rational functions for each band.

    Layout: DLR's test product in the EnMAP reader of SNAP, whose bands are ordered by detector in the metadata and by
    wavelength in the channel lists, and EnPT's reader (metadata_sensorgeo.py).
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = ENMAP_STEM.replace("L2A", "L1B")
    layers = np.moveaxis(values, -1, 0)
    is_swir = np.isin(np.arange(1, len(layers) + 1), ENMAP_SWIR)
    swir = np.roll(layers[is_swir], ENMAP_APART, (1, 2))
    write = {"SPECTRAL_IMAGE_VNIR": layers[~is_swir], "SPECTRAL_IMAGE_SWIR": swir}
    for detector, (row, col) in {"VNIR": (12, 3), "SWIR": (12 + ENMAP_APART[0], 5 + ENMAP_APART[1])}.items():
        flags = np.zeros((1, *values.shape[:2]), np.uint8)
        flags[0, row, col] = 16 if detector == "SWIR" else 32
        write[f"QL_QUALITY_TESTFLAGS_{detector}"] = flags
    write["QL_QUALITY_CLOUD"] = enmap_masks(*values.shape[:2])["CLOUD"][None]
    for name, part in write.items():
        _write_layers(folder / f"{stem}-{name}.TIF", part, None, crs=None)
    order = np.argsort(is_swir, kind="stable")
    functions = _enmap_functions(values.shape, order, is_swir) if has_rpc else ""
    (folder / f"{stem}-METADATA.XML").write_text(_enmap_xml("L1B", geometry=(*values.shape[:2], functions)))
    return folder


def enmap_functions(apart: tuple[int, int] = (0, 0)) -> dict[str, list[float]]:
    """Rational functions that are nearly those of `positions`, with some terms of higher order."""
    metre = np.array([[111_320 * np.cos(np.radians(52.5)), 0], [0, 111_320]])  # in degrees
    turned = np.linalg.inv(30 * np.array([[-0.208, 0.978], [-0.978, -0.208]])) @ metre  # rows and columns by degrees
    small = np.random.default_rng(3).uniform(-2e-3, 2e-3, (4, 20)) / 20
    small[:, 0] = 0
    found = {"OFF": [8.0 + apart[0], 6.0 + apart[1], 13.1 + 0.002, 52.5 - 0.002, ENMAP_HEIGHT_M],
             "SCALE": [10.0, 9.0, 0.004, 0.003, 500.0]}  # fmt: skip
    scale = found["SCALE"]
    for axis, name in enumerate(("ROW", "COL")):
        above, below = small[2 * axis], small[2 * axis + 1]
        above[1:3] = turned[axis] * scale[2:4] / scale[axis]
        below[0] = 1
        found[f"{name}_NUM"], found[f"{name}_DEN"] = above.tolist(), below.tolist()
    return found


def _enmap_functions(shape: tuple[int, ...], order: np.ndarray, is_swir: np.ndarray) -> str:
    bands = []
    for number, band in enumerate(order, start=1):
        found = enmap_functions(ENMAP_APART if is_swir[band] else (0, 0))
        tags = [
            f"<{axis}_{key}>{value!r}</{axis}_{key}>"
            for key in ("OFF", "SCALE")
            for axis, value in zip(("ROW", "COL", "LONG", "LAT", "HEIGHT"), found[key], strict=True)
        ]
        for key in ("ROW_NUM", "ROW_DEN", "COL_NUM", "COL_DEN"):
            tags += [
                f"<{key}_{term:02d}>{value!r}</{key}_{term:02d}>" for term, value in enumerate(found[key], start=1)
            ]
        bands.append(f'<bandID number="{number}">{"".join(tags)}</bandID>')
    return f"<navigation><RPC>{''.join(bands)}</RPC></navigation>"


def write_enmap_of(folder: Path, image: Path, nm: np.ndarray, gain: float, empty: tuple[int, ...] = ()) -> None:
    """An EnMAP folder with a given image of bands at these wavelengths, none of them in an overlap, some `empty`."""
    folder.mkdir()
    shutil.copy(image, folder / f"{folder.name}-SPECTRAL_IMAGE.TIF")
    (folder / f"{folder.name}-METADATA.XML").write_text(_enmap_xml("L2A", nm, (), empty, gain))


def enmap_masks(rows: int, cols: int) -> dict[str, np.ndarray]:
    """The quality layers of `write_enmap`."""
    masks = {name: np.zeros((rows, cols), np.uint8) for name in ("CLOUD", "CLOUDSHADOW", "CIRRUS", "CLASSES")}
    masks["CLOUD"][5:8, 4:9] = 1
    masks["CLOUDSHADOW"][7:10, 6:11] = 1
    masks["CIRRUS"][0, -1] = 3
    masks["CLASSES"][:] = 1
    masks["CLASSES"][-2:] = 2
    return masks


def _enmap_xml(
    level: str,
    nms: np.ndarray = ENMAP_NM,
    swirs: tuple[int, ...] = ENMAP_SWIR,
    empty: tuple[int, ...] = ENMAP_EMPTY,
    gain: float = 0.0001,
    geometry: tuple[int, int, str] = (0, 0, ""),
) -> str:
    bands, statistics = [], []
    vnirs = [band for band in range(1, len(nms) + 1) if band not in swirs]
    order = [*vnirs, *swirs] if level == "L1B" else range(1, len(nms) + 1)
    for number, band in enumerate(order, start=1):
        bands.append(
            f'<bandID number="{number}"><wavelengthCenterOfBand>{nms[band - 1]}</wavelengthCenterOfBand>'
            f"<FWHMOfBand>9</FWHMOfBand><GainOfBand>{gain}</GainOfBand><OffsetOfBand>0</OffsetOfBand></bandID>"
        )
        mean, deviation = (-1000000, 0) if band in empty else (0.2, 0.05)
        statistics.append(
            f'<bandID number="{number}"><mean>{mean}</mean><stdDeviation>{deviation}</stdDeviation></bandID>'
        )
    rows, cols, functions = geometry
    return (
        f"<level_X><base><level>{level}</level><temporalCoverage><startTime>2022-07-24T10:45:26.123Z</startTime>"
        f"</temporalCoverage>{_enmap_corners(rows, cols) if rows else ''}</base>"
        f"<specific><backgroundValue>{NODATA}</backgroundValue>"
        f"<meanGroundElevation>{ENMAP_HEIGHT_M}</meanGroundElevation>"
        f"<bandCharacterisation>{''.join(bands)}</bandCharacterisation>"
        f"<vnirProductQuality><expectedChannelsList>{','.join(map(str, vnirs))}</expectedChannelsList>"
        f"</vnirProductQuality><swirProductQuality><expectedChannelsList>{','.join(map(str, swirs))}"
        f"</expectedChannelsList></swirProductQuality></specific><product><image><vnir><dimension><columns>{cols}"
        f"</columns><rows>{rows}</rows></dimension></vnir></image>{functions}<bandStatistics>{''.join(statistics)}"
        "</bandStatistics></product></level_X>"
    )


def _enmap_corners(rows: int, cols: int) -> str:
    lon, lat = positions(rows, cols)
    places = {"upper_left": (0, 0), "upper_right": (0, -1), "lower_left": (-1, 0), "lower_right": (-1, -1)}
    points = "".join(
        f"<point><frame>{frame}</frame><latitude>{lat[place]}</latitude><longitude>{lon[place]}</longitude></point>"
        for frame, place in places.items()
    )
    return f"<spatialCoverage><boundingPolygon>{points}</boundingPolygon></spatialCoverage>"


def _write_layers(path: Path, layers: np.ndarray, nodata: float | None, crs: CRS | None = UTM) -> None:
    count, rows, cols = layers.shape
    grid = {} if crs is None else {"crs": crs, "transform": GRID}
    with ignore_missing_georeference(), rasterio.open(
        path, "w", driver="GTiff", height=rows, width=cols, count=count, dtype=layers.dtype, nodata=nodata, **grid
    ) as file:  # fmt: skip
        file.write(layers)


def zipped(folder: Path, path: Path) -> Path:
    """A folder as a zip that has the folder's name as its first folder."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
    return path


def smooth_cube(rows: int, cols: int, bands: int, seed: int = 0) -> np.ndarray:
    """Reflectance (rows, cols, bands) between 0.05 and 0.6."""
    generator = np.random.default_rng(seed)
    return (generator.uniform(0.1, 1, (rows, cols, 1)) * generator.uniform(0.5, 0.6, bands)).astype(np.float32)


PRISMA_VNIR = np.array([0.0, 972, 860, 670, 560, 450])  # in reverse order; 0 is not a band
PRISMA_SWIR = np.array([2200.0, 1650, 1050, 961, 0])
PRISMA_MIN_MAX = {"Vnir": (0.0, 0.8), "Swir": (0.01, 0.9)}


def write_prisma(path: Path, samples: np.ndarray, level: str = "L2D", chunks: tuple[int, ...] | None = None) -> Path:
    """A PRISMA product of samples (rows, cols, bands of both detectors).

    Layout: prismaread (pr_convert.R, pr_setext_L2D.R), EnMAP-Box's importers and SNAP's PRISMA reader.
    """
    rows, cols, _ = samples.shape
    path.parent.mkdir(exist_ok=True)
    cubes = np.split(samples.transpose(0, 2, 1), [len(PRISMA_VNIR)], axis=1)
    with h5py.File(path, "w") as file:
        file.attrs["Processing_Level"] = np.bytes_(level[1:])
        file.attrs["Product_StartTime"] = np.bytes_("2024-04-02T10:28:37.932000")
        group = file.create_group(f"HDFEOS/SWATHS/PRS_{level}_HCO")
        for detector, nm, cube in zip(("Vnir", "Swir"), (PRISMA_VNIR, PRISMA_SWIR), cubes, strict=True):
            file.attrs[f"List_Cw_{detector}"] = nm.astype(np.float32)
            file.attrs[f"List_Cw_{detector}_Flags"] = (nm > 0).astype(np.uint8)
            file.attrs[f"List_Fwhm_{detector}"] = np.where(nm > 0, 10, 0).astype(np.float32)
            low, high = PRISMA_MIN_MAX[detector]
            file.attrs[f"L2Scale{detector}Min"], file.attrs[f"L2Scale{detector}Max"] = np.float32(low), np.float32(high)
            file.attrs[f"ScaleFactor_{detector}"], file.attrs[f"Offset_{detector}"] = np.float32(100), np.float32(0)
            options = {} if chunks is None else {"chunks": chunks, "compression": "gzip"}
            group.create_dataset(f"Data Fields/{detector.upper()}_Cube", data=cube.astype(np.uint16), **options)
        _write_prisma_flags(group, level, (rows, cols))
        endings = ("_VNIR", "_SWIR") if level == "L1" else ("",)
        lon, lat = positions(rows, cols)
        for ending in endings:
            group[f"Geolocation Fields/Longitude{ending}"] = lon.astype(np.float32)
            group[f"Geolocation Fields/Latitude{ending}"] = lat.astype(np.float32)
        if level == "L2D":
            file.attrs["Epsg_Code"] = np.uint32(32633)
            file.attrs["Product_ULcorner_easting"] = np.float32(380_015)
            file.attrs["Product_ULcorner_northing"] = np.float32(5_819_985)
        if level == "L1":
            cloud = np.zeros((rows, cols), np.uint8)
            cloud[2:4, 3:6], cloud[0, 0], cloud[-1, -1] = 1, 10, 255
            group["Data Fields/Cloud_Mask"] = cloud
            group["Data Fields/LandCover_Mask"] = np.full((rows, cols), 2, np.uint8)
    return path


def _write_prisma_flags(group: h5py.Group, level: str, shape: tuple[int, int]) -> None:
    """The pixel error matrices: a saturated sample at 560 nm, defective ones at 1050 nm and in what is no band."""
    name, saturated = ("SAT_ERR_MATRIX", 2) if level == "L1" else ("L2_ERR_MATRIX", 3)
    vnir, swir = (np.zeros((shape[0], len(nm), shape[1]), np.uint8) for nm in (PRISMA_VNIR, PRISMA_SWIR))
    vnir[-1, 4, 1], swir[-2, 2, 2], swir[-2, 4, 3] = saturated, 1, 1
    group["Data Fields/VNIR_PIXEL_" + name], group["Data Fields/SWIR_PIXEL_" + name] = vnir, swir


def positions(rows: int, cols: int, moved: float = 0) -> tuple[np.ndarray, np.ndarray]:
    """Longitude and latitude of the pixels of a swath that is rotated by about 12 degrees, at 30 m.

    `moved` by -0.5, they are those of the pixels' upper left corners.
    """
    row, col = np.mgrid[:rows, :cols] + float(moved)
    east, north = 30 * (0.978 * col - 0.208 * row), -30 * (0.208 * col + 0.978 * row)
    return 13.1 + east / (111_320 * np.cos(np.radians(52.5))), 52.5 + north / 111_320


EMIT_NM = np.array([450.0, 560, 670, 860, 1360, 1650, 2200])
EMIT_GOOD = np.array([1, 1, 1, 1, 0, 1, 1], np.uint8)
EMIT_FLAGS = ("Cloud flag", "Cirrus flag", "Water flag", "Spacecraft Flag", "Dilated Cloud Flag", "AOD550",
              "H2O (g cm-2)", "Aggregate Flag")  # fmt: skip


def write_emit(folder: Path, cube: np.ndarray, chunks: tuple[int, int, int] | None = None) -> Path:
    """An EMIT reflectance file with its mask file beside it.

    Layout: emit-sds/emit-utils (daac_converter.py) and GDAL's fake_EMIT_L2A_with_good_wavelengths.nc.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "EMIT_L2A_RFL_001_20220815T042838_2222703_003.nc"
    rows, cols, _ = cube.shape
    with h5py.File(path, "w") as file:
        _emit_location(file, rows, cols)
        options = {} if chunks is None else {"chunks": chunks, "compression": "gzip"}
        file.create_dataset("reflectance", data=cube.astype(np.float32), **options).attrs["_FillValue"] = np.float32(
            [-9999]
        )
        file["sensor_band_parameters/wavelengths"] = EMIT_NM.astype(np.float32)
        file["sensor_band_parameters/fwhm"] = np.full(len(EMIT_NM), 8.5, np.float32)
        file["sensor_band_parameters/good_wavelengths"] = EMIT_GOOD
    flags = np.zeros((rows, cols, len(EMIT_FLAGS)), np.float32)
    flags[1:3, 1:4, 0], flags[0, :2, 1], flags[:5, :6, 4], flags[:6, :6, 7] = 1, 1, 1, 1
    flags[..., 5] = 0.12
    with h5py.File(folder / path.name.replace("_RFL_", "_MASK_"), "w") as file:
        _emit_location(file, rows, cols)
        file["mask"] = flags
        file["sensor_band_parameters/mask_bands"] = np.array(EMIT_FLAGS, dtype=object)
    return path


def lookup_table(rows: int, cols: int) -> tuple[np.ndarray, np.ndarray, float, float, float]:
    """Column and row from 1 of the nearest pixel of `positions`, on a grid of degrees: its west, north and step."""
    lon, lat = positions(rows, cols)
    step = 30 / 111_320
    west, north = float(lon.min() - step), float(lat.max() + step)
    x = west + step * (np.arange(round((lon.max() - west) / step) + 2) + 0.5)
    y = north - step * (np.arange(round((north - lat.min()) / step) + 2) + 0.5)
    distance = np.hypot(x[None, :, None] - lon.ravel(), y[:, None, None] - lat.ravel())
    nearest, found = distance.argmin(axis=-1), distance.min(axis=-1) < step
    return np.where(found, nearest % cols + 1, 0), np.where(found, nearest // cols + 1, 0), west, north, step


def _emit_location(file: h5py.File, rows: int, cols: int) -> None:
    """Positions, and the lookup table that follows from them."""
    col, row, west, north, step = lookup_table(rows, cols)
    file.attrs["instrument"] = np.bytes_("EMIT")
    file.attrs["time_coverage_start"] = np.bytes_("2022-08-15T04:28:38+0000")
    file.attrs["spatial_ref"] = np.bytes_(rasterio.crs.CRS.from_epsg(4326).to_wkt())
    file.attrs["geotransform"] = np.array([west, step, 0, north, 0, -step])
    file["location/glt_x"], file["location/glt_y"] = col.astype(np.int32), row.astype(np.int32)
    file["location/lon"], file["location/lat"] = positions(rows, cols)


NEON_NM = np.array([450.0, 560, 670, 860, 1400, 1650, 2200])


def write_neon(path: Path, cube: np.ndarray) -> Path:
    """A NEON reflectance tile.

    Layout: NEON's tutorials on DP3.30006.001 (Map_Info, EPSG Code, Band_Window attributes) and HyperCoast's neon.py.
    """
    with h5py.File(path, "w") as file:
        group = file.create_group("SERC/Reflectance")
        group.attrs["Band_Window_1_Nanometers"] = np.array([1340, 1445], np.float32)
        group.attrs["Band_Window_2_Nanometers"] = np.array([1790, 1955], np.float32)
        data = group.create_dataset("Reflectance_Data", data=np.round(cube * 10_000).astype(np.int16))
        data.attrs["Scale_Factor"], data.attrs["Data_Ignore_Value"] = np.float64(10_000), np.float64(-9999)
        group["Metadata/Spectral_Data/Wavelength"] = NEON_NM
        group["Metadata/Spectral_Data/FWHM"] = np.full(len(NEON_NM), 5.8)
        group["Metadata/Coordinate_System/Map_Info"] = np.bytes_(
            "UTM,  1.000,  1.000, 368000.00,  4307000.0, 1.0000000, 1.0000000, 18, North, WGS-84, units=Meters"
        )
        group["Metadata/Coordinate_System/EPSG Code"] = np.bytes_("32618")
    return path


def write_tanager(path: Path, cube: np.ndarray, *, is_ortho: bool = True) -> Path:
    """A Tanager surface reflectance file.

    Layout: Planet's Tanager product specification of November 2025, section 3.6.
    """
    rows, cols, bands = cube.shape
    with h5py.File(path, "w") as file:
        root = file.create_group(f"HDFEOS/{'GRIDS' if is_ortho else 'SWATHS'}/HYP")
        fields = root.create_group("Data Fields")
        data = fields.create_dataset(
            "surface_reflectance", data=cube.transpose(2, 0, 1), chunks=(1, rows, cols), compression="gzip"
        )
        data.attrs["wavelengths"], data.attrs["fwhm"] = EMIT_NM[:bands], np.full(bands, 5.5)
        data.attrs["good_wavelengths"], data.attrs["_FillValue"] = EMIT_GOOD[:bands], np.float32(-9999)
        for name, place in (("beta_cloud_mask", (1, 2)), ("beta_cirrus_mask", (3, 3)), ("nodata_pixels", (0, 0))):
            layer = np.zeros((rows, cols), np.uint32)
            layer[place] = 1
            fields[name] = layer
        if is_ortho:
            root.attrs["epsg_code"] = 32613
            file["HDFEOS INFORMATION/StructMetadata.0"] = np.bytes_(
                f"GROUP=GridStructure\nUpperLeftPointMtrs=(570300.00,3555450.00)\n"
                f"LowerRightMtrs=({570300 + 30 * cols}.00,{3555450 - 30 * rows}.00)\nZoneCode=13"
            )
        else:
            lon, lat = positions(rows, cols)
            root["Geolocation Fields/Longitude"], root["Geolocation Fields/Latitude"] = lon, lat
    return path


def write_pace(path: Path, cube: np.ndarray) -> Path:
    """A PACE OCI surface reflectance file.

    Layout: OB.DAAC's level 2 format as read by HyperCoast (pace.py) and SNAP; packed as int16.
    """
    rows, cols, bands = cube.shape
    with h5py.File(path, "w") as file:
        file.attrs["time_coverage_start"] = np.bytes_("2024-08-09T10:50:59.000Z")
        data = file.create_dataset("geophysical_data/rhos", data=np.round((cube - 0.05) / 2e-5).astype(np.int16))
        data.attrs["scale_factor"], data.attrs["add_offset"] = np.float32(2e-5), np.float32(0.05)
        data.attrs["_FillValue"] = np.int16(-32767)
        flags = np.zeros((rows, cols), np.int32)
        flags[0, 1], flags[2, 2] = 1 << 9, 1 << 1
        layer = file.create_dataset("geophysical_data/l2_flags", data=flags)
        layer.attrs["flag_masks"] = np.array([1, 2, 512], np.int32)
        layer.attrs["flag_meanings"] = np.bytes_("ATMFAIL LAND CLDICE")
        file["sensor_band_parameters/wavelength_3d"] = EMIT_NM[:bands]
        lon, lat = positions(rows, cols)
        file["navigation_data/longitude"], file["navigation_data/latitude"] = lon, lat
    return path


def write_aviris3(path: Path, cube: np.ndarray) -> Path:
    """An orthorectified AVIRIS-3 reflectance file.

    Layout: ORNL DAAC's AVIRIS-3 L2A guide as read by HyperCoast (aviris.py).
    """
    with h5py.File(path, "w") as file:
        data = file.create_dataset("reflectance/reflectance", data=cube.transpose(2, 0, 1))
        data.attrs["_FillValue"], data.attrs["grid_mapping"] = np.float32([-9999]), np.bytes_("transverse_mercator")
        file["reflectance/wavelength"], file["reflectance/fwhm"] = EMIT_NM, np.full(len(EMIT_NM), 7.4)
        mapping = file.create_dataset("transverse_mercator", data=b"")
        mapping.attrs["spatial_ref"] = np.bytes_(UTM.to_wkt())
        mapping.attrs["GeoTransform"] = np.bytes_("380000.0 30.0 0.0 5820000.0 0.0 -30.0")
    return path


def write_aviris3_radiance(path: Path, cube: np.ndarray) -> Path:
    """AVIRIS-3 radiance in sensor geometry with its lookup table.

    Layout: emit-sds's netCDF readers and HyTools (open_netcdf.py): sample and line from 1, 0 for none.
    """
    write_aviris3(path, cube)
    col, row, west, north, step = lookup_table(*cube.shape[:2])
    with h5py.File(path, "r+") as file:
        file.move("reflectance", "radiance")
        file.move("radiance/reflectance", "radiance/radiance")
        file["geolocation_lookup_table/sample"] = np.where(row % 3 == 1, -col, col)  # fills gaps
        file["geolocation_lookup_table/line"] = np.where(row % 3 == 1, -row, row)
        mapping = file["transverse_mercator"].attrs
        mapping["spatial_ref"] = np.bytes_(CRS.from_epsg(4326).to_wkt())
        mapping["GeoTransform"] = np.bytes_(f"{west!r} {step!r} 0 {north!r} 0 {-step!r}")
    return path


def write_aviris_ng(folder: Path, cube: np.ndarray, *, has_table: bool = True) -> Path:
    """AVIRIS-NG radiance in ENVI without georeference, with positions (igm) and a lookup table (glt) beside it.

    Layout: JPL's AVIRIS-NG distribution document: igm has easting, northing and elevation, glt sample and line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    line, (rows, cols) = "ang20150422t163638", cube.shape[:2]
    nm = ", ".join(map(str, EMIT_NM[: cube.shape[2]]))
    image = _envi(folder / f"{line}_rdn_v1e_img", cube, f"wavelength = {{{nm}}}\nwavelength units = Nanometers\n")
    lon, lat = positions(rows, cols)
    east, north = (np.reshape(values, lon.shape) for values in transform(4326, 32633, lon.ravel(), lat.ravel()))
    system = f"coordinate system string = {{{CRS.from_epsg(32633).to_wkt(version=WktVersion.WKT1_ESRI)}}}\n"
    _envi(folder / f"{line}_ort_igm", np.stack([east, north, np.zeros_like(east)], axis=-1), system)
    if has_table:
        col, row, west, top, step = lookup_table(rows, cols)
        grid = f"map info = {{Geographic Lat/Lon, 1, 1, {west!r}, {top!r}, {step!r}, {step!r}, WGS-84}}\n"
        _envi(folder / f"{line}_ort_glt", np.stack([col, row], axis=-1).astype(np.int32), grid)
    return image


def _envi(path: Path, cube: np.ndarray, header: str) -> Path:
    """ENVI data without an extension, and without georeference unless the header says one."""
    rows, cols, bands = cube.shape
    cube.transpose(2, 0, 1).tofile(path)
    kind = {"int16": 2, "int32": 3, "float32": 4, "float64": 5}[cube.dtype.name]
    path.with_name(f"{path.name}.hdr").write_text(
        f"ENVI\nsamples = {cols}\nlines = {rows}\nbands = {bands}\nheader offset = 0\nfile type = ENVI Standard\n"
        f"data type = {kind}\ninterleave = bsq\nbyte order = 0\n{header}"
    )
    return path


def write_netcdf3(path: Path, cube: np.ndarray, order: str, version: int) -> Path:
    """A cube in classic netCDF, written by scipy: packed, with its axes in the order of r(ows), c(ols) and b(ands)."""
    with netcdf_file(path, "w", version=version) as file:
        file.createDimension("time", None)
        for axis, size in zip("rcb", cube.shape, strict=True):
            file.createDimension(axis, size)
        file.createVariable("time", "f8", ("time",))[:] = np.arange(3)
        nm = file.createVariable("wavelength", "f4", ("b",))
        nm[:], nm.units = EMIT_NM[: cube.shape[2]] / 1000, "micrometers"
        data = file.createVariable("cube", "f4", tuple(order))
        data[:] = cube.transpose(["rcb".index(axis) for axis in order])
        data.scale_factor, data.add_offset, data._FillValue = 2.0, 1.0, np.float32(-999)
    return path


def write_desis(folder: Path, values: np.ndarray, wavelengths: np.ndarray | None = None) -> Path:
    """A DESIS L2A folder.

    Layout: EnMAP-Box's importer (ENVI header with gains), and the layers of QL_QUALITY-2 in RemoteSensing.jl.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = "DESIS-HSI-L2A-DT1203190212_025-20191203T021128-V0210"
    _write_layers(folder / f"{stem}-SPECTRAL_IMAGE.tif", np.moveaxis(values, -1, 0), NODATA)
    rows, cols, bands = values.shape
    nm = ", ".join(
        f"{number:.2f}" for number in (402 + 2.55 * np.arange(bands) if wavelengths is None else wavelengths)
    )
    (folder / f"{stem}-SPECTRAL_IMAGE.hdr").write_text(
        f"ENVI\nband names = {{\n a, b}}\nwavelength  = {{\n{nm}}}\nfwhm = {{{', '.join(['3.5'] * bands)}}}\n"
        f"data gain values = {{{', '.join(['0.0001'] * bands)}}}\ndata offset values = {{{', '.join(['0'] * bands)}}}\n"
    )
    (folder / f"{stem}-METADATA.xml").write_text(
        "<hsi_doc><base><temporalCoverage><startTime>2019-12-03T02:11:28Z</startTime></temporalCoverage></base></hsi_doc>"
    )
    quality = np.zeros((10, rows, cols), np.uint8)
    quality[0, 1, 1], quality[5, 2, 2], quality[6, 3, 3], quality[7, 4, 4] = 1, 1, 1, 1
    _write_layers(folder / f"{stem}-QL_QUALITY-2.tif", quality, None)
    return folder


def prisma_samples(rows: int = 9, cols: int = 7) -> np.ndarray:
    """Samples (rows, cols, bands of both detectors), with two rows without data."""
    samples = np.random.default_rng(1).integers(1, 65535, (rows, cols, len(PRISMA_VNIR) + len(PRISMA_SWIR)))
    samples[:2] = 0
    return samples


KINDS = ("EnMAP", "EnMAP L1B", "PRISMA", "PRISMA L1", "EMIT", "NEON", "Tanager", "Tanager basic", "PACE", "AVIRIS-3",
         "AVIRIS-3 radiance", "AVIRIS-NG", "DESIS", "netCDF-3")  # fmt: skip


def write_any(kind: str, folder: Path) -> Path:
    """A product of 20 x 17 pixels of one of KINDS, in a new folder."""
    folder.mkdir()
    cube = smooth_cube(20, 17, len(EMIT_NM))
    return {
        "EnMAP": lambda: zipped(write_enmap(folder / ENMAP_STEM, enmap_values(20, 17)), folder / "p.zip"),
        "PRISMA": lambda: write_prisma(folder / "p.he5", prisma_samples(20, 17)),
        "PRISMA L1": lambda: write_prisma(folder / "p.he5", prisma_samples(20, 17), "L1"),
        "EMIT": lambda: write_emit(folder, cube),
        "NEON": lambda: write_neon(folder / "n.h5", cube),
        "Tanager": lambda: write_tanager(folder / "t.h5", cube),
        "Tanager basic": lambda: write_tanager(folder / "t.h5", cube, is_ortho=False),
        "PACE": lambda: write_pace(folder / "PACE_OCI.nc", cube[..., [0, 1, 2, 3, 5]]),
        "AVIRIS-3": lambda: write_aviris3(folder / "AV3.nc", cube),
        "AVIRIS-3 radiance": lambda: write_aviris3_radiance(folder / "AV3.nc", cube),
        "AVIRIS-NG": lambda: write_aviris_ng(folder / "ang", cube, has_table=False),
        "EnMAP L1B": lambda: write_enmap_l1b(folder / ENMAP_STEM, enmap_values(20, 17)),
        "DESIS": lambda: write_desis(folder / "desis", (cube * 10_000).astype(np.int16), EMIT_NM),
        "netCDF-3": lambda: write_netcdf3(folder / "cube.nc", cube, "brc", 2),
    }[kind]()
