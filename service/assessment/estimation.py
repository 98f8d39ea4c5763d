"""Accuracy and area from a checked sample, with standard errors and intervals.

Estimators: Olofsson et al. (2014), Good practices for estimating area and assessing accuracy of land change, Remote
Sensing of Environment 148, where the strata are the map's classes; Stehman (2014), Estimating area and map accuracy
for stratified random sampling when the strata are different from the map classes, International Journal of Remote
Sensing 35(13). The second contains the first: every figure is a ratio of two means, such as correct pixels of a class
to pixels of that class. `intervals.py` has the intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperscene.service.assessment.intervals import JointDraws, draw_joint, wilson

Z_95 = 1.959963984540054
FEW_POINTS = 5
# A class is too rare for the sample if one more missed point would change its area by more than this share.
HEAVY_POINT = 0.05

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class CheckedPoints:
    """Points with an answer: their stratum, and the class of map and interpreter; strata cover the whole area."""

    strata: NDArray[np.int64]  # (n,), 0..H-1
    mapped: NDArray[np.int64]  # (n,), 1..K
    reference: NDArray[np.int64]  # (n,), 1..K
    stratum_weights: Numbers  # (H,), hectares or pixels
    stratum_pixels: NDArray[np.int64]  # (H,)
    classes: int

    def counts(self) -> NDArray[np.int64]:
        """Points by stratum, map class and reference class: (H, K, K)."""
        counts = np.zeros((len(self.stratum_weights), self.classes, self.classes), np.int64)
        np.add.at(counts, (self.strata, self.mapped - 1, self.reference - 1), 1)
        return counts

    @property
    def is_stratified_by_map(self) -> bool:
        """Whether each stratum is one class of the map."""
        counts = self.counts().sum(axis=2)
        return bool(((counts > 0).sum(axis=1) <= 1).all() and ((counts > 0).sum(axis=0) <= 1).all())


@dataclass(frozen=True)
class Estimate:
    """One figure with its standard error and 95 % interval; None where the sample does not tell."""

    value: float | None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """The same figure in another unit."""
        parts = (self.value, self.standard_error, self.low, self.high)
        return Estimate(*(None if part is None else part * factor for part in parts))

    def record(self, digits: int = 6) -> dict[str, float | None]:
        """As JSON, with the interval of the textbook beside ours."""
        half = None if self.standard_error is None else Z_95 * self.standard_error
        found = {
            "value": self.value, "standard_error": self.standard_error, "low": self.low, "high": self.high,
            "half_width_wald": half,
        }  # fmt: skip
        return {name: None if number is None else round(float(number), digits) for name, number in found.items()}


@dataclass(frozen=True)
class ClassEstimate:
    """What the sample says about one class."""

    users_accuracy: Estimate
    producers_accuracy: Estimate
    area_share: Estimate
    mapped_points: int
    reference_points: int
    remarks: tuple[str, ...]  # why an interval promises less than 95 %


@dataclass(frozen=True)
class Assessment:
    """Overall accuracy, each class, and the error matrix in shares of the area."""

    overall_accuracy: Estimate
    classes: tuple[ClassEstimate, ...]
    matrix: NDArray[np.int64]  # points: map in rows, reference in columns
    shares: Numbers  # the same, estimated shares of the area


def estimate(points: CheckedPoints) -> Assessment:
    """All figures of a sample; every stratum needs two points."""
    counts = points.counts()
    sampled = counts.sum(axis=(1, 2))
    weights = points.stratum_weights / points.stratum_weights.sum()
    draws = draw_joint(counts, weights, _fpc(points, sampled))
    ratios = Ratios(counts / sampled[:, None, None], weights, sampled, _fpc(points, sampled))
    classes = range(points.classes)
    correct, whole = np.eye(points.classes), np.ones((points.classes, points.classes))
    return Assessment(
        overall_accuracy=ratios.proportion(correct, whole),
        classes=tuple(_class_estimate(number, points, counts, ratios, draws) for number in classes),
        matrix=counts.sum(axis=0),
        shares=ratios.joint,
    )


def _fpc(points: CheckedPoints, sampled: NDArray[np.int64]) -> Numbers:
    """The finite population correction of each stratum: 0 where every pixel was checked."""
    return np.clip(1 - sampled / np.maximum(points.stratum_pixels, 1), 0, 1)


@dataclass(frozen=True)
class Ratios:
    """Ratios of means over the area, with the standard errors of Stehman (2014), equations 24 to 28."""

    proportions: Numbers  # (H, K, K), of each stratum's points
    weights: Numbers  # (H,), shares of the area
    sampled: NDArray[np.int64]  # (H,)
    fpc: Numbers  # (H,)

    @property
    def joint(self) -> Numbers:
        """Shares of the area by map class and reference class."""
        joint: Numbers = np.tensordot(self.weights, self.proportions, axes=1)
        return joint

    def ratio(self, part: Numbers, whole: Numbers) -> tuple[float, float] | None:
        """A ratio and its standard error; None if nothing of the whole was found."""
        total = float((self.joint * whole).sum())
        if total <= 0:
            return None
        value = float((self.joint * part).sum()) / total
        residual = part - value * whole
        mean = (self.proportions * residual).sum(axis=(1, 2))
        spread = (self.proportions * residual**2).sum(axis=(1, 2)) - mean**2
        variance = (self.weights**2 * self.fpc * np.maximum(spread, 0) / (self.sampled - 1)).sum()
        return value, float(np.sqrt(variance)) / total

    def proportion(self, part: Numbers, whole: Numbers) -> Estimate:
        """A ratio with Wilson's interval for the sample size that it is worth."""
        found = self.ratio(part, whole)
        if found is None:
            return Estimate(None)
        value, error = found
        has_whole = (self.proportions * whole).sum(axis=(1, 2))
        points = float((has_whole * self.sampled).sum())
        worth = value * (1 - value) / error**2 if error > 0 else points
        low, high = wilson(value, max(worth, 1.0)) if (self.fpc * has_whole).any() else (value, value)
        return Estimate(value, error, low, high)


