"""Synthetic georeferenced scenes with known classes, made block by block so that any size fits in memory.

A scene consists of irregular fields of one material each. Pixels at a border are mixtures of both sides, every pixel
contains a share of another material (clutter), the brightness varies over the scene (a factor that keeps the spectral
angle), and noise is added. The materials are always the same; fields, brightness, clutter and noise depend on the seed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine, from_origin
from rasterio.windows import Window

from hyperscene.errors import OptionsUnusable, OutputUnwritable

Array = NDArray[np.float64]

FIRST_NM, LAST_NM = 420.0, 2450.0
NODATA = -32768
REFLECTANCE_FACTOR = 10_000
PIXEL_M = 30.0
BLOCK_ROWS = 64  # rows made at a time; changing it changes the scenes, since noise is drawn block by block
ENVI_INTERLEAVE = {".img": "BSQ", ".bsq": "BSQ", ".bil": "BIL", ".bip": "BIP"}

FIELD_PX = 26.0  # typical distance between the centres of neighbouring fields
BORDER_PX = 2.0  # width of the mixed zone on each side of a border
WARP_PX = 7.0  # amplitude of the border's waves
BRIGHTNESS_RANGE = (0.55, 1.45)
MEAN_CLUTTER = 0.3  # mean share of another material in a pixel


@dataclass(frozen=True)
class Material:
    """A class of the synthetic scenes: a smooth reflectance with peaks and absorption bands."""

    name: str
    color: str
    level: float
    slope: float  # per 1000 nm
    red_edge: float
    features: tuple[tuple[float, float, float], ...]  # (centre in nm, width in nm, height)

    def reflectance(self, wavelengths_nm: Array) -> Array:
        spectrum = self.level + self.slope * (wavelengths_nm - 1000) / 1000
        spectrum = spectrum + self.red_edge / (1 + np.exp(-(wavelengths_nm - 715) / 14))
        for center_nm, width_nm, height in self.features:
            spectrum = spectrum + height * np.exp(-0.5 * ((wavelengths_nm - center_nm) / width_nm) ** 2)
        return np.clip(spectrum, 0.005, 1)


_LEAF_WATER = ((970, 35, -0.03), (1200, 50, -0.05), (1450, 80, -0.17), (1940, 90, -0.2), (2350, 150, -0.08))
MATERIALS = (
    Material("water", "#2b6cb0", 0.03, -0.02, 0.0, ((560, 60, 0.03),)),
    Material("forest", "#1e6b34", 0.03, -0.05, 0.30, ((555, 28, 0.03), *_LEAF_WATER)),
    Material("meadow", "#7cb342", 0.05, -0.06, 0.34, ((555, 30, 0.05), (1680, 90, 0.02), *_LEAF_WATER)),
    Material("maize", "#c0ca33", 0.06, -0.05, 0.32, ((550, 32, 0.05), (2100, 70, -0.04), *_LEAF_WATER)),
    Material("stubble", "#d9a441", 0.20, 0.08, 0.06, ((2100, 60, -0.06), (1940, 80, -0.05), (2300, 50, -0.04))),
    Material("loam", "#8d5a2b", 0.18, 0.11, 0.0, ((900, 90, -0.02), (1415, 40, -0.02), (2205, 25, -0.05))),
    Material("sand", "#e8d9a0", 0.24, 0.10, 0.0, ((870, 90, -0.03), (1930, 70, -0.05), (2205, 25, -0.03))),
    Material("pavement", "#6b7280", 0.15, 0.03, 0.0, ((2310, 60, -0.02), (1720, 40, -0.01))),
)


LIMITS = (
    ("rows", 1, 1_000_000),
    ("cols", 1, 1_000_000),
    ("bands", 1, 10_000),
    ("seed", 0, 2**31 - 1),
    ("snr_db", -20, 200),
)


@dataclass(frozen=True)
class SyntheticScene:
    """The parameters of a scene; the same values give the same pixels."""

    rows: int = 256
    cols: int = 256
    bands: int = 64
    seed: int = 0
    snr_db: float = 28.0

    def __post_init__(self) -> None:
        for name, low, high in LIMITS:
            value = getattr(self, name)
            if not low <= value <= high:
                raise OptionsUnusable(f"--{name.replace('_', '-')} must be between {low} and {high}, not {value}")

    @property
    def wavelengths_nm(self) -> Array:
        return np.linspace(FIRST_NM, LAST_NM, self.bands)

    @property
    def transform(self) -> Affine:
        return from_origin(380_000.0, 5_820_000.0, PIXEL_M, PIXEL_M)

    @property
    def crs(self) -> CRS:
        return CRS.from_epsg(32633)


DEMO_SCENE = SyntheticScene(rows=240, cols=240, seed=7)  # of `hyperscene demo`, and of the page's "Try it"


@dataclass(frozen=True)
class SceneRows:
    """Some rows of a scene."""

    top: int
    reflectance: NDArray[np.float32]  # (rows, cols, bands); NaN for no data
    labels: NDArray[np.uint8]  # (rows, cols); 0 for no data


def make_blocks(scene: SyntheticScene) -> Iterator[SceneRows]:
    """The scene from top to bottom, BLOCK_ROWS rows at a time."""
    for top in range(0, scene.rows, BLOCK_ROWS):
        yield _make_block(scene, top, min(BLOCK_ROWS, scene.rows - top))


def make_scene(scene: SyntheticScene) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The whole scene in memory: reflectance (rows, cols, bands) with NaN for no data, and labels (rows, cols)."""
    blocks = list(make_blocks(scene))
    return np.concatenate([block.reflectance for block in blocks]), np.concatenate([block.labels for block in blocks])


