"""Temperature scaling: one number that makes a network's confidence mean how often it is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

FEWEST_PIXELS = 20  # fewer say nothing about how sure a network may be
LOWEST, HIGHEST = 0.1, 10.0


def fit_temperature(logits: NDArray[np.float32], truth: NDArray[np.integer]) -> float:
    """What logits (n, classes) have to be divided by for pixels of classes 1..K to be likeliest; 1 for too few."""
    if len(truth) < FEWEST_PIXELS:
        return 1.0
    rows, columns = np.arange(len(truth)), truth.astype(int) - 1

    def unlikeliness(log_temperature: float) -> float:
        likeliness = log_softmax(logits.astype(np.float64) / np.exp(log_temperature), axis=1)
        return -float(likeliness[rows, columns].mean())

    found = minimize_scalar(unlikeliness, bounds=(np.log(LOWEST), np.log(HIGHEST)), method="bounded")
    return float(np.exp(found.x))