def _class_estimate(
    number: int, points: CheckedPoints, counts: NDArray[np.int64], ratios: Ratios, draws: JointDraws
) -> ClassEstimate:
    cell, row, col = (np.zeros((points.classes, points.classes)) for _ in range(3))
    cell[number, number], row[number, :], col[:, number] = 1, 1, 1
    whole = np.ones_like(cell)
    users = ratios.proportion(cell, row)
    producers, area = ratios.ratio(cell, col), ratios.ratio(col, whole)
    assert area is not None
    mapped, reference = int(counts[:, number].sum()), int(counts[:, :, number].sum())
    return ClassEstimate(
        users_accuracy=users,
        producers_accuracy=Estimate(None) if producers is None else _drawn(producers, draws.interval(cell, col)),
        area_share=_drawn(area, draws.interval(col, whole)),
        mapped_points=mapped,
        reference_points=reference,
        remarks=_remarks(number, counts, ratios, mapped, reference),
    )


def _drawn(found: tuple[float, float], bounds: tuple[float, float]) -> Estimate:
    """An estimate with the interval of the draws, widened to the estimate if it lies at an end such as 100 %."""
    value, error = found
    return Estimate(value, error, min(bounds[0], value), max(bounds[1], value))


def _remarks(number: int, counts: NDArray[np.int64], ratios: Ratios, mapped: int, reference: int) -> tuple[str, ...]:
    """Where the sample is too small for the class; docs/assessment.md has how often the intervals then hold."""
    remarks = []
    if mapped < FEW_POINTS:
        remarks.append(f"only {mapped} points lie in this class of the map: its user's accuracy is hardly known")
    if reference < FEW_POINTS:
        remarks.append(f"only {reference} points were found to be this class: its producer's accuracy is hardly known")
    elsewhere = counts[:, :, number].sum(axis=1) - counts[:, number, number]
    area = float(ratios.joint[:, number].sum())
    point_weights = ratios.weights / ratios.sampled
    missed = _effective_count(elsewhere, point_weights)
    # The strata in which the class could hide: all that are not this class of the map alone.
    others = counts.sum(axis=2)[:, number] < ratios.sampled
    heaviest = float((point_weights * ratios.fpc)[others].max(initial=0))
    if missed < FEW_POINTS and heaviest > HEAVY_POINT * area:
        effect = f"{100 * heaviest / area:.0f} % of its area" if area > 0 else "all of its area"
        remarks.append(
            f"the class is rare for this sample: points of it in other classes of the map: {int(elsewhere.sum())}, and "
            f"one more would be {effect}; the intervals of its area and producer's accuracy may miss the truth more "
            "often than 1 in 20"
        )
    return tuple(remarks)


def _effective_count(counts: NDArray[np.int64], weights: Numbers) -> float:
    """How many points of equal weight these are worth (Kish 1965): many light ones and a heavy one are worth one."""
    squares = float((counts * weights**2).sum())
    return float((counts * weights).sum()) ** 2 / squares if squares > 0 else 0.0
