"""The graph of a scene's pixels: edges to the eight neighbours, label propagation and smoothing along them.

Label propagation on a weighted graph: Zhu and Ghahramani, "Learning from labeled and unlabeled data with label
propagation", CMU-CALD-02-107 (2002). On an image it is the random walker of Grady, "Random walks for image
segmentation", IEEE TPAMI 28 (2006); the fidelity term that ties a pixel to its own spectrum is the prior of Grady,
"Multilabel random walker image segmentation using prior models", CVPR 2005.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

LEAST_EDGE_WEIGHT = 0.01  # outliers inside a field still belong to it; also keeps the graph connected
# Like a fidelity weight, but for spectra: a mean over about 5 pixels in each direction.
SMOOTHING_FIDELITY = 0.1
COLUMNS_AT_ONCE = 16  # smoothed together; bounds the memory
TOLERANCE = 1e-4  # of a solver step; probabilities were then off by at most 0.001 at the lowest fidelity weight
MOST_ITERATIONS = 1000

Probabilities = NDArray[np.float32]  # (pixels, classes)


@dataclass(frozen=True)
class PixelGraph:
    """Pixels and the weights of the edges between neighbours; similar neighbours have larger weights."""

    edge_weights: sparse.csr_array  # (pixels, pixels), symmetric

    @classmethod
    def of(cls, components: NDArray[np.float32], valid: NDArray[np.bool_]) -> PixelGraph:
        """Weights fall exponentially with the squared distance of components, relative to the scene's median."""
        rows, cols = valid.shape
        index = np.arange(rows * cols).reshape(rows, cols)
        pairs = [
            (index[:, :-1], index[:, 1:]),
            (index[:-1], index[1:]),
            (index[:-1, :-1], index[1:, 1:]),
            (index[:-1, 1:], index[1:, :-1]),
        ]
        first = np.concatenate([one.ravel() for one, _ in pairs])
        second = np.concatenate([other.ravel() for _, other in pairs])
        both = valid.ravel()[first] & valid.ravel()[second]
        first, second = first[both], second[both]
        distance = np.square(components[first] - components[second]).sum(axis=1)
        median = float(np.median(distance)) if len(distance) else 1.0
        weights = np.exp(-distance / max(median, 1e-12)) + LEAST_EDGE_WEIGHT
        upper = sparse.coo_array((weights, (first, second)), shape=(rows * cols, rows * cols))
        return cls((upper + upper.T).tocsr().astype(np.float32))

    @property
    def pixels(self) -> int:
        return int(self.edge_weights.shape[0])

    def smooth(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Each pixel's values (pixels, n) as the weighted mean of its own and its neighbours' smoothed values."""
        diagonal = np.asarray(self.edge_weights.sum(axis=1), np.float32).reshape(-1, 1) + np.float32(SMOOTHING_FIDELITY)
        found = np.empty_like(values)
        for first in range(0, values.shape[1], COLUMNS_AT_ONCE):
            some = slice(first, first + COLUMNS_AT_ONCE)
            right = np.float32(SMOOTHING_FIDELITY) * values[:, some]
            found[:, some] = _solve(self.edge_weights, diagonal, right, values[:, some])
        return found

    def propagate(
        self,
        prior: Probabilities,
        indices: NDArray[np.int64],
        classes: NDArray[np.int64],
        fidelity_weights: Sequence[float],
    ) -> Iterator[Probabilities]:
        """For each fidelity weight: probabilities from the labels of the pixels at `indices`, neighbours and the prior.

        A labelled pixel keeps its class. Any other is the mean of its neighbours, weighted by edges, and of its own
        prior, weighted by the fidelity weight; infinity gives the prior. Each solution starts from the one before, so
        the weights should go from large to small.
        """
        free = np.ones(len(prior), bool)
        free[indices] = False
        known = np.zeros_like(prior)
        known[indices, classes] = 1
        from_known = (self.edge_weights @ known)[free]
        inner = self.edge_weights[free][:, free]
        degree = np.asarray(self.edge_weights.sum(axis=1), np.float32).ravel()[free, None]
        solution = prior[free]
        for fidelity in fidelity_weights:
            if not math.isinf(fidelity):
                solution = _solve(inner, degree + fidelity, from_known + fidelity * prior[free], solution)
            whole = known.copy()
            whole[free] = np.maximum(solution, 0)  # rounding may give small negative values
            yield whole


def _solve(
    edge_weights: sparse.csr_array, diagonal: NDArray[np.float32], right: Probabilities, start: Probabilities
) -> Probabilities:
    """Solve (diagonal - edge_weights) x = right, column by column, by Jacobi-preconditioned conjugate gradients."""
    solution = start.copy()
    residual = right - (diagonal * solution - edge_weights @ solution)
    step = residual / diagonal
    direction = step.copy()
    norm = (residual * step).sum(axis=0)
    for _ in range(MOST_ITERATIONS):
        if np.abs(step).max() < TOLERANCE:
            break
        product = diagonal * direction - edge_weights @ direction
        length = norm / np.maximum((direction * product).sum(axis=0), 1e-30)
        solution += length * direction
        residual -= length * product
        step = residual / diagonal
        previous, norm = norm, (residual * step).sum(axis=0)
        direction = step + (norm / np.maximum(previous, 1e-30)) * direction
    return solution
