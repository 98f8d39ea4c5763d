"""95 % intervals that also hold for rare classes and small samples; tests/coverage.py measures how often.

Overall and user's accuracy: Wilson's score interval with the effective sample size (Dean and Pagano 2015, Evaluating
confidence interval methods for binomial proportions in clustered surveys). Area and producer's accuracy are sums over
strata in which a class may not have been found at all: the textbook's interval then counts those strata as certain and
is too short. Instead, each stratum's class shares are drawn from their Dirichlet posterior under Perks' prior, which
adds one point per stratum, divided equally among its cells; the interval lies between quantiles of the draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LEVEL = 0.95
DRAWS = 4000
SEED = 20_140_525
SMALLEST = 1e-300  # gamma variates of tiny shapes underflow to 0
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


def wilson(share: float, points: float) -> tuple[float, float]:
    """Wilson's interval of a share that was found in so many points."""
    denominator = 1 + Z**2 / points
    middle = (share + Z**2 / (2 * points)) / denominator
    half = Z / denominator * (share * (1 - share) / points + Z**2 / (4 * points**2)) ** 0.5
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


@dataclass(frozen=True)
class JointDraws:
    """Draws of the shares of the area by map class and reference class: (draws, K, K)."""

    shares: Numbers

    def interval(self, part: Numbers, whole: Numbers) -> tuple[float, float]:
        """The interval of a ratio of sums over cells."""
        top = np.tensordot(self.shares, part, axes=2)
        bottom = np.maximum(np.tensordot(self.shares, whole, axes=2), SMALLEST)
        low, high = np.quantile(top / bottom, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(np.clip(low, 0, 1)), float(np.clip(high, 0, 1))


def draw_joint(counts: NDArray[np.int64], weights: Numbers, fpc: Numbers, draws: int = DRAWS) -> JointDraws:
    """Draws for points (H, K, K) by stratum, map class and reference class; the same points give the same draws."""
    generator = np.random.default_rng(SEED)
    classes = counts.shape[1]
    total = np.zeros((draws, classes, classes))
    for found, weight, correction in zip(counts, weights, fpc, strict=True):
        occurs = np.flatnonzero(found.sum(axis=1))  # map classes in this stratum
        cells = found[occurs].ravel().astype(float)
        gammas = generator.standard_gamma(cells + 1 / len(cells), (draws, len(cells)))
        shares = gammas / np.maximum(gammas.sum(axis=1, keepdims=True), SMALLEST)
        known = cells / cells.sum()
        shares = known + np.sqrt(correction) * (shares - known)
        total[:, occurs] += weight * shares.reshape(draws, len(occurs), classes)
    return JointDraws(total)
