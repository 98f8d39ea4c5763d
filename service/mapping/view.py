"""A scene as a bundle sees it: the bundle's bands in the bundle's order, and something sane where data is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from model.bundle import Manifest
from model.spectra import BandMatch, BandMismatch, Wavelengths, match_bands
from service.errors import BandsMissing
from service.mapping.scenes import Scene, ScenePixels, open_pixels

# Where values lie is judged on so many rows of the scene, spread over its height.
SAMPLED_ROWS, SAMPLED_COLS = 24, 256
# Above this a value is an undeclared no-data value, such as -3.4e38, or damage.
LARGEST_VALUE = 1e30
# A dark scene is no wrong unit: water reflects a fiftieth of what a bright roof does, and clouds five times a field.
FAR_ABOVE, FAR_BELOW = 5.0, 1 / 50


@dataclass(frozen=True)
class Pixels:
    """Whole rows of a scene, from row `top`: values (rows, cols, bands), finite, and which are valid (rows, cols)."""

    top: int
    cube: NDArray[np.float32]
    valid: NDArray[np.bool_]

    @property
    def bottom(self) -> int:
        return self.top + len(self.cube)

    def since(self, top: int) -> Pixels:
        """The same rows from `top` on."""
        return Pixels(top, self.cube[top - self.top :], self.valid[top - self.top :])


class PixelSource(Protocol):
    """Where whole rows of pixels come from: a file, or an array."""

    def read(self, top: int, bottom: int) -> Pixels:
        """Rows top..bottom."""


@dataclass(frozen=True)
class SceneView:
    """A scene with the bands that the bundle needs, and how they become the bundle's."""

    scene: Scene  # narrowed to those bands, on which alone validity is judged
    match: BandMatch
    fill: NDArray[np.float32]  # what invalid pixels hold inside a patch

    @contextmanager
    def open(self, sample: Sample | None = None) -> Iterator[ViewedPixels]:
        """The view's pixels, from one open file; for one thread. What is read may go into a sample."""
        with open_pixels(self.scene) as pixels:
            yield ViewedPixels(self, pixels, sample)


class ViewedPixels:
    """An open view; made by `SceneView.open`."""

    def __init__(self, view: SceneView, pixels: ScenePixels, sample: Sample | None = None) -> None:
        self._view = view
        self._pixels = pixels
        self._sample = sample
        # How many pixels of a row hold what no sensor measures: undeclared no-data, most likely.
        self.absurd_in_row: dict[int, int] = {}

    def read(self, top: int, bottom: int) -> Pixels:
        """Rows top..bottom, in the bundle's bands."""
        cube, valid = self._pixels.read(Window(0, top, self._view.scene.cols, bottom - top))
        if self._view.scene.dtype.startswith("float"):
            is_absurd = valid & (np.abs(cube).max(axis=-1) > LARGEST_VALUE)
            for row in np.flatnonzero(is_absurd.any(axis=-1)):
                self.absurd_in_row[top + int(row)] = int(is_absurd[row].sum())
            valid &= ~is_absurd
        pixels = Pixels(top, fit_bands(cube, valid, self._view.match.weights, self._view.fill), valid)
        if self._sample is not None:
            self._sample.see(pixels)
        return pixels


def fit_bands(
    cube: NDArray[np.float32],
    valid: NDArray[np.bool_],
    weights: NDArray[np.float32] | None,
    fill: NDArray[np.float32],
) -> NDArray[np.float32]:
    """The bundle's bands of a cube that holds the matched bands; invalid pixels hold `fill`."""
    if weights is not None:
        if not valid.all():
            cube[~valid] = 0  # NaN would spread over the neighbours' sums, and warn
        cube = cube @ weights  # a product a row: the same sums whatever the number of rows
    if not valid.all():
        cube[~valid] = fill
    return cube


