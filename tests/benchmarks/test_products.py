"""Time and memory of mapping full-size products, beside the same cube as a tiled GeoTIFF.

Measured: `pytest tests/benchmarks/test_products.py --benchmark-enable -s`. As a test: small products are mapped.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio

from hyperscene.model.bundle import DEMO_BUNDLE
from tests.products import write_enmap_of, zipped
from tests.scenes import GRID, UTM

ROUNDS = 2
NOISE_ROWS = 64
SCALE = 10_000
# rows, cols, bands, sample type, and the chunks of an HDF5 cube
SIZES = {
    "EnMAP zip": (2_000, 1_000, 224, "int16", None),
    "EMIT netCDF": (1_280, 1_242, 285, "float32", (256, 249, 57)),
    "PRISMA he5": (1_000, 1_000, 230, "uint16", (100, 230, 100)),
}


@lru_cache(maxsize=1)
def noise(cols: int, bands: int) -> np.ndarray:
    """Some rows of noise (rows, cols, bands), which are used again and again."""
    generator = np.random.default_rng(0)
    factors = generator.uniform(0.7, 1.3, (NOISE_ROWS, cols, 1)).astype(np.float32)
    return factors + 0.02 * generator.standard_normal((NOISE_ROWS, cols, bands), np.float32)


def rows_of(top: int, bottom: int, cols: int, bands: int) -> np.ndarray:
    """Reflectance (rows, cols, bands) of smooth spectra with some noise, the same for any division into blocks."""
    row = np.arange(top, bottom)
    shape = 0.2 + 0.15 * np.sin(np.linspace(0, 6, bands) + row[:, None] / 40).astype(np.float32)
    return shape[:, None] * noise(cols, bands)[row % NOISE_ROWS]


def write_both(kind: str, folder: Path, rows: int, cols: int) -> tuple[Path, Path]:
    """The product, and the same samples as a tiled, deflated GeoTIFF."""
    _, _, bands, dtype, chunks = SIZES[kind]
    nm = np.linspace(420, 2450, bands)
    plain = folder / "plain.tif"
    options = {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "deflate", "bigtiff": "if_safer"}
    profile = {"height": rows, "width": cols, "count": bands, "dtype": dtype, "crs": UTM, "transform": GRID}
    # Whole tiles are written at once, because a tile that is written twice is packed twice.
    with rasterio.open(plain, "w", driver="GTiff", **profile, **options) as file:
        for band in range(1, bands + 1):
            file.update_tags(band, wavelength=str(nm[band - 1]), wavelength_units="Nanometers")
        file.scales = [1 / SCALE if dtype != "float32" else 1.0] * bands
        for top in range(0, rows, 256):
            block = samples_of(top, min(top + 256, rows), cols, bands, dtype)
            file.write(np.moveaxis(block, -1, 0), window=rasterio.windows.Window(0, top, cols, len(block)))
    if kind == "EnMAP zip":
        product = folder / "ENMAP01-____L2A-DT0000000001_20220724T104526Z_001_V010302_20230628T165614Z"
        write_enmap_of(product, plain, nm, 1 / SCALE)
        return zipped(product, folder / "product.zip"), plain
    assert chunks is not None
    return write_cube(kind, folder, rows, cols, nm, dtype, chunks), plain


def samples_of(top: int, bottom: int, cols: int, bands: int, dtype: str) -> np.ndarray:
    """Samples as they are stored."""
    values = rows_of(top, bottom, cols, bands)
    return values if dtype == "float32" else np.round(values.clip(0, 1) * SCALE).astype(dtype)


def write_cube(kind: str, folder: Path, rows: int, cols: int, nm: np.ndarray, dtype: str, chunks: tuple) -> Path:
    """An HDF5 product, written by blocks of rows."""
    bands, is_emit = len(nm), kind == "EMIT netCDF"
    path = folder / ("EMIT_L2A_RFL_001_20220815T042838_2222703_003.nc" if is_emit else "PRS_L2D_STD_1_2_0001.he5")
    with h5py.File(path, "w") as file:
        if is_emit:
            file.attrs["instrument"] = np.bytes_("EMIT")
            write_table(file, rows, cols)
            cube = file.create_dataset(
                "reflectance", (rows, cols, bands), dtype, chunks=tuple(map(min, chunks, (rows, cols, bands))),
                compression="gzip", compression_opts=4,
            )  # fmt: skip
            file["sensor_band_parameters/wavelengths"], file["sensor_band_parameters/fwhm"] = nm, np.full(bands, 8.5)
        else:
            parts = {"Vnir": nm[:66][::-1], "Swir": nm[66:][::-1]}
            cubes = {}
            for detector, own in parts.items():
                file.attrs[f"List_Cw_{detector}"] = own
                file.attrs[f"List_Fwhm_{detector}"] = np.full(len(own), 10.0)
                file.attrs[f"L2Scale{detector}Min"], file.attrs[f"L2Scale{detector}Max"] = 0.0, 65535 / SCALE
                shape = (rows, len(own), cols)
                cubes[detector] = file.create_dataset(
                    f"HDFEOS/SWATHS/PRS_L2D_HCO/Data Fields/{detector.upper()}_Cube", shape, dtype,
                    chunks=tuple(map(min, chunks, shape)), compression="gzip", compression_opts=4,
                )  # fmt: skip
            file.attrs["Epsg_Code"] = 32633
            file.attrs["Product_ULcorner_easting"], file.attrs["Product_ULcorner_northing"] = 380_015, 5_819_985
        for top in range(0, rows, chunks[0]):
            block = samples_of(top, min(top + chunks[0], rows), cols, bands, dtype)
            if is_emit:
                cube[top : top + len(block)] = block
            else:
                stored = block.transpose(0, 2, 1)
                cubes["Vnir"][top : top + len(block)] = stored[:, :66][:, ::-1]
                cubes["Swir"][top : top + len(block)] = stored[:, 66:][:, ::-1]
    return path


def write_table(file: h5py.File, rows: int, cols: int) -> None:
    """A lookup table (GLT) of a swath that is turned by 12 degrees on the ground."""
    cosine, sine = np.cos(np.radians(12)), np.sin(np.radians(12))
    height, width = (round(a * cosine + b * sine) + 1 for a, b in ((rows, cols), (cols, rows)))
    down, right = np.mgrid[:height, :width].astype(np.float32)
    down, right = down - (height - 1) / 2, right - (width - 1) / 2
    row = np.rint(cosine * down - sine * right + (rows - 1) / 2).astype(np.int32)
    col = np.rint(sine * down + cosine * right + (cols - 1) / 2).astype(np.int32)
    is_inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    for name, index in (("glt_x", col), ("glt_y", row)):
        file.create_dataset(f"location/{name}", data=np.where(is_inside, index + 1, 0), chunks=True, compression="gzip")
    file.attrs["spatial_ref"] = np.bytes_(rasterio.crs.CRS.from_epsg(4326).to_wkt())
    file.attrs["geotransform"] = np.array([13.0, 0.0005, 0, 52.5, 0, -0.0005])


def on_ground(product: Path, classes: np.ndarray) -> np.ndarray:
    """A class map in sensor geometry, laid out by the product's own table."""
    with h5py.File(product) as file:
        col, row = file["location/glt_x"][()], file["location/glt_y"][()]
    return np.where(col > 0, classes[row - 1, col - 1], 0)


