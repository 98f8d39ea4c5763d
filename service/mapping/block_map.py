"""Absent blocks: strips and tiles of a TIFF that were never written. They are missing data, and are not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BlockMap:
    """Which blocks of a raster are present.

    GDAL reads an absent block as the band's no-data value, or as zeros if it has none. Here it is missing data in both
    cases. A pixel is missing where the blocks of all bands are absent: GDAL also leaves out a single band's blocks of
    zeros, and zeros of one band are real.
    """

    rows: int  # of the raster
    cols: int
    block_rows: int  # of a block, in pixels
    block_cols: int
    present: NDArray[np.bool_]  # (planes, rows of blocks, columns of blocks); one plane if it is for all bands

    def fits(self, rows: int, cols: int, bands: int) -> bool:
        """Whether it belongs to a raster of this size."""
        return (self.rows, self.cols) == (rows, cols) and len(self.present) in (1, bands)

    def _of_bands(self, bands: Sequence[int]) -> NDArray[np.bool_]:
        """Blocks (rows, columns) that are present in at least one band, by number from 1."""
        planes = np.zeros(1, np.int64) if len(self.present) == 1 else np.asarray(bands) - 1
        return np.asarray(self.present[planes].any(axis=0))

    def pixels(self, bands: Sequence[int], top: int, left: int, shape: tuple[int, int]) -> NDArray[np.bool_] | None:
        """Pixels (rows, cols) of a window that lie in present blocks; None if all do."""
        down = (top + np.arange(shape[0])) // self.block_rows
        right = (left + np.arange(shape[1])) // self.block_cols
        blocks = self._of_bands(bands)[down[0] : down[-1] + 1, right[0] : right[-1] + 1]
        return None if blocks.all() else blocks[down - down[0]][:, right - right[0]]

    def count_cells(self, bands: Sequence[int], stride_px: int) -> int:
        """Cells of the lattice that may hold data; a few more where blocks do not end between cells."""
        tops = np.arange(0, self.rows, stride_px)
        bottoms = np.minimum(tops + stride_px, self.rows) - 1
        blocks = self._of_bands(bands)
        by_row = np.concatenate([np.zeros((1, blocks.shape[1]), np.int64), np.cumsum(blocks, axis=0)])
        is_used = by_row[bottoms // self.block_rows + 1] > by_row[tops // self.block_rows]  # (cell rows, columns)
        lefts = np.arange(blocks.shape[1]) * self.block_cols
        rights = np.minimum(lefts + self.block_cols, self.cols) - 1
        cells = rights // stride_px - lefts // stride_px + 1
        most = len(tops) * -(-self.cols // stride_px)
        return min(int((is_used @ cells).sum()), most)
