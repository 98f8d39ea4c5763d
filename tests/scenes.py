"""Small scenes with known labels, in memory and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
from rasterio.crs import CRS
from rasterio.transform import Affine, from_origin

from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.training.data.classes import FileLegend
from hyperscene.training.data.datasets import Cube, LabelledScene, label_cube
from hyperscene.training.data.label_files import Labels

UTM = CRS.from_epsg(32633)
GRID = from_origin(380_000, 5_820_000, 30, 30)
WAVELENGTHS = np.linspace(450, 900, 5)  # in nm, those of the test bundles
WAVELENGTH_LINE = "wavelength units = Nanometers\nwavelength = {" + ", ".join(map(str, WAVELENGTHS)) + "}\n"


def quadrants(rows: int, cols: int, classes: int = 4) -> np.ndarray:
    """Labels 1..classes in four rectangles."""
    row, col = np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij")
    return (((row >= rows // 2) * 2 + (col >= cols // 2)) % classes + 1).astype(np.uint8)


def spectra_of(labels: np.ndarray, bands: int, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """A cube with one spectrum per label, plus noise."""
    generator = np.random.default_rng(seed)
    library = generator.uniform(0.1, 0.9, (int(labels.max()) + 1, bands))
    return (library[labels] + generator.normal(0, noise, (*labels.shape, bands))).astype(np.float32)


def labelled_scene(
    rows: int = 24, cols: int = 22, bands: int = 6, classes: int = 4, noise: float = 0.05
) -> LabelledScene:
    """A labelled scene in memory."""
    labels = quadrants(rows, cols, classes)
    values = spectra_of(labels, bands, noise)
    cube = Cube("made", values, np.ones(labels.shape, bool), wavelengths_nm=np.linspace(450, 900, bands))
    return label_cube(cube, Labels(labels.astype(np.int64), FileLegend({}, {})))


def write_tif(
    path: Path,
    values: np.ndarray,
    *,
    nodata: float | None = None,
    crs: CRS | None = UTM,
    transform: Affine | None = GRID,
    wavelengths_nm: np.ndarray | None = None,
    **options: object,
) -> Path:
    """Values (rows, cols) or (rows, cols, bands) as GeoTIFF."""
    layers = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
    count, rows, cols = layers.shape
    with ignore_missing_georeference():
        file = rasterio.open(
            path, "w", driver="GTiff", height=rows, width=cols, count=count, dtype=layers.dtype, nodata=nodata,
            crs=crs, transform=transform, **options,
        )  # fmt: skip
    with file:
        file.write(layers)
        for band, wavelength_nm in enumerate(() if wavelengths_nm is None else wavelengths_nm, start=1):
            file.update_tags(band, wavelength=str(wavelength_nm), wavelength_units="Nanometers")
    return path


def write_envi(path: Path, values: np.ndarray, header: str = "", interleave: str = "BSQ", **options: object) -> Path:
    """Values (rows, cols, bands) as ENVI, with lines added to the header."""
    layers = np.moveaxis(values, -1, 0)
    count, rows, cols = layers.shape
    with rasterio.open(
        path, "w", driver="ENVI", height=rows, width=cols, count=count, dtype=layers.dtype, crs=UTM, transform=GRID,
        interleave=interleave, **options,
    ) as file:  # fmt: skip
        file.write(layers)
    with path.with_suffix(".hdr").open("a") as file:
        file.write(header)
    return path
