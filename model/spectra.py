"""Wavelengths: their units, and the matching of a scene's bands to a bundle's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Wavelengths = NDArray[np.float64]

NM_PER_UNIT = {
    "nanometers": 1.0,
    "nanometer": 1.0,
    "nanometres": 1.0,
    "nm": 1.0,
    "micrometers": 1000.0,
    "micrometer": 1000.0,
    "micrometres": 1000.0,
    "microns": 1000.0,
    "micron": 1000.0,
    "um": 1000.0,
    "\N{MICRO SIGN}m": 1000.0,
    "\N{GREEK SMALL LETTER MU}m": 1000.0,
    "millimeters": 1e6,
    "mm": 1e6,
    "angstroms": 0.1,
}
# ENVI units that are not lengths.
NOT_LENGTHS = ("index", "wavenumber", "ghz", "mhz")
# No imager measures below 100 nm or above 100 um: a number above 100 is in nm, one below in um.
NM_ABOVE = 100.0
LONGEST_NM = 1e9  # 1 m; for numbers without a unit too
# Bands this many spacings apart are neighbours; wider gaps (such as a removed water band) are bridged or refused.
WIDEST_GAP_SPACINGS = 4.0
# Measured with tests/bridging.py (docs/sensors.md): without 50 nm (a gap of 57 to 67 nm), maps lost at most 0.6
# points of accuracy (in radiance round 1,400 nm: 8.4), without 75 nm up to 7.1.
WIDEST_BRIDGE_NM = 65.0
FWHM_PER_SIGMA = 2.3548  # of a Gaussian

_NAMED_WAVELENGTH = re.compile(
    r"(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?P<unit>" + "|".join(sorted(NM_PER_UNIT, key=len, reverse=True)) + r")\b",
    re.IGNORECASE,
)


class BandMismatch(ValueError):
    """A scene's bands do not match a bundle's."""


@dataclass(frozen=True)
class Gap:
    """Two neighbouring bands of a scene, and how many bands of a bundle lie between them without a measurement."""

    low_nm: float
    high_nm: float
    bands: int

    @property
    def width_nm(self) -> float:
        return self.high_nm - self.low_nm

    @property
    def is_bridged(self) -> bool:
        """Whether interpolation across it costs little."""
        return self.width_nm <= WIDEST_BRIDGE_NM

    def __str__(self) -> str:
        return f"{self.low_nm:.0f} to {self.high_nm:.0f} nm"


@dataclass(frozen=True)
class BandMatch:
    """How a scene's good bands become a bundle's: unchanged, or as weighted sums of neighbours."""

    kind: Literal["same", "resampled", "by count"]
    bands: NDArray[np.int64]  # indices of the scene's good bands
    weights: NDArray[np.float32] | None  # (len(bands), bundle bands) if resampled
    gaps: tuple[Gap, ...] = ()  # bridged by interpolation

    @property
    def bridged_bands(self) -> int:
        """How many of the bundle's bands are interpolated across a gap."""
        return sum(gap.bands for gap in self.gaps)

    @property
    def largest_gap_nm(self) -> float:
        return max((gap.width_nm for gap in self.gaps), default=0.0)


def to_nm(values: Sequence[float], unit: str | None) -> Wavelengths | None:
    """Wavelengths in nm, or None if the numbers cannot be wavelengths."""
    numbers = np.asarray(values, np.float64)
    if numbers.size == 0 or not np.isfinite(numbers).all() or (numbers <= 0).any():
        return None
    if (unit or "").strip().lower() in NOT_LENGTHS:
        return None
    factor = unit_in_nm(unit)
    if factor is None:
        factor = 1.0 if numbers.max() > NM_ABOVE else 1000.0
    return _plausible(np.minimum(numbers, 1e100) * factor)


def _plausible(wavelengths_nm: Wavelengths) -> Wavelengths | None:
    """The wavelengths, unless one is longer than those of any light."""
    return wavelengths_nm if (wavelengths_nm <= LONGEST_NM).all() else None


