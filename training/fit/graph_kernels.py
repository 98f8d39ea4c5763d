"""The solver of equations on the pixel graph, compiled for a CPU.

Grids have one more row and column on each side, so that no loop has to check for edges of the scene. `edges[n, r, c]`
is the weight of the edge from pixel (r, c) to its neighbour right, below, below right, or below left; 0 for none.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.float32]  # (rows + 2, cols + 2)


def _compiled(loop: Any) -> Any:
    """Allow sums in any order; the machine code is cached between runs, since compiling takes seconds."""
    return numba.njit(fastmath={"reassoc", "contract", "nsz", "nnan"}, error_model="numpy", nogil=True, cache=True)(
        loop
    )


@_compiled
def _inner(grid: Grid, row: int) -> NDArray[np.float32]:
    """A row of the scene, without the added columns."""
    return grid[row + 1, 1:-1]


@_compiled
def weighted_sums(edges: NDArray[np.float32], values: Grid, row: int, out: NDArray[np.float32]) -> None:
    """For each pixel of a row, the sum of its neighbours' values times the weights of their edges."""
    # Slices, because an index such as `col - 1` keeps the compiler from using vector instructions.
    above, here, below = values[row - 1], values[row], values[row + 1]
    north_west, north, north_east = above[:-2], above[1:-1], above[2:]
    west, east = here[:-2], here[2:]
    south_west, south, south_east = below[:-2], below[1:-1], below[2:]
    to_west, to_east = edges[0, row, :-2], edges[0, row, 1:-1]
    to_north, to_south = edges[1, row - 1, 1:-1], edges[1, row, 1:-1]
    to_north_west, to_south_east = edges[2, row - 1, :-2], edges[2, row, 1:-1]
    to_north_east, to_south_west = edges[3, row - 1, 2:], edges[3, row, 1:-1]
    for col in range(len(out)):
        out[col] = (
            to_west[col] * west[col]
            + to_east[col] * east[col]
            + to_north[col] * north[col]
            + to_south[col] * south[col]
            + to_north_west[col] * north_west[col]
            + to_south_east[col] * south_east[col]
            + to_north_east[col] * north_east[col]
            + to_south_west[col] * south_west[col]
        )


@_compiled
def solve(edges: Grid, diagonal: Grid, inverse: Grid, right: Grid, solution: Grid, tolerance: float, most: int) -> int:
    """Solve diagonal * x - (sum over neighbours) = right for x in `solution`, which holds the start; gives the steps.

    Conjugate gradients, preconditioned with `inverse`: 1 / diagonal, or 0 at pixels whose value is fixed.
    """
    rows = solution.shape[0] - 2
    residual, direction = np.zeros_like(solution), np.zeros_like(solution)
    product = np.zeros((rows, solution.shape[1] - 2), solution.dtype)
    nothing: Any = solution.dtype.type(0)  # a plain 0 would turn the sums into doubles
    norm, largest = 0.0, nothing
    for row in range(rows):
        out = product[row]
        weighted_sums(edges, solution, row + 1, out)
        x, b, diag, inv = _inner(solution, row), _inner(right, row), _inner(diagonal, row), _inner(inverse, row)
        left, towards = _inner(residual, row), _inner(direction, row)
        part = nothing
        for col in range(len(out)):
            left[col] = b[col] - diag[col] * x[col] + out[col]
            towards[col] = inv[col] * left[col]
            part += left[col] * towards[col]
            largest = max(largest, abs(towards[col]))
        norm += part
    for count in range(most):
        if largest < tolerance:
            return count
        curvature = 0.0
        for row in range(rows):
            out, diag, towards = product[row], _inner(diagonal, row), _inner(direction, row)
            weighted_sums(edges, direction, row + 1, out)
            part = nothing
            for col in range(len(out)):
                out[col] = diag[col] * towards[col] - out[col]
                part += towards[col] * out[col]
            curvature += part
        length = solution.dtype.type(norm / max(curvature, 1e-30))
        previous, norm, largest = norm, 0.0, nothing
        for row in range(rows):
            out, inv, x = product[row], _inner(inverse, row), _inner(solution, row)
            left, towards = _inner(residual, row), _inner(direction, row)
            part = nothing
            for col in range(len(out)):
                x[col] += length * towards[col]
                left[col] -= length * out[col]
                step = inv[col] * left[col]
                part += left[col] * step
                largest = max(largest, abs(step))
            norm += part
        ratio = solution.dtype.type(norm / max(previous, 1e-30))
        for row in range(rows):
            inv, left, towards = _inner(inverse, row), _inner(residual, row), _inner(direction, row)
            for col in range(len(left)):
                towards[col] = inv[col] * left[col] + ratio * towards[col]
    return most
