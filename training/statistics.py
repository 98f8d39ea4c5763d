"""Figures over seeds: mean and spread, ranks, tests of differences; and how far confidence is off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Metric = Literal["oa", "aa", "kappa"]
METRICS: tuple[Metric, ...] = get_args(Metric)

Bins = list[tuple[float, float, int]]  # mean confidence, share right, number of answers

BINS = 15  # of confidence, all of the same width, as in Guo et al. (2017)


def summarise(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; one value alone has the deviation 0."""
    found = np.asarray(values, np.float64)
    if not len(found):
        raise ValueError("no values to summarise")
    return float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else 0.0


def marks(values: Sequence[float | None], digits: int = 2) -> list[int]:
    """1 for the best, 2 for the second, 3 for the third, 0 for the rest and for None.

    Values that print alike share a mark, and the next one is then as far down as there are better ones.
    """
    printed = [None if value is None else round(value, digits) for value in values]
    known = [value for value in printed if value is not None]
    ranks = [0 if value is None else 1 + sum(other > value for other in known) for value in printed]
    return [rank if rank <= 3 else 0 for rank in ranks]


def paired_p(first: Sequence[float], second: Sequence[float], step: float = 0.0) -> float:
    """Two-sided p of the paired t-test: how often seeds alone would make two equal methods differ as much.

    The t-test and not Wilcoxon's: of five seeds that one's smallest p is 1/16, so it could never find anything. A few
    seeds may agree by chance, so their spread is not taken to be less than that of the pixels: where n of them at least
    have changed sides, of which each counts a `step`, chance alone gives sqrt(n) of them.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"a paired test needs two or more pairs, not {len(first)} and {len(second)} values")
    difference = np.subtract(first, second)
    mean = float(difference.mean())
    spread = max(float(difference.std(ddof=1)), math.sqrt(abs(mean) * step))
    # Differences that agree to rounding have no spread to judge them by: all or nothing.
    if spread <= 1e-9 * max(1.0, float(np.abs(first).max())):
        return 1.0 if np.allclose(difference, 0, atol=1e-9) else 0.0
    from scipy.stats import t

    return float(2 * t.sf(abs(mean) * math.sqrt(len(first)) / spread, len(first) - 1))


def needed_spreads(tests: int, seeds: int, p: float = 0.05) -> float:
    """How many standard deviations a mean difference must be for the first of so many paired tests to find it."""
    from scipy.stats import t

    return float(t.isf(p / (2 * tests), seeds - 1)) / math.sqrt(seeds)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values of tests made together, raised after Holm (1979) so that all of them hold at once."""
    order = np.argsort(p_values, kind="stable")
    raised = np.zeros(len(p_values))
    highest = 0.0
    for place, number in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[number]))
        raised[number] = highest
    return raised.tolist()


def reliability_bins(confidence: NDArray[np.floating], is_right: NDArray[np.bool_], bins: int = BINS) -> Bins:
    """What became of the answers in each bin of confidence that holds any."""
    confidence = confidence.astype(np.float64)
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    found = []
    for number in np.unique(place):
        inside = place == number
        found.append((float(confidence[inside].mean()), float(is_right[inside].mean()), int(inside.sum())))
    return found


def calibration_error(bins: Bins) -> float:
    """Expected calibration error: how far confidence lies from the share right, on average over the answers."""
    total = sum(count for _, _, count in bins)
    return sum(count * abs(confidence - share) for confidence, share, count in bins) / total if total else 0.0
