"""A scene in the bands of a bundle, with missing data filled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import BandsMissing
from hyperscene.model.bundle import Manifest
from hyperscene.model.spectra import BandMatch, BandMismatch, Wavelengths, match_bands
from hyperscene.service.mapping.prefetch import Stop
from hyperscene.service.mapping.scenes import Scene, SceneReader, open_pixels

# The range of values is estimated from so many rows, spread over the scene, and columns.
SAMPLED_ROWS, SAMPLED_COLS = 24, 256
# Above this a value is an undeclared no-data value, such as -3.4e38, or damage.
LARGEST_VALUE = 1e30
# Wide enough for dark and bright scenes: water reflects 1/50 of a bright roof, and clouds 5 times a field.
FAR_ABOVE, FAR_BELOW = 5.0, 1 / 50


@dataclass(frozen=True)
class PixelRows:
    """Whole rows of a scene, from row `top`: finite values (rows, cols, bands) and valid pixels (rows, cols)."""

    top: int
    cube: NDArray[np.float32]
    valid: NDArray[np.bool_]

    @property
    def bottom(self) -> int:
        return self.top + len(self.cube)

    def since(self, top: int) -> PixelRows:
        """The same rows from `top` on."""
        return PixelRows(top, self.cube[top - self.top :], self.valid[top - self.top :])

    def joined(self, below: PixelRows) -> PixelRows:
        """These rows and the next ones."""
        valid = np.concatenate([self.valid, below.valid])
        if self.cube.strides[:2] == below.cube.strides[:2] == (0, 0):  # both repeat one spectrum, that of no data
            return PixelRows(self.top, np.broadcast_to(below.cube[:1, :1], (*valid.shape, below.cube.shape[2])), valid)
        return PixelRows(self.top, np.concatenate([self.cube, below.cube]), valid)


class PixelSource(Protocol):
    """A source of whole rows of pixels: a file, or an array."""

    def read(self, top: int, bottom: int) -> PixelRows:
        """Rows top..bottom."""


@dataclass(frozen=True)
class BandView:
    """The bands of a scene that a bundle needs, and how they are matched."""

    scene: Scene  # with those bands only: others do not decide which pixels are valid
    match: BandMatch
    fill: NDArray[np.float32]  # replaces invalid pixels inside a patch

    @contextmanager
    def open(self, sample: Sample | None = None, stop: Stop | None = None) -> Iterator[BandViewReader]:
        """A reader for one thread; what it reads is added to the sample."""
        with open_pixels(self.scene) as pixels:
            yield BandViewReader(self, pixels, sample, stop or Stop())


class BandViewReader:
    """Reads rows in the bundle's bands; made by `BandView.open`."""

    def __init__(self, view: BandView, pixels: SceneReader, sample: Sample | None, stop: Stop) -> None:
        self._view = view
        self._pixels = pixels
        self._sample = sample
        self._stop = stop
        # Pixels by row with values that no sensor measures: most likely undeclared no-data values.
        self.absurd_in_row: dict[int, int] = {}

    def read(self, top: int, bottom: int) -> PixelRows:
        """Rows top..bottom, in the bundle's bands."""
        fill, shape = self._view.fill, (bottom - top, self._view.scene.cols)
        # Rows without data take no memory: the cube is made when the first valid pixel is found.
        cube, valid = np.broadcast_to(fill, (*shape, len(fill))), np.zeros(shape, bool)
        for row in range(top, bottom):
            self.absurd_in_row.pop(row, None)  # of an earlier read
        for window in self._pixels.windows(top, bottom):
            self._stop.raise_if_cancelled()
            rows, cols = (slice(start - first, stop - first) for (start, stop), first in
                          zip(window.toranges(), (top, 0), strict=True))  # fmt: skip
            part, part_valid = self._read_part(window)
            if part_valid.any() and not cube.flags.writeable:
                cube = cube.copy()
            if cube.flags.writeable:
                cube[rows, cols], valid[rows, cols] = part, part_valid
        pixels = PixelRows(top, cube, valid)
        if self._sample is not None:
            self._sample.add(pixels)
        return pixels

    def _read_part(self, window: Window) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        cube, valid = self._pixels.read(window)
        if self._view.scene.dtype.startswith("float"):
            is_absurd = valid & (np.abs(cube).max(axis=-1) > LARGEST_VALUE)
            for row in np.flatnonzero(is_absurd.any(axis=-1)):
                at = window.row_off + int(row)
                self.absurd_in_row[at] = self.absurd_in_row.get(at, 0) + int(is_absurd[row].sum())
            valid &= ~is_absurd
        return fit_bands(cube, valid, self._view.match.weights, self._view.fill), valid


