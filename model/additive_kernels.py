"""The additive score of all pairs of tokens, and its gradient, compiled for a CPU.

Both take exp(2 q) of queries (m, i, width) and exp(2 k) of keys (m, width, j): the innermost loops run over keys, which
are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def _compiled(loop: Callable[..., None]) -> Any:
    """Allow sums in any order, but keep the rules for infinity: the complement of a huge power is 0."""
    return numba.njit(fastmath={"reassoc", "contract", "nsz"}, error_model="numpy", nogil=True)(loop)


@_compiled
def add_scores(queries: Array, keys: Array, weight: Array, scores: Array) -> None:
    """Take 2 w . c from `scores` (m, i, j), where c = (1 - tanh(q + k)) / 2 = 1 / (1 + exp(2 q) exp(2 k))."""
    one = scores.dtype.type(1)  # a plain 1 would turn every number into a double
    count, rows, width = queries.shape
    for m in range(count):
        for i in range(rows):
            row = scores[m, i]
            for component in range(width):
                query, key = queries[m, i, component], keys[m, component]
                share = weight[m, component] + weight[m, component]
                for j in range(len(key)):
                    row[j] -= share / (one + query * key[j])


@_compiled
def add_slopes(queries: Array, keys: Array, outer: Array, by_query: Array, by_key: Array, complement: Array) -> None:
    """Add g c (1 - c) over keys and over queries, and g c over both, for gradients g = `outer` (m, i, j)."""
    one, nothing = outer.dtype.type(1), outer.dtype.type(0)
    count, rows, width = queries.shape
    for m in range(count):
        for i in range(rows):
            row = outer[m, i]
            for component in range(width):
                query, key, along = queries[m, i, component], keys[m, component], by_key[m, component]
                slopes = total = nothing
                for j in range(len(key)):
                    pair = one / (one + query * key[j])
                    part = row[j] * pair
                    slope = part - part * pair
                    total += part
                    slopes += slope
                    along[j] += slope
                by_query[m, i, component] += slopes
                complement[m, component] += total