def unit_in_nm(unit: str | None) -> float | None:
    """A unit's length in nm; None if it is missing or unknown."""
    return NM_PER_UNIT.get((unit or "").strip().lower())


def from_band_names(names: Sequence[str | None]) -> Wavelengths | None:
    """Wavelengths in nm from band names such as `band 7 (0.5436 Micrometers)`; None unless all names have one."""
    found = [_NAMED_WAVELENGTH.search(name or "") for name in names]
    if not found or not all(found):
        return None
    return _plausible(np.array([float(m["number"]) * NM_PER_UNIT[m["unit"].lower()] for m in found if m]))


def parse_list(text: str) -> list[float]:
    """The numbers of `{1, 2, 3}`, separated by commas or white space."""
    return [float(part) for part in re.split(r"[,\s]+", text.strip().strip("{}").strip()) if part]


def spacing_nm(wavelengths_nm: Wavelengths) -> float:
    """The median distance between neighbouring bands."""
    return float(np.median(np.diff(np.sort(wavelengths_nm)))) if len(wavelengths_nm) > 1 else 10.0


def match_bands(
    scene_nm: Wavelengths | None,
    scene_bands: int,
    bundle_nm: Wavelengths | None,
    bundle_bands: int,
    bundle_fwhm_nm: Wavelengths | None = None,
    scene_fwhm_nm: Wavelengths | None = None,
) -> BandMatch:
    """Match by wavelength within half a spacing, else resample; without wavelengths on either side, by equal counts."""
    if scene_nm is None or bundle_nm is None:
        return _match_by_count(scene_nm, scene_bands, bundle_nm, bundle_bands)
    if len(scene_nm) == len(bundle_nm) and np.allclose(scene_nm, bundle_nm, rtol=0, atol=0.01):
        return BandMatch("same", np.arange(scene_bands), None)
    distance = np.abs(scene_nm[None, :] - bundle_nm[:, None])  # (bundle bands, scene bands)
    nearest = distance.argmin(axis=1)
    widths = _response_widths(bundle_fwhm_nm, None if scene_fwhm_nm is None else scene_fwhm_nm[nearest], scene_nm)
    half_spacing = min(spacing_nm(scene_nm), spacing_nm(bundle_nm)) / 2
    # Bands far narrower than the bundle's are averaged under its response instead of picking one of them.
    is_finer = bundle_fwhm_nm is not None and 2 * spacing_nm(scene_nm) < spacing_nm(bundle_nm)
    is_finer |= scene_fwhm_nm is not None and bool(widths.any())
    if not is_finer and (distance.min(axis=1) <= half_spacing).all() and len(set(nearest)) == len(nearest):
        return BandMatch("same", nearest.astype(np.int64), None)
    gaps, is_in_gap = _find_gaps(scene_nm, bundle_nm, distance)
    weights = _resampling_weights(scene_nm, bundle_nm, np.where(is_in_gap, 0, widths))
    used = np.flatnonzero(weights.any(axis=1))
    return BandMatch("resampled", used, weights[used].astype(np.float32), gaps)


def _response_widths(
    bundle_fwhm_nm: Wavelengths | None, scene_fwhm_nm: Wavelengths | None, scene_nm: Wavelengths
) -> Wavelengths:
    """The FWHM under which the scene's bands are averaged, for each band of the bundle; 0 where they are interpolated.

    The scene's bands (`scene_fwhm_nm`: those nearest to the bundle's) are averages already. The squared widths of
    Gaussians add, so only the difference is left to average.
    """
    if bundle_fwhm_nm is None:
        return np.zeros(1)
    missing = bundle_fwhm_nm if scene_fwhm_nm is None else np.sqrt(
        np.maximum(bundle_fwhm_nm**2 - scene_fwhm_nm**2, 0)
    )  # fmt: skip
    return np.where(missing > 2 * spacing_nm(scene_nm), missing, 0)


