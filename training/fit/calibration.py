"""Temperature scaling: one number by which logits are divided, so that confidence matches accuracy.

Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

FEWEST_PIXELS = 50  # with 23 of HyMap Berlin, temperatures made confidence worse in 14 of 15 networks
# Without a lower bound, a network without errors on the few pixels would get a confidence of 1 everywhere.
LOWEST, HIGHEST = 0.3, 10.0

Bins = list[tuple[float, float, int]]  # mean confidence, share right, number of predictions
DIAGRAM_WIDTH = 40
BINS = 15  # of confidence, all of the same width, as in Guo et al. (2017)


def fit_temperature(
    logits: NDArray[np.float32], truth: NDArray[np.integer], lowest: float = LOWEST, highest: float = HIGHEST
) -> float:
    """The temperature of logits (n, classes) under which the classes 0..K-1 are most likely; 1 for too few pixels."""
    if len(truth) < FEWEST_PIXELS:
        return 1.0
    found = minimize_scalar(
        lambda exponent: negative_log_likelihood(logits, truth, math.exp(exponent)),
        bounds=(math.log(lowest), math.log(highest)),
        method="bounded",
    )
    return math.exp(found.x)


def fit_temperature_to(logits: NDArray[np.float32], targets: NDArray[np.float32]) -> float:
    """The temperature under which the softmax of logits (n, classes) is closest to target probabilities."""

    def cross_entropy(exponent: float) -> float:
        log_probabilities = log_softmax(logits.astype(np.float64) / math.exp(exponent), axis=1)
        return -float((targets * log_probabilities).sum(axis=1).mean())

    found = minimize_scalar(cross_entropy, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded")
    return math.exp(found.x)


def negative_log_likelihood(logits: NDArray[np.float32], truth: NDArray[np.integer], temperature: float) -> float:
    """Mean negative log-likelihood of the classes 0..K-1."""
    return float(pixel_losses(logits, truth, temperature).mean())


def pixel_losses(logits: NDArray[np.float32], truth: NDArray[np.integer], temperature: float) -> NDArray[np.float64]:
    """The negative log-likelihood of each pixel's class 0..K-1."""
    log_probabilities = log_softmax(logits.astype(np.float64) / temperature, axis=1)
    losses: NDArray[np.float64] = -log_probabilities[np.arange(len(truth)), truth]
    return losses


def reliability_bins(confidence: NDArray[np.floating], is_right: NDArray[np.bool_], bins: int = BINS) -> Bins:
    """Mean confidence, accuracy and count of the predictions in each non-empty bin of confidence."""
    confidence = confidence.astype(np.float64)
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    found = []
    for number in np.unique(bin_of):
        inside = bin_of == number
        found.append((float(confidence[inside].mean()), float(is_right[inside].mean()), int(inside.sum())))
    return found


def calibration_error(bins: Bins) -> float:
    """Expected calibration error: mean distance between confidence and accuracy over the predictions."""
    total = sum(count for _, _, count in bins)
    return sum(count * abs(confidence - share) for confidence, share, count in bins) / total if total else 0.0


def reliability_lines(bins: Bins) -> list[str]:
    """A reliability diagram as text: accuracy by confidence; a calibrated bar ends at the mark."""
    lines = [f"confidence and accuracy, expected calibration error {100 * calibration_error(bins):.1f} %:"]
    for confidence, share, count in bins:
        bar = ("#" * round(DIAGRAM_WIDTH * share)).ljust(DIAGRAM_WIDTH)
        mark = min(DIAGRAM_WIDTH - 1, round(DIAGRAM_WIDTH * confidence))
        lines.append(f"{100 * confidence:5.1f}  {bar[:mark]}|{bar[mark + 1 :]} {100 * share:5.1f} % of {count}")
    return lines
