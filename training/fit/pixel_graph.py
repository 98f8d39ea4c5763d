"""The graph of a scene's pixels: edges to the eight neighbours, label propagation and smoothing along them.

Label propagation on a weighted graph: Zhu and Ghahramani, "Learning from labeled and unlabeled data with label
propagation", CMU-CALD-02-107 (2002). On an image it is the random walker of Grady, "Random walks for image
segmentation", IEEE TPAMI 28 (2006); the fidelity term that ties a pixel to its own spectrum is the prior of Grady,
"Multilabel random walker image segmentation using prior models", CVPR 2005.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperscene.training.fit.graph_kernels import Grid, solve

LEAST_EDGE_WEIGHT = 0.01  # outliers inside a field still belong to it; also keeps the graph connected
# Like a fidelity weight, but for spectra: a mean over about 5 pixels in each direction.
SMOOTHING_FIDELITY = 0.1
TOLERANCE = 1e-4  # of a solver step; probabilities were then off by at most 0.001 at the lowest fidelity weight
INFLUENCE_TOLERANCE = 1e-5  # relative to the first step
MOST_ITERATIONS = 1000
# A pixel's influence falls to 1/e over sqrt(3 / fidelity weight) pixels if all edges have their largest weight. Beyond
# four times that it is neglected: with a fidelity weight of 0.01, 2 % of it in a uniform scene.
NEGLIGIBLE_LENGTHS, LARGEST_RADIUS_PX = 4.0, 64

Probabilities = NDArray[np.float32]  # (pixels, classes)


@dataclass(frozen=True)
class Influence:
    """What the values of some pixels are, as a linear function of the priors and of their own fixed values."""

    between: NDArray[np.float64]  # (n, n): the effect of a source at one of the pixels on the others
    from_priors: NDArray[np.float32]  # (n, columns): values without fixed pixels


@dataclass(frozen=True)
class PixelGraph:
    """The weights of the edges between neighbouring pixels; similar neighbours have larger weights."""

    edges: NDArray[np.float32]  # (4, rows + 2, cols + 2), see `graph_kernels`

    @classmethod
    def of(cls, components: NDArray[np.float32], valid: NDArray[np.bool_]) -> PixelGraph:
        """Weights fall exponentially with the squared distance of components, relative to the scene's median."""
        rows, cols = valid.shape
        grid = components.reshape(rows, cols, -1)
        above, below, left, right = slice(None, -1), slice(1, None), slice(None, -1), slice(1, None)
        every = slice(None)
        pairs = [
            ((every, left), (every, right)),
            ((above, every), (below, every)),
            ((above, left), (below, right)),
            ((above, right), (below, left)),
        ]
        both = [valid[one] & valid[other] for one, other in pairs]
        distances = [np.square(grid[one] - grid[other]).sum(axis=-1) for one, other in pairs]
        known = np.concatenate([distance[known] for distance, known in zip(distances, both, strict=True)])
        scale = max(float(np.median(known)), 1e-12) if len(known) else 1.0
        edges = np.zeros((len(pairs), rows + 2, cols + 2), np.float32)
        for number, (one, _) in enumerate(pairs):
            inner = edges[number, 1:-1, 1:-1]
            inner[one] = np.where(both[number], np.exp(-distances[number] / scale) + LEAST_EDGE_WEIGHT, 0)
        return cls(edges)

    @property
    def shape(self) -> tuple[int, int]:
        return self.edges.shape[1] - 2, self.edges.shape[2] - 2

    @property
    def pixels(self) -> int:
        return math.prod(self.shape)

    @property
    def degree(self) -> Grid:
        """The sum of the weights of each pixel's edges."""
        right, below, below_right, below_left = self.edges
        total = right + below + below_right + below_left
        total[:, 1:] += right[:, :-1]
        total[1:] += below[:-1]
        total[1:, 1:] += below_right[:-1, :-1]
        total[1:, :-1] += below_left[:-1, 1:]
        return total

    def smooth(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Each pixel's values (pixels, n) as the weighted mean of its own and its neighbours' smoothed values."""
        nowhere = np.zeros(self.shape, bool)
        return self._solve_columns(SMOOTHING_FIDELITY, values, values, nowhere)

    def propagate(
        self,
        prior: Probabilities,
        indices: NDArray[np.int64],
        classes: NDArray[np.int64],
        fidelity_weight: float,
        near: Probabilities | None = None,
        tolerance: float = TOLERANCE,
    ) -> Probabilities:
        """Probabilities from the labels of the pixels at `indices`, from neighbours and from the prior.

        A labelled pixel keeps its class. Any other is the mean of its neighbours, weighted by edges, and of its own
        prior, weighted by the fidelity weight; infinity gives the prior. A solution `near` the wanted one saves steps.
        """
        start = prior.copy() if near is None else near.copy()
        start[indices] = 0
        start[indices, classes] = 1
        if math.isinf(fidelity_weight):
            return start
        is_fixed = np.zeros(self.pixels, bool)
        is_fixed[indices] = True
        solution = self._solve_columns(fidelity_weight, prior, start, is_fixed.reshape(self.shape), tolerance)
        return np.maximum(solution, 0, out=solution)  # rounding may give small negative values

    def _solve_columns(
        self,
        fidelity: float,
        prior: NDArray[np.float32],
        start: NDArray[np.float32],
        is_fixed: NDArray[np.bool_],
        tolerance: float = TOLERANCE,
    ) -> NDArray[np.float32]:
        """Solve for each column of the prior (pixels, n); fixed pixels keep their value of `start`."""
        diagonal, inverse = self._diagonals(fidelity, is_fixed)
        found = np.empty_like(start)

        def solve_column(column: int) -> None:
            right, solution = (self._padded(values[:, column]) for values in (prior, start))
            right *= np.float32(fidelity)
            solve(self.edges, diagonal, inverse, right, solution, tolerance, MOST_ITERATIONS)
            found[:, column] = solution[1:-1, 1:-1].ravel()

        _in_threads(solve_column, range(start.shape[1]))
        return found

    def influence(self, positions: NDArray[np.int64], fidelity: float, priors: NDArray[np.float32]) -> Influence:
        """The influence of the pixels at `positions` (n, 2) on each other and of priors (rows, cols, columns) on them.

        The equations of all pixels are linear, so the values at some pixels for any choice of fixed ones follow from
        the columns of the inverse matrix that belong to these pixels. Each is solved for in a window.
        """
        rows, cols = self.shape
        radius = min(LARGEST_RADIUS_PX, math.ceil(NEGLIGIBLE_LENGTHS * math.sqrt(3 / fidelity)))
        diagonal, inverse = self._diagonals(fidelity, np.zeros(self.shape, bool))
        between = np.zeros((len(positions), len(positions)))
        from_priors = np.zeros((len(positions), priors.shape[-1]), np.float32)

        def reach_from(number: int) -> None:
            low = np.maximum(positions[number] - radius, 0)
            high = np.minimum(positions[number] + radius + 1, (rows, cols))
            padded = np.s_[low[0] : high[0] + 2, low[1] : high[1] + 2]
            source = np.zeros(high - low + 2, np.float32)
            row, col = positions[number] - low + 1
            source[row, col] = fidelity
            reached = np.zeros_like(source)
            tolerance = INFLUENCE_TOLERANCE * fidelity * float(inverse[padded][row, col])
            edges = self.edges[:, padded[0], padded[1]]
            solve(edges, diagonal[padded], inverse[padded], source, reached, tolerance, MOST_ITERATIONS)
            within = reached[1:-1, 1:-1]
            inside = np.flatnonzero(((positions >= low) & (positions < high)).all(axis=1))
            between[number, inside] = within[tuple((positions[inside] - low).T)]
            from_priors[number] = np.tensordot(within, priors[low[0] : high[0], low[1] : high[1]], 2)

        _in_threads(reach_from, range(len(positions)))
        return Influence((between + between.T) / 2, from_priors)

    def _diagonals(self, fidelity: float, is_fixed: NDArray[np.bool_]) -> tuple[Grid, Grid]:
        """The diagonal of the equations and its inverse, which is 0 at fixed pixels and outside the scene."""
        diagonal = self.degree + np.float32(fidelity)
        inverse = np.zeros_like(diagonal)
        inverse[1:-1, 1:-1] = np.where(is_fixed, 0, 1 / diagonal[1:-1, 1:-1])
        return diagonal, inverse

    def _padded(self, values: NDArray[np.float32]) -> Grid:
        return np.pad(values.reshape(self.shape), 1)


def _in_threads(work: Callable[[int], None], numbers: Iterable[int]) -> None:
    """Run the work for each number; the solver releases Python's lock."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(work, numbers):
            pass