def write_scene(scene: SyntheticScene, output: Path, labels: Path | None = None) -> None:
    """Write GeoTIFF (.tif) or ENVI (.img, .bsq, .bil, .bip), and optionally the true labels as GeoTIFF."""
    suffix = output.suffix.lower()
    if suffix not in (".tif", ".tiff", *ENVI_INTERLEAVE):
        known = ", ".join((".tif", *ENVI_INTERLEAVE))
        raise OptionsUnusable(f"{output.name} has no file extension of a known format: use one of {known}")
    if labels is not None and labels.suffix.lower() not in (".tif", ".tiff"):
        raise OptionsUnusable(f"labels are written as GeoTIFF: name the file {labels.with_suffix('.tif').name}")
    for path in (output, labels or output):
        if path.is_dir() or not path.parent.is_dir():
            raise OutputUnwritable(f"{path} cannot be written: name a file in a folder that exists")
    if labels is not None and labels.resolve() in (output.resolve(), output.with_suffix(".hdr").resolve()):
        raise OptionsUnusable("the labels would overwrite the scene: choose another file name")
    try:
        with tempfile.TemporaryDirectory(prefix=".synth-", dir=output.parent) as folder:
            cube_path, labels_path = Path(folder) / output.name, Path(folder) / "labels.tif"
            _write_files(scene, cube_path, labels_path)
            if suffix in ENVI_INTERLEAVE:
                _extend_header(scene, cube_path.with_suffix(".hdr"))
                cube_path.with_suffix(".hdr").replace(output.with_suffix(".hdr"))
            cube_path.replace(output)
            if labels is not None:
                shutil.move(labels_path, labels)
    except OSError as error:
        raise OutputUnwritable(
            f"{output} cannot be written ({error.strerror or error}): choose another folder"
        ) from error


def _write_files(scene: SyntheticScene, cube_path: Path, labels_path: Path) -> None:
    grid = {"height": scene.rows, "width": scene.cols, "crs": scene.crs, "transform": scene.transform}
    if cube_path.suffix.lower() in ENVI_INTERLEAVE:
        options: dict[str, Any] = {"driver": "ENVI", "interleave": ENVI_INTERLEAVE[cube_path.suffix.lower()]}
    else:
        options = {
            "driver": "GTiff",
            "interleave": "pixel",
            "compress": "deflate",
            "predictor": 2,
            "bigtiff": "if_safer",
        }
    cube_file = rasterio.open(cube_path, "w", count=scene.bands, dtype="int16", nodata=NODATA, **grid, **options)
    labels_file = rasterio.open(
        labels_path, "w", driver="GTiff", count=1, dtype="uint8", nodata=0, compress="deflate", **grid
    )
    with cube_file, labels_file:
        if options["driver"] == "GTiff":
            _describe_bands(scene, cube_file)
        labels_file.update_tags(class_names="{no data, " + ", ".join(material.name for material in MATERIALS) + "}")
        labels_file.write_colormap(1, {value: _rgb(m.color) for value, m in enumerate(MATERIALS, start=1)})
        for block in make_blocks(scene):
            window = Window(0, block.top, scene.cols, len(block.labels))
            numbers = np.rint(block.reflectance * REFLECTANCE_FACTOR)
            stored = np.where(np.isnan(numbers), NODATA, np.clip(numbers, -32767, 32767)).astype(np.int16)
            cube_file.write(np.moveaxis(stored, -1, 0), window=window)
            labels_file.write(block.labels, 1, window=window)


def _describe_bands(scene: SyntheticScene, file: rasterio.io.DatasetWriter) -> None:
    file.scales = [1 / REFLECTANCE_FACTOR] * scene.bands
    for band, wavelength_nm in enumerate(scene.wavelengths_nm, start=1):
        file.set_band_description(band, f"{wavelength_nm:.2f} nm")
        file.update_tags(band, wavelength=f"{wavelength_nm:.4f}", wavelength_units="Nanometers")