def _match_by_count(
    scene_nm: Wavelengths | None, scene_bands: int, bundle_nm: Wavelengths | None, bundle_bands: int
) -> BandMatch:
    if scene_nm is None and bundle_nm is not None:
        raise BandMismatch(
            f"the scene has {scene_bands} bands without wavelengths; the bundle needs {_described(bundle_nm)}: "
            "write the wavelengths into the file's header or band metadata"
        )
    if bundle_nm is None and scene_nm is not None and scene_bands != bundle_bands:
        raise BandMismatch(
            f"the scene has {_described(scene_nm)}; the bundle was trained on {bundle_bands} bands without "
            "wavelengths: map a scene with the same bands, or train again with --wavelengths"
        )
    if scene_bands != bundle_bands:
        raise BandMismatch(
            f"the scene has {scene_bands} bands and the bundle {bundle_bands}, and neither has wavelengths to match "
            "them by: map a scene with the same bands"
        )
    return BandMatch("by count", np.arange(scene_bands), None)


def _find_gaps(
    scene_nm: Wavelengths, bundle_nm: Wavelengths, distance: NDArray[np.float64]
) -> tuple[tuple[Gap, ...], NDArray[np.bool_]]:
    """The scene's gaps that hold bands of the bundle, and which bands those are; raises if one is not bridged."""
    spacing = spacing_nm(scene_nm)
    above = np.where(scene_nm[None, :] >= bundle_nm[:, None], distance, np.inf).min(axis=1)
    below = np.where(scene_nm[None, :] <= bundle_nm[:, None], distance, np.inf).min(axis=1)
    # At the edge of a gap, half the distance of the bundle's bands is well inside their widths.
    near = max(spacing, spacing_nm(bundle_nm)) / 2
    covered = (above + below <= WIDEST_GAP_SPACINGS * spacing) | (distance.min(axis=1) <= near)
    edges = np.round(np.stack([bundle_nm - below, bundle_nm + above], axis=1)[~covered], 6)
    found, counts = np.unique(edges, axis=0, return_counts=True)
    gaps = tuple(Gap(float(low), float(high), int(bands)) for (low, high), bands in zip(found, counts, strict=True))
    refused = [gap for gap in gaps if not gap.is_bridged]
    if refused:
        missing = bundle_nm[~covered]
        inside = [f"from {gap}" for gap in refused if np.isfinite(gap.width_nm)]
        why = f"; gaps wider than {WIDEST_BRIDGE_NM:.0f} nm are not bridged: {', '.join(inside)}" if inside else ""
        raise BandMismatch(
            f"the scene has {_described(scene_nm)} and the bundle {_described(bundle_nm)}; the scene does not cover "
            f"{len(missing)} of them, the first at {missing[0]:.1f} nm{why}: use a bundle trained on this sensor's "
            "range"
        )
    return gaps, ~covered


def _resampling_weights(scene_nm: Wavelengths, bundle_nm: Wavelengths, widths_nm: Wavelengths) -> NDArray[np.float64]:
    """Weights (scene bands, bundle bands) that sum to 1: a response of `widths_nm`, or linear where that is 0."""
    order = np.argsort(scene_nm, kind="stable")
    ordered = scene_nm[order]
    right = np.clip(np.searchsorted(ordered, bundle_nm), 1, max(len(ordered) - 1, 1))
    weights = np.zeros((len(scene_nm), len(bundle_nm)))
    for band, wavelength in enumerate(bundle_nm):
        if widths_nm[band] > 0:
            sigma = widths_nm[band] / FWHM_PER_SIGMA
            response = np.exp(-0.5 * ((scene_nm - wavelength) / sigma) ** 2)
            response[response < 1e-3] = 0
            weights[:, band] = response / response.sum()
        elif len(ordered) == 1:
            weights[0, band] = 1
        else:
            low, high = ordered[right[band] - 1], ordered[right[band]]
            share = float(np.clip((wavelength - low) / (high - low), 0, 1)) if high > low else 1.0
            weights[order[right[band] - 1], band] = 1 - share
            weights[order[right[band]], band] = share
    return weights


def _described(wavelengths_nm: Wavelengths) -> str:
    return f"{len(wavelengths_nm)} bands from {wavelengths_nm.min():.0f} to {wavelengths_nm.max():.0f} nm"
