"""A scene as an RGB picture: three of its bands as a byte raster of the same size and georeference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import write_error
from hyperscene.service.mapping.band_view import all_bands_view, sample_pixels
from hyperscene.service.mapping.gdal import GDAL_ERRORS
from hyperscene.service.mapping.png import png_of_colors
from hyperscene.service.mapping.rasters import (
    GDAL_ENV,
    create_plain,
    declare_nodata,
    optimise,
    plain_name,
    require_complete,
)
from hyperscene.service.mapping.scenes import Scene

Bands = tuple[int, int, int]

TRUE_COLORS_NM = (640.0, 550.0, 460.0)  # red, green, blue
FALSE_COLORS_NM = (860.0, 640.0, 550.0)
QUICKLOOK_PX = 1024
FAR_NM = 60.0  # the largest distance of a band from its colour
LOW_PERCENT, HIGH_PERCENT = 2, 98
PICTURE_NAME = "picture.tif"
NO_DATA, DARKEST, BRIGHTEST = 0, 1, 255
# Rows read at once: whole blocks of most tiled files, with a memory limit for wide scenes.
STRIP_ROWS, STRIP_VALUES = 512, 1 << 25


def choose_bands(numbers: Sequence[int], wavelengths_nm: Sequence[float] | None) -> Bands:
    """The file's band numbers for red, green and blue: true colours if the scene has them."""
    indices = None if wavelengths_nm is None else _nearest(np.asarray(wavelengths_nm, float), TRUE_COLORS_NM)
    last = len(numbers) - 1
    red, green, blue = indices or (round(last * 3 / 4), round(last / 2), round(last / 4))
    return numbers[red], numbers[green], numbers[blue]


def _nearest(nm: NDArray[np.float64], colors: tuple[float, float, float]) -> tuple[int, ...] | None:
    """The bands nearest to three colours; None if one of them is missing."""
    distances = np.abs(nm[:, None] - colors)
    indices = tuple(int(index) for index in distances.argmin(axis=0))
    return indices if len(set(indices)) == 3 and distances.min(axis=0).max() <= FAR_NM else None


def write_quicklook(scene: Scene, path: Path) -> None:
    """A picture of at most QUICKLOOK_PX: true colour, and beside it false colour, if the scene has these bands.

    A scene in sensor geometry is shown as the sensor saw it.
    """
    nm = scene.wavelengths_nm
    bands = list(choose_bands(scene.bands, None if nm is None else nm.tolist()))
    false = None if nm is None else _nearest(nm, FALSE_COLORS_NM)
    if false is not None:
        bands += [scene.bands[index] for index in false]
    unique = sorted(set(bands))
    step = max(1, -(-max(scene.rows, scene.cols) // QUICKLOOK_PX))
    narrowed = scene.narrowed(np.array([scene.bands.index(band) for band in unique]))
    cubes, valids = [], []
    with all_bands_view(narrowed).open() as pixels:
        for row in range(0, scene.rows, step):
            read = pixels.read(row, row + 1)
            cubes.append(read.cube[0, ::step])
            valids.append(read.valid[0, ::step])
    cube, valid = np.stack(cubes), np.stack(valids)
    parts = []
    for first in range(0, len(bands), 3):
        own = cube[..., [unique.index(band) for band in bands[first : first + 3]]]
        known = own[valid]
        low, high = np.percentile(known, (LOW_PERCENT, HIGH_PERCENT), axis=0) if len(known) else np.zeros((2, 3))
        parts.append(stretched(own.copy(), valid, low, high))
    try:
        path.write_bytes(png_of_colors(np.concatenate(parts, axis=1)))
    except OSError as error:
        raise write_error(error) from error


def write_picture(scene: Scene, bands: Bands, folder: Path, threads: int = 1) -> Path:
    """Write bands of a scene as a COG, stretched between percentiles to 1..255; 0 is no data.

    A scene in sensor geometry is laid out on the ground, on the grid of its map.
    """
    narrowed = scene.narrowed(np.array([scene.bands.index(band) for band in bands]))
    plain = plain_name(folder, PICTURE_NAME)
    with all_bands_view(narrowed).open() as pixels:
        spectra, _ = sample_pixels(pixels, scene.rows)
        low, high = np.percentile(spectra, (LOW_PERCENT, HIGH_PERCENT), axis=0) if len(spectra) else np.zeros((2, 3))
        try:
            with rasterio.Env(**GDAL_ENV):
                with create_plain(plain, scene, 3, "uint8", photometric="rgb") as file:
                    step = max(1, min(STRIP_ROWS, STRIP_VALUES // (3 * scene.cols)))
                    for top in range(0, scene.rows, step):
                        strip = pixels.read(top, min(top + step, scene.rows))
                        colors = stretched(strip.cube, strip.valid, low, high)
                        window = Window(0, top, scene.cols, len(colors))
                        file.write(np.moveaxis(colors, -1, 0), window=window)
                require_complete(file)
                declare_nodata(plain, NO_DATA)
        except GDAL_ERRORS as error:
            raise write_error(error) from error
    if scene.ground is not None:
        from hyperscene.service.mapping.ground import lay_out  # 6 MB, for swaths only
        from hyperscene.service.mapping.swaths import open_ground

        with open_ground(scene) as (placed, lookup):
            lay_out(plain, placed, lookup, scene.cols)
    optimise(folder, PICTURE_NAME, threads)
    return folder / PICTURE_NAME


def stretched(
    cube: NDArray[np.float32], valid: NDArray[np.bool_], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """Values (rows, cols, bands) from low..high to 1..255; 0 is no data."""
    is_flat = high <= low
    scale = np.where(is_flat, 0, 1 / np.where(is_flat, 1, high - low))
    share = (cube - low.astype(np.float32)) * scale.astype(np.float32)
    share[..., is_flat] = 0.5  # a constant band is grey
    colors = DARKEST + np.clip(share, 0, 1, out=share) * (BRIGHTEST - DARKEST)
    return np.where(valid[..., None], np.round(colors, out=colors), NO_DATA).astype(np.uint8)