def _extend_header(scene: SyntheticScene, header: Path) -> None:
    listed = ", ".join(f"{wavelength_nm:.4f}" for wavelength_nm in scene.wavelengths_nm)
    with header.open("a", encoding="utf-8") as file:
        file.write(f"wavelength units = Nanometers\nwavelength = {{{listed}}}\n")
        file.write(f"reflectance scale factor = {REFLECTANCE_FACTOR}\n")


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _make_block(scene: SyntheticScene, top: int, rows: int) -> SceneRows:
    # A seed for each random field, so that they are independent.
    fields, warp_rows, warp_cols, light, holes, draws = (scene.seed * 6 + stream for stream in range(6))
    row, col = np.meshgrid(np.arange(top, top + rows, dtype=float), np.arange(scene.cols, dtype=float), indexing="ij")
    own, other, own_share = _fields(
        row + WARP_PX * _smooth(warp_rows, row, col, 18), col + WARP_PX * _smooth(warp_cols, row, col, 18), fields
    )
    generator = np.random.default_rng([draws, top])
    foreign = generator.integers(0, len(MATERIALS), row.shape)
    # Clutter has a long tail: most pixels are nearly pure, a few consist mostly of another material.
    clutter = generator.beta(1.2, 1.2 * (1 - MEAN_CLUTTER) / MEAN_CLUTTER, row.shape)
    abundance = np.zeros((*row.shape, len(MATERIALS)))
    for material, share in (
        (own, own_share * (1 - clutter)),
        (other, (1 - own_share) * (1 - clutter)),
        (foreign, clutter),
    ):
        np.put_along_axis(
            abundance,
            material[..., None],
            np.take_along_axis(abundance, material[..., None], -1) + share[..., None],
            -1,
        )
    library = np.stack([material.reflectance(scene.wavelengths_nm) for material in MATERIALS])
    low, high = BRIGHTNESS_RANGE
    brightness = low + (high - low) * (0.5 + 0.5 * _smooth(light, row, col, 70))
    brightness = brightness * generator.normal(1, 0.08, row.shape).clip(0.5, 1.5)
    signal = (abundance @ library) * brightness[..., None]
    sigma = np.sqrt((library**2).mean()) * 10 ** (-scene.snr_db / 20)
    reflectance = signal + generator.normal(0, sigma, signal.shape)
    missing = _missing(scene, row, col, holes)
    reflectance[missing] = np.nan
    return SceneRows(top, reflectance.astype(np.float32), np.where(missing, 0, own + 1).astype(np.uint8))


def _fields(row: Array, col: Array, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Each pixel's material, that of the nearest other field, and the share of its own.

    Fields are Voronoi cells of points on a jittered grid.
    """
    cell_row, cell_col = np.floor(row / FIELD_PX), np.floor(col / FIELD_PX)
    distance = np.full((2, *row.shape), np.inf)  # to the nearest and the second nearest point
    material = np.zeros((2, *row.shape), np.int64)
    for step_row in (-1, 0, 1):
        for step_col in (-1, 0, 1):
            i, j = cell_row + step_row, cell_col + step_col
            point_row = (i + 0.1 + 0.8 * _hash(seed, i, j, 1)) * FIELD_PX
            point_col = (j + 0.1 + 0.8 * _hash(seed, i, j, 2)) * FIELD_PX
            here = np.hypot(row - point_row, col - point_col)
            kind = (_hash(seed, i, j, 3) * len(MATERIALS)).astype(np.int64)
            nearest, second = here < distance[0], (here >= distance[0]) & (here < distance[1])
            distance[1] = np.where(nearest, distance[0], np.where(second, here, distance[1]))
            material[1] = np.where(nearest, material[0], np.where(second, kind, material[1]))
            distance[0] = np.where(nearest, here, distance[0])
            material[0] = np.where(nearest, kind, material[0])
    own_share = 0.5 + 0.5 * np.clip((distance[1] - distance[0]) / (2 * BORDER_PX), 0, 1)
    return material[0], material[1], own_share


def _missing(scene: SyntheticScene, row: Array, col: Array, seed: int) -> NDArray[np.bool_]:
    """Pixels without data: a wedge at one side, as beside a rotated swath, and a few holes."""
    if min(scene.rows, scene.cols) < 16:
        return np.zeros(row.shape, bool)
    wedge = col < 0.06 * scene.cols * (1 - row / scene.rows)
    return wedge | (_smooth(seed, row, col, 24) > 0.93)


def _smooth(seed: int, row: Array, col: Array, scale_px: float) -> Array:
    """Smooth noise between -1 and 1 that depends on the pixel only, not on the block."""
    i, j = np.floor(row / scale_px), np.floor(col / scale_px)
    down, right = row / scale_px - i, col / scale_px - j
    down, right = down * down * (3 - 2 * down), right * right * (3 - 2 * right)
    upper = _hash(seed, i, j) * (1 - right) + _hash(seed, i, j + 1) * right
    lower = _hash(seed, i + 1, j) * (1 - right) + _hash(seed, i + 1, j + 1) * right
    return 2 * (upper * (1 - down) + lower * down) - 1


def _hash(seed: int, i: Array, j: Array, stream: int = 0) -> Array:
    """A pseudo-random number in [0, 1) for each grid point, from a hash of its coordinates."""
    mixed = np.full(i.shape, seed * 97 + stream, np.uint64)
    for part in (i, j):
        mixed ^= part.astype(np.int64).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)) / float(1 << 53)
