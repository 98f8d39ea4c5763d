"""applicability.tif: how far a pixel lies from what the model learnt from, as a share of the distance that is usual.

The dissimilarity of Meyer and Pebesma (2021), Predicting into unknown space? Estimating the area of applicability of
spatial prediction models, Methods in Ecology and Evolution 12: the distance to the nearest training pixel in a space
whose directions are weighted by what they tell. Here it is that of MNF components, whose noise is the same in all
directions, averaged over a small window, so that single noisy pixels do not count as unknown.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import write_error
from hyperscene.model.bundle import Applicability, Manifest
from hyperscene.service.mapping.band_view import BandView, PixelRows, PixelSource
from hyperscene.service.mapping.gdal import GDAL_ERRORS, ignore_missing_georeference
from hyperscene.service.mapping.prefetch import Stop
from hyperscene.service.mapping.rasters import GDAL_ENV, create_plain, declare_nodata, plain_name, require_complete
from hyperscene.service.mapping.strip_mapper import one_blas_thread

APPLICABILITY_NAME = "applicability.tif"
STEPS = 100  # of a byte: 100 is the threshold, and 254 stands for 2.54 times the threshold and more
NODATA = 255
BLOCK_BYTES = 32 << 20
UNKNOWN_NAME, UNKNOWN_COLOR = "unknown", "#5b5b5b"

Numbers = NDArray[np.float32]


def encode(values: NDArray[Any]) -> str:
    """An array of numbers as text, in single precision."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def decode(text: str, columns: int) -> Numbers:
    """The array of `encode`, with so many columns."""
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(-1, columns).astype(np.float32)


@dataclass(frozen=True)
class Dissimilarity:
    """Distances of pixels from the training pixels."""

    offset: Numbers  # (components,)
    projection: Numbers  # (bands, components)
    prototypes: Numbers  # (n, components)
    window_px: int
    threshold: float

    @classmethod
    def of(cls, manifest: Manifest, found: Applicability) -> Dissimilarity:
        """From a bundle's manifest."""
        mean, std = (np.array(numbers, np.float64) for numbers in (manifest.band_mean, manifest.band_std))
        projection = decode(found.projection, found.components).astype(np.float64) / std[:, None]
        return cls(
            (-mean @ projection).astype(np.float32),
            projection.astype(np.float32),
            decode(found.prototypes, found.components),
            found.window_px,
            found.threshold,
        )

    def components(self, pixels: PixelRows) -> Numbers:
        """MNF components (rows, cols, components), zero without data."""
        # One product per row: sums do not depend on the number of rows.
        found: Numbers = pixels.cube @ self.projection + self.offset
        return np.where(pixels.valid[..., None], found, np.float32(0))

    def distances(self, averaged: Numbers) -> Numbers:
        """Distances (rows, cols) from the nearest training pixel, as shares of the threshold."""
        found = np.empty(averaged.shape[:2], np.float32)
        lengths = (self.prototypes**2).sum(axis=1)
        for row, values in enumerate(averaged):
            squares = (lengths - 2 * (values @ self.prototypes.T)).min(axis=1) + (values**2).sum(axis=1)
            found[row] = np.sqrt(np.maximum(squares, 0))
        return found / np.float32(self.threshold)


def average(components: Numbers, valid: NDArray[np.bool_], window_px: int) -> Numbers:
    """Means over the valid pixels of a window round each pixel; windows end at the array's edges."""
    reach = window_px // 2
    total, count = components, valid.astype(np.float32)[..., None]
    for axis in (0, 1):
        total, count = (_window_sum(each, reach, axis) for each in (total, count))
    return np.divide(total, np.maximum(count, 1), dtype=np.float32)


def _window_sum(values: Numbers, reach: int, axis: int) -> Numbers:
    """Sums of 2 * reach + 1 neighbours along an axis, added in one order."""
    size = values.shape[axis]
    padding = [(reach, reach) if each == axis else (0, 0) for each in range(values.ndim)]
    padded = np.pad(values, padding)
    total = np.zeros_like(values)
    for shift in range(2 * reach + 1):
        total += padded[shift : shift + size] if axis == 0 else padded[:, shift : shift + size]
    return total


