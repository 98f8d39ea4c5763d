"""Small products in the layouts that agencies publish; each writer names the source of its layout."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np
import rasterio

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


def write_enmap(folder: Path, values: np.ndarray, *, level: str = "L2A", image: str = "SPECTRAL_IMAGE.TIF") -> Path:
    """An EnMAP product folder with METADATA.XML, image, and a cloud, a shadow and a class layer.

    Layout: DLR's test product in the EnMAP reader of SNAP (senbox-org/optical-toolbox), and EnMAP-Box's importers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = ENMAP_STEM.replace("L2A", level)
    layers = np.moveaxis(values, -1, 0)
    if level == "L1B":  # an image for each detector
        is_swir = np.isin(np.arange(1, len(layers) + 1), ENMAP_SWIR)
        _write_layers(folder / f"{stem}-SPECTRAL_IMAGE_VNIR.TIF", layers[~is_swir], NODATA)
        _write_layers(folder / f"{stem}-SPECTRAL_IMAGE_SWIR.TIF", layers[is_swir], NODATA)
    else:
        _write_layers(folder / f"{stem}-{image}", layers, NODATA)
    rows, cols, _ = values.shape
    for name, mask in enmap_masks(rows, cols).items():
        _write_layers(folder / f"{stem}-QL_QUALITY_{name}.TIF", mask[None].astype(np.uint8), None)
    (folder / f"{stem}-METADATA.XML").write_text(_enmap_xml(level))
    return folder


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
) -> str:
    bands, statistics = [], []
    for number, nm in enumerate(nms, start=1):
        bands.append(
            f'<bandID number="{number}"><wavelengthCenterOfBand>{nm}</wavelengthCenterOfBand><FWHMOfBand>9</FWHMOfBand>'
            f"<GainOfBand>{gain}</GainOfBand><OffsetOfBand>0</OffsetOfBand></bandID>"
        )
        mean, deviation = (-1000000, 0) if number in empty else (0.2, 0.05)
        statistics.append(
            f'<bandID number="{number}"><mean>{mean}</mean><stdDeviation>{deviation}</stdDeviation></bandID>'
        )
    vnir = ",".join(str(band) for band in range(1, len(nms) + 1) if band not in swirs)
    return (
        f"<level_X><base><level>{level}</level><temporalCoverage><startTime>2022-07-24T10:45:26.123Z</startTime>"
        f"</temporalCoverage></base><specific><bandCharacterisation>{''.join(bands)}</bandCharacterisation>"
        f"<vnirProductQuality><expectedChannelsList>{vnir}</expectedChannelsList></vnirProductQuality>"
        f"<swirProductQuality><expectedChannelsList>{','.join(map(str, swirs))}</expectedChannelsList>"
        f"</swirProductQuality></specific><product><bandStatistics>{''.join(statistics)}</bandStatistics></product>"
        "</level_X>"
    )


def _write_layers(path: Path, layers: np.ndarray, nodata: float | None) -> None:
    count, rows, cols = layers.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=rows, width=cols, count=count, dtype=layers.dtype, nodata=nodata, crs=UTM,
        transform=GRID,
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


def positions(rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
    """Longitude and latitude of the pixels of a swath that is rotated by about 12 degrees, at 30 m."""
    row, col = np.mgrid[:rows, :cols].astype(float)
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
    flags[1:3, 1:4, 0], flags[0, :2, 1], flags[:5, :6, 4] = 1, 1, 1
    flags[..., 5] = 0.12
    with h5py.File(folder / path.name.replace("_RFL_", "_MASK_"), "w") as file:
        _emit_location(file, rows, cols)
        file["mask"] = flags
        file["sensor_band_parameters/mask_bands"] = np.array(EMIT_FLAGS, dtype=object)
    return path


def _emit_location(file: h5py.File, rows: int, cols: int) -> None:
    """Positions, and the lookup table that follows from them: the nearest pixel's column and row, from 1."""
    lon, lat = positions(rows, cols)
    step = 30 / 111_320
    west, north = lon.min() - step, lat.max() + step
    x = west + step * (np.arange(round((lon.max() - west) / step) + 2) + 0.5)
    y = north - step * (np.arange(round((north - lat.min()) / step) + 2) + 0.5)
    distance = np.hypot(x[None, :, None] - lon.ravel(), y[:, None, None] - lat.ravel())
    nearest, found = distance.argmin(axis=-1), distance.min(axis=-1) < step
    file.attrs["instrument"] = np.bytes_("EMIT")
    file.attrs["time_coverage_start"] = np.bytes_("2022-08-15T04:28:38+0000")
    file.attrs["spatial_ref"] = np.bytes_(rasterio.crs.CRS.from_epsg(4326).to_wkt())
    file.attrs["geotransform"] = np.array([west, step, 0, north, 0, -step])
    file["location/glt_x"] = np.where(found, nearest % cols + 1, 0).astype(np.int32)
    file["location/glt_y"] = np.where(found, nearest // cols + 1, 0).astype(np.int32)
    file["location/lon"], file["location/lat"] = lon, lat


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


def write_desis(folder: Path, values: np.ndarray) -> Path:
    """A DESIS L2A folder.

    Layout: EnMAP-Box's importer (ENVI header with gains), and the layers of QL_QUALITY-2 in RemoteSensing.jl.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = "DESIS-HSI-L2A-DT1203190212_025-20191203T021128-V0210"
    _write_layers(folder / f"{stem}-SPECTRAL_IMAGE.tif", np.moveaxis(values, -1, 0), NODATA)
    rows, cols, bands = values.shape
    nm = ", ".join(f"{402 + 2.55 * band:.2f}" for band in range(bands))
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
