"""The lattice of patch centres, and the plan that divides a map into strips and batches.

Units, from the smallest:

- cell: `stride_px` x `stride_px` pixels of the lattice. A cell that holds data has one patch, centred inside it.
- batch: a rectangle of cells. Its patches share one window of pixels and one call of the network. A batch is addressed
  by its batch row and batch column, counted from the scene's corner, so it does not depend on the strips.
- strip: rows of the map, the unit of reading, writing, checkpoints and distribution. Patches of several batch rows
  vote on a strip, and neighbouring strips share batch rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lattice:
    """A grid of cells of `stride_px` x `stride_px` pixels over a scene, each with at most one patch centre."""

    rows: int
    cols: int
    stride_px: int
    patch_px: int

    @property
    def half_px(self) -> int:
        return self.patch_px // 2

    @property
    def cell_rows(self) -> int:
        return -(-self.rows // self.stride_px)

    @property
    def cell_cols(self) -> int:
        return -(-self.cols // self.stride_px)

    def place_centers(self, allowed: NDArray[np.bool_], top: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Centres (cell rows, cell cols, 2), and which cells have one, for the pixel rows from `top` on.

        A centre lies in the middle of its cell, or on the nearest pixel of the cell that is `allowed` (rows, cols): at
        the scene's edge it moves inside, and beside missing data it moves onto data.
        """
        stride = self.stride_px
        rows = -(-len(allowed) // stride) * stride
        padded = np.zeros((rows, self.cell_cols * stride), bool)
        padded[: len(allowed), : self.cols] = allowed
        cells = padded.reshape(rows // stride, stride, self.cell_cols, stride).swapaxes(1, 2)
        offsets = np.argwhere(np.ones((stride, stride), bool))
        nearest_first = offsets[np.argsort(((offsets - stride // 2) ** 2).sum(axis=1), kind="stable")]
        ordered = cells[:, :, nearest_first[:, 0], nearest_first[:, 1]]  # (cell rows, cell cols, stride ** 2)
        corners = np.moveaxis(np.indices(cells.shape[:2]), 0, -1) * stride + np.array([top, 0])
        centers: NDArray[np.int64] = corners + nearest_first[ordered.argmax(axis=-1)]
        has_patch: NDArray[np.bool_] = np.asarray(ordered.any(axis=-1))
        return centers, has_patch


@dataclass(frozen=True)
class Strip:
    """Rows top..bottom of the map."""

    index: int
    top: int
    bottom: int
    batch_rows: range  # whose patches vote on the strip


@dataclass(frozen=True)
class BatchRow:
    """The patches of a batch row."""

    index: int
    centers: NDArray[np.int64]  # (cell rows, cell cols, 2)
    has_patch: NDArray[np.bool_]  # (cell rows, cell cols): cells that hold data
    batch_cols: list[int]  # of batches with at least one patch

    @cached_property
    def patches_before(self) -> NDArray[np.int64]:
        """Patches to the left of each column of cells, and all of them."""
        return np.concatenate([[0], self.has_patch.sum(axis=0).cumsum()])


@dataclass(frozen=True)
class Plan:
    """Strips and batches of a scene; computed before any pixel is read."""

    lattice: Lattice
    batch_cell_rows: int
    batch_cell_cols: int
    is_voting: bool  # patches vote on every pixel they cover; otherwise only on their centre pixel
    strips: tuple[Strip, ...]

    @property
    def batch_cols(self) -> int:
        """Batches in a batch row."""
        return -(-self.lattice.cell_cols // self.batch_cell_cols)

    @property
    def batch_size(self) -> int:
        return self.batch_cell_rows * self.batch_cell_cols

    @property
    def batch_row_px(self) -> int:
        return self.batch_cell_rows * self.lattice.stride_px

    @property
    def cells(self) -> int:
        return self.lattice.cell_rows * self.lattice.cell_cols

    def cells_before(self, batch_row: int) -> int:
        """Cells of the lattice above a batch row."""
        return min(batch_row * self.batch_cell_rows, self.lattice.cell_rows) * self.lattice.cell_cols

    def batch_cells(self, batch_col: int) -> slice:
        """A batch's columns of cells; the last batch of a row may extend past the lattice's edge."""
        return slice(batch_col * self.batch_cell_cols, (batch_col + 1) * self.batch_cell_cols)

    def window_rows(self, batch_row: int) -> tuple[int, int]:
        """Pixel rows that the patches of a batch row cover; they may lie outside the scene."""
        top = batch_row * self.batch_row_px
        return top - self.lattice.half_px, top + self.batch_row_px + self.lattice.half_px - 1

    def window_cols(self, batch_col: int) -> tuple[int, int]:
        """Pixel columns that the patches of a batch column cover; they may lie outside the scene."""
        left = batch_col * self.batch_cell_cols * self.lattice.stride_px
        right = left + self.batch_cell_cols * self.lattice.stride_px
        return left - self.lattice.half_px, right + self.lattice.half_px - 1

    def rows_needed(self, strip: Strip, batch_rows: range) -> tuple[int, int]:
        """Pixel rows needed to classify `batch_rows` and map the strip, plus one row on either side.

        If all of a strip's batch rows are classified already, the range is empty; the rows from its start on are kept
        for the next strip.
        """
        top = min(strip.top, self.window_rows(batch_rows.start)[0])
        bottom = max(strip.bottom, self.window_rows(batch_rows[-1])[1]) if batch_rows else strip.bottom
        return max(0, top - 1), min(self.lattice.rows, bottom + 1)


def plan_mapping(lattice: Lattice, *, is_voting: bool, batch: int, strip_px: int) -> Plan:
    """Divide the scene into strips that can be classified in any order, on any machine."""
    batch_cell_rows = max(1, int(batch**0.5))
    batch_cell_cols = max(1, batch // batch_cell_rows)
    reach_px = lattice.half_px if is_voting else 0
    batch_row_px = batch_cell_rows * lattice.stride_px

    def batch_rows_of(top: int, bottom: int) -> range:
        # A patch covers the rows centre - half .. centre + half - 1, so row `top` is covered from top - half + 1 on.
        first = max(0, top - reach_px + (reach_px > 0))
        last = min(lattice.rows - 1, bottom - 1 + reach_px)
        return range(first // batch_row_px, last // batch_row_px + 1)

    tops = range(0, lattice.rows, strip_px)
    strips = tuple(
        Strip(index, top, min(top + strip_px, lattice.rows), batch_rows_of(top, min(top + strip_px, lattice.rows)))
        for index, top in enumerate(tops)
    )
    return Plan(lattice, batch_cell_rows, batch_cell_cols, is_voting, strips)