def classify(scene: Path, output: Path) -> tuple[float, int]:
    """CPU seconds, and the largest resident memory in bytes."""
    command = [sys.executable, "-m", "hyperscene.service.cli", "classify", scene, "-o", output, "--bundle", DEMO_BUNDLE]
    process = os.posix_spawn(sys.executable, list(map(str, command)), os.environ)
    _, status, used = os.wait4(process, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime, used.ru_maxrss << 10


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", SIZES)
def test_a_full_size_product_costs_what_its_geotiff_costs(tmp_path, request, kind):
    measures = request.config.getoption("--benchmark-enable")
    rows, cols = SIZES[kind][:2] if measures else (40, 36)
    product, plain = write_both(kind, tmp_path, rows, cols)
    measured = {"product": [], "GeoTIFF": []}
    for number in range(ROUNDS if measures else 1):
        for name, path in (("product", product), ("GeoTIFF", plain)):
            measured[name].append(classify(path, tmp_path / f"{name}-{number}"))
    maps = []
    for name in measured:
        with rasterio.open(tmp_path / f"{name}-0" / "classes.tif") as file:
            maps.append(file.read(1))
    if kind == "EMIT netCDF":
        maps[1] = on_ground(product, maps[1])
    assert maps[0].shape == maps[1].shape
    assert (maps[0] == maps[1]).mean() > 0.999
    for name, runs in measured.items():
        seconds, used = min(run[0] for run in runs), max(run[1] for run in runs)
        print(f"\n{kind}, {rows} x {cols} x {SIZES[kind][2]}, {name}: {seconds:.1f} CPU s, {used >> 20} MB", end="")
