"""A scene as a picture: three of its bands as a small RGB raster of the same size and place, for looking at it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from service.errors import unwritten
from service.mapping.rasters import GDAL_ENV, create_plain, optimise, plain_name, require_whole
from service.mapping.scenes import GDAL_ERRORS, Scene
from service.mapping.view import sample_pixels, whole_view

Bands = tuple[int, int, int]

RED_NM, GREEN_NM, BLUE_NM = 640.0, 550.0, 460.0
FAR_NM = 60.0  # a band that is farther from its colour does not show it
LOW_PERCENT, HIGH_PERCENT = 2, 98
PICTURE_NAME = "picture.tif"
NO_DATA, DARKEST, BRIGHTEST = 0, 1, 255
# Rows that are read together: whole blocks of most tiled files, and a bound on memory for wide scenes.
STRIP_ROWS, STRIP_VALUES = 512, 1 << 25


def choose_bands(numbers: Sequence[int], wavelengths_nm: Sequence[float] | None) -> Bands:
    """The file's numbers of the bands for red, green and blue: true colours where the scene has them."""
    places = None if wavelengths_nm is None else _true_colors(np.asarray(wavelengths_nm, float))
    last = len(numbers) - 1
    red, green, blue = places or (round(last * 3 / 4), round(last / 2), round(last / 4))
    return numbers[red], numbers[green], numbers[blue]


def _true_colors(nm: NDArray[np.float64]) -> tuple[int, ...] | None:
    distances = np.abs(nm[:, None] - (RED_NM, GREEN_NM, BLUE_NM))
    places = tuple(int(place) for place in distances.argmin(axis=0))
    return places if len(set(places)) == 3 and distances.min(axis=0).max() <= FAR_NM else None


def write_picture(scene: Scene, bands: Bands, folder: Path, threads: int = 1) -> Path:
    """Bands of a scene, stretched between percentiles to 1..255, as a COG in a folder; 0 is no data."""
    narrowed = scene.narrowed(np.array([scene.bands.index(band) for band in bands]))
    plain = plain_name(folder, PICTURE_NAME)
    with whole_view(narrowed).open() as pixels:
        spectra, _ = sample_pixels(pixels, scene.rows)
        low, high = np.percentile(spectra, (LOW_PERCENT, HIGH_PERCENT), axis=0) if len(spectra) else np.zeros((2, 3))
        try:
            with rasterio.Env(**GDAL_ENV):
                with create_plain(plain, scene, 3, "uint8", NO_DATA, photometric="rgb") as file:
                    step = max(1, min(STRIP_ROWS, STRIP_VALUES // (3 * scene.cols)))
                    for top in range(0, scene.rows, step):
                        strip = pixels.read(top, min(top + step, scene.rows))
                        colors = stretched(strip.cube, strip.valid, low, high)
                        window = Window(0, top, scene.cols, len(colors))
                        file.write(np.moveaxis(colors, -1, 0), window=window)
                require_whole(file)
        except GDAL_ERRORS as error:
            raise unwritten(error) from error
    optimise(folder, PICTURE_NAME, threads)
    return folder / PICTURE_NAME


def stretched(
    cube: NDArray[np.float32], valid: NDArray[np.bool_], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """Values (rows, cols, bands) between low and high as 1..255, and 0 where there is no data."""
    is_flat = high <= low
    scale = np.where(is_flat, 0, 1 / np.where(is_flat, 1, high - low))
    share = (cube - low.astype(np.float32)) * scale.astype(np.float32)
    share[..., is_flat] = 0.5  # a band that says nothing is grey
    colors = DARKEST + np.clip(share, 0, 1, out=share) * (BRIGHTEST - DARKEST)
    return np.where(valid[..., None], np.round(colors, out=colors), NO_DATA).astype(np.uint8)