def fit_bands(
    cube: NDArray[np.float32],
    valid: NDArray[np.bool_],
    weights: NDArray[np.float32] | None,
    fill: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Turn a cube of matched bands into the bundle's bands; invalid pixels get `fill`."""
    if not valid.any():  # takes no time and no memory
        return np.broadcast_to(fill, (*valid.shape, len(fill)))
    if weights is not None:
        if not valid.all():
            cube[~valid] = 0  # NaN would warn, and spread in the sums
        cube = cube @ weights  # one product per row: the sums do not depend on the number of rows
    if not valid.all():
        cube[~valid] = fill
    return cube


def view_scene(scene: Scene, manifest: Manifest) -> BandView:
    """Match the scene's bands to the bundle's; raises BandsMissing."""
    match = match_scene(scene, manifest)
    return BandView(scene.narrowed(match.bands), match, np.array(manifest.nodata_fill, np.float32))


def all_bands_view(scene: Scene) -> BandView:
    """All good bands of a scene, unchanged, for scenes that match no bundle."""
    bands = np.arange(len(scene.bands))
    return BandView(scene, BandMatch("same", bands, None), np.zeros(len(bands), np.float32))


def match_scene(scene: Scene, manifest: Manifest) -> BandMatch:
    """How the scene's good bands become the bundle's."""
    return match_manifest(scene.wavelengths_nm, len(scene.bands), manifest, scene.fwhm_nm)


def match_manifest(
    wavelengths_nm: Wavelengths | None, bands: int, manifest: Manifest, fwhm_nm: Wavelengths | None = None
) -> BandMatch:
    """How bands at these wavelengths, of these widths, become the bundle's."""
    bundle_nm, bundle_fwhm_nm = (
        None if numbers is None else np.array(numbers) for numbers in (manifest.wavelengths_nm, manifest.fwhm_nm)
    )
    try:
        return match_bands(wavelengths_nm, bands, bundle_nm, manifest.bands, bundle_fwhm_nm, fwhm_nm)
    except BandMismatch as error:
        raise BandsMissing(str(error)) from error


def covered_share(match: BandMatch, manifest: Manifest) -> float | None:
    """The share of the bundle's range of wavelengths that the scene measures; None without wavelengths."""
    nm = manifest.wavelengths_nm
    if nm is None or match.kind == "by count":
        return None
    low, high = min(nm), max(nm)
    missing = sum(min(gap.high_nm, high) - max(gap.low_nm, low) for gap in match.gaps)
    return 1 - missing / (high - low) if high > low else 1.0


def fit_text(match: BandMatch, manifest: Manifest) -> str:
    """How well a scene fits a bundle, after a description of the match; nothing if no gap is bridged."""
    covered = covered_share(match, manifest)
    if covered is None or not match.gaps:
        return ""
    return (
        f"; {100 * covered:.1f} % of its range covered, {match.bridged_bands} bands bridged, largest gap "
        f"{match.largest_gap_nm:.0f} nm"
    )


def band_warnings(match: BandMatch, manifest: Manifest) -> list[str]:
    """Warnings about a match that may cost accuracy."""
    if match.kind == "by count" and manifest.wavelengths_nm is None:
        return ["bands were matched by their order, because the bundle has no wavelengths"]
    if not match.gaps:
        return []
    where = ", ".join(map(str, match.gaps))
    bridged = f"{match.bridged_bands} of the bundle's {manifest.bands} bands lie in gaps of the scene ({where})"
    return [f"{bridged} and are interpolated: the map may be less accurate"]


class Sample:
    """Spectra of valid pixels from a few rows spread over a scene, taken as the rows are read."""

    def __init__(self, rows: int) -> None:
        self._rows = {int(row) for row in np.linspace(0, rows - 1, SAMPLED_ROWS).round()}
        self._spectra: dict[int, NDArray[np.float32]] = {}  # by row
        self._shares: dict[int, float] = {}

    def add(self, pixels: PixelRows) -> None:
        """Keep pixels of the rows that belong to the sample."""
        for row in self._rows.intersection(range(pixels.top, pixels.bottom)) - self._spectra.keys():
            cube, valid = pixels.cube[row - pixels.top], pixels.valid[row - pixels.top]
            step = -(-len(valid) // SAMPLED_COLS)
            self._spectra[row] = cube[::step][valid[::step]]
            self._shares[row] = float(valid.mean())

    def complete(self, source: PixelSource) -> None:
        """Read the missing rows."""
        for row in sorted(self._rows - self._spectra.keys()):
            self.add(source.read(row, row + 1))

    @property
    def is_complete(self) -> bool:
        return self._rows == self._spectra.keys()

    @property
    def spectra(self) -> NDArray[np.float32]:
        """(n, bands), ordered by row."""
        return np.concatenate([self._spectra[row] for row in sorted(self._spectra)])

    @property
    def valid_share(self) -> float:
        """The share of valid pixels in those rows."""
        return float(np.mean([self._shares[row] for row in sorted(self._shares)]))


def sample_pixels(source: PixelSource, rows: int) -> tuple[NDArray[np.float32], float]:
    """Spectra (n, bands) of valid pixels from a few rows spread over the scene, and the share that is valid."""
    sample = Sample(rows)
    sample.complete(source)
    return sample.spectra, sample.valid_share


def unit_warning(spectra: NDArray[np.float32], manifest: Manifest) -> str | None:
    """A warning if the values lie far outside the bundle's training range: most likely another unit."""
    expected = max(abs(number) for number in manifest.value_range)
    found = float(np.percentile(np.abs(spectra), 99)) if spectra.size else 0.0
    if expected == 0 or found == 0 or FAR_BELOW <= found / expected <= FAR_ABOVE:
        return None
    factor = 10.0 ** round(np.log10(found / expected))
    low, high = manifest.value_range
    remedy = f"divide it by {factor:.0f}" if factor > 1 else f"multiply it by {1 / factor:.0f}"
    return (
        f"the scene's values reach {found:.4g}, the bundle was trained on {low:.4g} to {high:.4g}: the unit probably "
        f"differs; {remedy}, or set the file's scale"
    )