@dataclass(frozen=True)
class Coverage:
    """How much of a map lies inside the area of applicability."""

    pixels: int
    inside: int

    def record(self, found: Applicability) -> dict[str, Any]:
        """As it stands in the summary."""
        return {
            "inside_share": round(self.inside / self.pixels, 6) if self.pixels else None,
            "inside_pixels": self.inside,
            "promise": promise(found),
        }


def promise(found: Applicability) -> str:
    """What the threshold means."""
    way = "in whole clusters" if found.held_out == "clusters" else "one by one"
    return (
        f"Inside, a pixel is as similar to the training pixels as {100 * found.share:.0f} % of them are to the others "
        f"when they are held out {way}; outside, the accuracy of the map is not known."
    )


def write_applicability(
    folder: Path, view: BandView, manifest: Manifest, found: Applicability, stop: Stop, marks_unknown: bool
) -> tuple[Coverage, NDArray[np.int64]]:
    """Write the plain raster, by a pass of its own over the scene; returns also unknown pixels by row and class.

    With `marks_unknown`, pixels outside get the class after the last one in the plain class raster.
    """
    scene = view.scene
    measure = Dissimilarity.of(manifest, found)
    pixels = inside = 0
    moved = np.zeros((scene.rows, manifest.classes + 1), np.int64) if marks_unknown else np.zeros((0, 0), np.int64)
    try:
        with (
            rasterio.Env(**GDAL_ENV),
            create_plain(plain_name(folder, APPLICABILITY_NAME), scene, 1, "uint8") as file,
            _open_classes(folder, "r+" if marks_unknown else "r") as classes,
            view.open(stop=stop) as source,
            one_blas_thread(),
        ):
            file.set_band_description(1, "distance from the training pixels, as a share of the threshold")
            file.scales = [1 / STEPS]
            for top, steps in applicability_rows(source, scene.rows, scene.cols, measure):
                stop.raise_if_cancelled()
                window = Window(0, top, scene.cols, len(steps))
                file.write(steps, 1, window=window)
                known, outside = steps != NODATA, (steps > STEPS) & (steps != NODATA)
                pixels, inside = pixels + int(known.sum()), inside + int((known & ~outside).sum())
                if marks_unknown:
                    values = classes.read(1, window=window)
                    for row in np.flatnonzero(outside.any(axis=1)):
                        moved[top + row] = np.bincount(values[row, outside[row]], minlength=manifest.classes + 1)
                    values[outside] = manifest.classes + 1
                    classes.write(values, 1, window=window)
        require_complete(file)
        declare_nodata(plain_name(folder, APPLICABILITY_NAME), NODATA)
    except GDAL_ERRORS as error:
        raise write_error(error) from error
    return Coverage(pixels, inside), moved


def _open_classes(folder: Path, mode: str) -> Any:
    with ignore_missing_georeference():
        return rasterio.open(plain_name(folder, "classes.tif"), mode, driver="GTiff")


def applicability_rows(
    source: PixelSource, rows: int, cols: int, measure: Dissimilarity, block_rows: int = 0
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """The bytes of the raster, block by block; each block needs some rows above and below it."""
    reach = measure.window_px // 2
    block_rows = block_rows or max(8, BLOCK_BYTES // (4 * cols * len(measure.projection)))
    held: PixelRows | None = None
    for top in range(0, rows, block_rows):
        bottom = min(rows, top + block_rows)
        first, last = max(0, top - reach), min(rows, bottom + reach)
        if held is None:
            held = source.read(first, last)
        elif last > held.bottom:
            held = held.since(first).joined(source.read(held.bottom, last))
        pixels = held.since(first)
        valid = pixels.valid[top - first : bottom - first]
        averaged = average(measure.components(pixels), pixels.valid, measure.window_px)[top - first : bottom - first]
        steps = np.minimum(np.rint(measure.distances(averaged) * STEPS), NODATA - 1).astype(np.uint8)
        yield top, np.where(valid, steps, np.uint8(NODATA))


def with_unknown(manifest: Manifest) -> Manifest:
    """The manifest of a map with the class "unknown" after the bundle's own."""
    return manifest.model_copy(
        update={
            "class_names": [*manifest.class_names, UNKNOWN_NAME],
            "class_colors": [*manifest.class_colors, UNKNOWN_COLOR],
        }
    )
