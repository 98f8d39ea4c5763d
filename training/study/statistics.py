"""Statistics over seeds: mean and deviation, ranks, paired tests; and calibration errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

Metric = Literal["oa", "aa", "kappa"]
METRICS: tuple[Metric, ...] = get_args(Metric)


def summarise(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; one value alone has the deviation 0."""
    found = np.asarray(values, np.float64)
    if not len(found):
        raise ValueError("no values to summarise")
    return float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else 0.0


def top_three(values: Sequence[float | None], digits: int = 2) -> list[int]:
    """1 for the best, 2 for the second, 3 for the third, 0 for the rest and for None.

    Values that print alike share a rank, and the ranks after it are skipped.
    """
    printed = [None if value is None else round(value, digits) for value in values]
    known = [value for value in printed if value is not None]
    ranks = [0 if value is None else 1 + sum(other > value for other in known) for value in printed]
    return [rank if rank <= 3 else 0 for rank in ranks]


def paired_p(first: Sequence[float], second: Sequence[float], pixel_points: float = 0.0) -> float:
    """Two-sided p of the paired t-test over seeds.

    Not Wilcoxon's test, whose smallest p with five seeds is 1/16. A few seeds may agree by chance, so the deviation has
    a lower limit: where the methods differ in n pixels, each worth `pixel_points`, chance alone gives sqrt(n) of them.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"a paired test needs two or more pairs, not {len(first)} and {len(second)} values")
    difference = np.subtract(first, second)
    mean = float(difference.mean())
    spread = max(float(difference.std(ddof=1)), math.sqrt(abs(mean) * pixel_points))
    # Differences that are equal up to rounding have no deviation.
    if spread <= 1e-9 * max(1.0, float(np.abs(first).max())):
        return 1.0 if np.allclose(difference, 0, atol=1e-9) else 0.0
    from scipy.stats import t

    return float(2 * t.sf(abs(mean) * math.sqrt(len(first)) / spread, len(first) - 1))


def detectable_effect(tests: int, seeds: int, p: float = 0.05) -> float:
    """The smallest mean difference, in standard deviations, that one of so many corrected paired tests can find."""
    from scipy.stats import t

    return float(t.isf(p / (2 * tests), seeds - 1)) / math.sqrt(seeds)


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for multiple tests after Holm (1979)."""
    order = np.argsort(p_values, kind="stable")
    raised = np.zeros(len(p_values))
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        raised[index] = highest
    return raised.tolist()