def view_scene(scene: Scene, manifest: Manifest) -> SceneView:
    """Match the scene's bands to the bundle's, or refuse."""
    match = match_scene(scene, manifest)
    return SceneView(scene.narrowed(match.bands), match, np.array(manifest.nodata_fill, np.float32))


def whole_view(scene: Scene) -> SceneView:
    """All of a scene's good bands as they are, for looking at a scene that matches no bundle."""
    bands = np.arange(len(scene.bands))
    return SceneView(scene, BandMatch("same", bands, None), np.zeros(len(bands), np.float32))


def match_scene(scene: Scene, manifest: Manifest) -> BandMatch:
    """How the scene's good bands become the bundle's."""
    return match_manifest(scene.wavelengths_nm, len(scene.bands), manifest)


def match_manifest(wavelengths_nm: Wavelengths | None, bands: int, manifest: Manifest) -> BandMatch:
    """How so many bands at these wavelengths become the bundle's."""
    bundle_nm, bundle_fwhm_nm = (
        None if numbers is None else np.array(numbers) for numbers in (manifest.wavelengths_nm, manifest.fwhm_nm)
    )
    try:
        return match_bands(wavelengths_nm, bands, bundle_nm, manifest.bands, bundle_fwhm_nm)
    except BandMismatch as error:
        raise BandsMissing(str(error)) from error


class Sample:
    """Spectra of valid pixels from a few rows spread over a scene, taken as the rows are read."""

    def __init__(self, rows: int) -> None:
        self._wanted = {int(row) for row in np.linspace(0, rows - 1, SAMPLED_ROWS).round()}
        self._spectra: dict[int, NDArray[np.float32]] = {}  # by row
        self._shares: dict[int, float] = {}

    def see(self, pixels: Pixels) -> None:
        """Keep what is wanted of these rows."""
        for row in self._wanted.intersection(range(pixels.top, pixels.bottom)) - self._spectra.keys():
            cube, valid = pixels.cube[row - pixels.top], pixels.valid[row - pixels.top]
            step = -(-len(valid) // SAMPLED_COLS)
            self._spectra[row] = cube[::step][valid[::step]]
            self._shares[row] = float(valid.mean())

    def complete(self, source: PixelSource) -> None:
        """Read the rows that nobody has read."""
        for row in sorted(self._wanted - self._spectra.keys()):
            self.see(source.read(row, row + 1))

    @property
    def is_complete(self) -> bool:
        return self._wanted == self._spectra.keys()

    @property
    def spectra(self) -> NDArray[np.float32]:
        """(n, bands), in the rows' order."""
        return np.concatenate([self._spectra[row] for row in sorted(self._spectra)])

    @property
    def valid_share(self) -> float:
        """Of the pixels of those rows."""
        return float(np.mean([self._shares[row] for row in sorted(self._shares)]))


def sample_pixels(source: PixelSource, rows: int) -> tuple[NDArray[np.float32], float]:
    """Spectra (n, bands) of valid pixels from a few rows spread over the scene, and the share that is valid."""
    sample = Sample(rows)
    sample.complete(source)
    return sample.spectra, sample.valid_share


def unit_warning(spectra: NDArray[np.float32], manifest: Manifest) -> str | None:
    """What to say where values lie far outside of what the bundle learnt from: most likely another unit."""
    expected = max(abs(number) for number in manifest.value_range)
    found = float(np.percentile(np.abs(spectra), 99)) if spectra.size else 0.0
    if expected == 0 or found == 0 or FAR_BELOW <= found / expected <= FAR_ABOVE:
        return None
    factor = 10.0 ** round(np.log10(found / expected))
    low, high = manifest.value_range
    remedy = f"divide it by {factor:.0f}" if factor > 1 else f"multiply it by {1 / factor:.0f}"
    return (
        f"the scene's values reach {found:.4g} and the bundle learnt from {low:.4g} to {high:.4g}: the unit is likely "
        f"another one; {remedy}, or set the file's scale"
    )
