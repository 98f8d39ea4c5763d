"""Blending: every patch votes on the pixels it covers, and a pixel's probabilities are its votes' weighted mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.lattice import BatchRow, Plan
from hyperscene.service.mapping.prefetch import Stop

Blend = Literal["angle", "linear", "none"]
BLENDS: tuple[Blend, ...] = get_args(Blend)

# Pixels are weighted in blocks of this side against all centres in reach: products large enough to be fast.
BLOCK_PX = 8
# Floats in an intermediate array, at most.
CHUNK_FLOATS = 2_000_000
# Below any weight of a vote; avoids 0 / 0 where there are no votes.
SMALLEST_WEIGHT = np.float32(1e-30)


@dataclass(frozen=True)
class Predictions:
    """The network's output for one batch row."""

    row: BatchRow
    # (cell rows, cell cols, classes), or (cell rows, cell cols, patch, patch, classes) of the head `token`
    probabilities: NDArray[np.float32]


class Blender:
    """Adds up votes, batch row by batch row, and returns rows of probabilities once all their votes are in.

    A pixel's votes are added in lattice order, whatever the strips: the result is the same to the byte.
    """

    def __init__(self, plan: Plan, blend: Blend, classes: int, top: int, stop: Stop | None = None) -> None:
        self._plan = plan
        self._blend = blend
        self._stop = stop or Stop()
        self._top = top  # the first row not returned yet
        self._total = np.zeros((0, plan.lattice.cols, classes), np.float32)
        self._weight = np.zeros((0, plan.lattice.cols), np.float32)

    def add(self, predictions: Predictions, spectra: Directions | None) -> None:
        """Add the votes of a batch row; for the blend `angle`, `spectra` are of the rows that its patches cover."""
        top, bottom = self._plan.window_rows(predictions.row.index)
        self._reserve(min(bottom, self._plan.lattice.rows))
        if not predictions.row.has_patch.any():
            return
        if self._blend == "none":
            self._add_centers(predictions)
        elif predictions.probabilities.ndim == 5:
            self._add_patches(predictions)
        else:
            # Blocks are counted from the batch row's first pixel row, so that their sums do not depend on the strip.
            for block_top in range(top, bottom, BLOCK_PX):
                if block_top + BLOCK_PX > self._top and block_top < self._plan.lattice.rows:
                    self._add_blocks(block_top, predictions, spectra)

    def take(self, bottom: int) -> NDArray[np.float32]:
        """Probabilities (rows, cols, classes) of the rows up to `bottom`; 0 where there are no votes."""
        self._reserve(bottom)
        count = bottom - self._top
        weight: NDArray[np.float32] = self._weight[:count, :, None]
        probabilities: NDArray[np.float32] = np.divide(self._total[:count], np.maximum(weight, SMALLEST_WEIGHT))
        self._total, self._weight, self._top = self._total[count:].copy(), self._weight[count:].copy(), bottom
        return probabilities

    def _reserve(self, bottom: int) -> None:
        missing = bottom - self._top - len(self._total)
        if missing > 0:
            self._total = np.concatenate([self._total, np.zeros((missing, *self._total.shape[1:]), np.float32)])
            self._weight = np.concatenate([self._weight, np.zeros((missing, self._weight.shape[1]), np.float32)])

    def _add_at(
        self,
        rows: NDArray[np.int64],
        cols: NDArray[np.int64],
        votes: NDArray[np.float32],
        weight: NDArray[np.float32],
    ) -> None:
        """Add weighted votes to distinct pixels; those outside the rows at hand are skipped."""
        bottom = self._top + len(self._total)  # no vote so far lies below
        is_inside = (rows >= self._top) & (rows < bottom) & (cols >= 0) & (cols < self._plan.lattice.cols)
        index = rows[is_inside] - self._top, cols[is_inside]
        self._total[index] += votes[is_inside]
        self._weight[index] += weight[is_inside]

    def _add_centers(self, predictions: Predictions) -> None:
        """One vote per pixel: that of the patch centred on it."""
        votes = predictions.probabilities[predictions.row.has_patch]
        rows, cols = predictions.row.centers[predictions.row.has_patch].T
        self._add_at(rows, cols, votes, np.ones(len(rows), np.float32))

    def _add_patches(self, predictions: Predictions) -> None:
        """Votes of the head `token`: one per pixel of a patch, weighted by the distance to the centre.

        A patch at a time, since its pixels are a rectangle: 3 times as fast as by the place in the patch.
        """
        half, cols = self._plan.lattice.half_px, self._plan.lattice.cols
        line = nearness(np.arange(-half, half), half)
        weight = np.outer(line, line)
        bottom = self._top + len(self._total)  # no vote so far lies below
        for cell in np.argwhere(predictions.row.has_patch):
            self._stop.raise_if_cancelled()
            row, col = (int(middle) - half for middle in predictions.row.centers[tuple(cell)])
            first, last, left, right = max(row, self._top), min(row + 2 * half, bottom), max(col, 0), col + 2 * half
            if first < last:
                inside = np.s_[first - row : last - row, left - col : min(right, cols) - col]
                place = np.s_[first - self._top : last - self._top, left:right]
                self._total[place] += predictions.probabilities[tuple(cell)][inside] * weight[inside][..., None]
                self._weight[place] += weight[inside]

    def _add_blocks(self, block_top: int, predictions: Predictions, spectra: Directions | None) -> None:
        """Add the votes on rows block_top .. block_top + BLOCK_PX, in all columns."""
        blocks = -(-self._plan.lattice.cols // BLOCK_PX)
        cells = _cells_in_reach(self._plan)
        centers = len(predictions.row.centers) * cells
        floats = centers * max(BLOCK_PX**2, 0 if spectra is None else spectra.unit.shape[-1])
        step = max(1, CHUNK_FLOATS // floats)
        for first in range(0, blocks, step):
            self._stop.raise_if_cancelled()
            self._add_some_blocks(block_top, np.arange(first, min(first + step, blocks)), predictions, spectra)

    def _add_some_blocks(
        self, block_top: int, blocks: NDArray[np.int64], predictions: Predictions, spectra: Directions | None
    ) -> None:
        lattice = self._plan.lattice
        rows = block_top + np.arange(BLOCK_PX)
        cols = blocks[:, None] * BLOCK_PX + np.arange(BLOCK_PX)  # (blocks, side)
        first_cell = (blocks * BLOCK_PX - lattice.half_px + 1) // lattice.stride_px
        cells = first_cell[:, None] + np.arange(_cells_in_reach(self._plan))  # (blocks, cells)
        is_cell = (cells >= 0) & (cells < lattice.cell_cols)
        near = np.clip(cells, 0, lattice.cell_cols - 1)
        # (blocks, cell rows, cells, ...); a block's centres keep the lattice's order
        centers = predictions.row.centers[:, near].swapaxes(0, 1)
        has_patch = predictions.row.has_patch[:, near].swapaxes(0, 1) & is_cell[:, None]
        votes = predictions.probabilities[:, near].swapaxes(0, 1)
        by_row = _reach(rows[None, :, None, None] - centers[:, None, :, :, 0], lattice.half_px)
        by_col = _reach(cols[:, :, None, None] - centers[:, None, :, :, 1], lattice.half_px)
        count, side, pairs = len(blocks), BLOCK_PX, centers.shape[1] * centers.shape[2]
        weight: NDArray[np.float32]
        weight = (by_row[:, :, None] * by_col[:, None] * has_patch[:, None, None]).reshape(count, side**2, pairs)
        if spectra is not None:
            cosine = spectra.cosines(rows, cols, centers.reshape(count, pairs, 2))
            weight *= likeness(cosine, lattice.stride_px)
        self._add_at(
            np.broadcast_to(rows[None, :, None], (count, side, side)).ravel(),
            np.broadcast_to(cols[:, None, :], (count, side, side)).ravel(),
            (weight @ votes.reshape(count, pairs, -1)).reshape(count * side**2, -1),
            weight.sum(axis=-1).ravel(),
        )


@dataclass(frozen=True)
class Directions:
    """Unit spectra of some rows of a scene, smoothed over the neighbours; 0 where there is no data."""

    top: int
    unit: NDArray[np.float32]  # (rows, cols, bands)

    @classmethod
    def of(cls, pixels: PixelRows, stop: Stop) -> Directions:
        """Directions of all pixels; the first and last row need a further row, unless the scene ends there."""
        rows = len(pixels.cube)
        smooth = np.empty_like(pixels.cube)
        above, own = np.zeros_like(smooth[0]), _unit(pixels.cube[0]) * pixels.valid[0, :, None]
        for row in range(rows):  # a row at a time stays in the cache
            stop.raise_if_cancelled()
            below = np.zeros_like(own)
            if row + 1 < rows:
                below = _unit(pixels.cube[row + 1]) * pixels.valid[row + 1, :, None]
            # The pixel's own spectrum counts half: a noisy pixel, or a furrow, should not stand out from its field.
            down = above + below
            down += own
            down += own
            across = down + down
            across[1:] += down[:-1]
            across[:-1] += down[1:]
            smooth[row] = _unit(across)
            above, own = own, below
        return cls(pixels.top, smooth)

    def cosines(
        self, rows: NDArray[np.int64], cols: NDArray[np.int64], centers: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Cosines (blocks, pixels, centres) of blocks of pixels, rows (side) x cols (blocks, side), with centres."""
        last_row, last_col = len(self.unit) - 1, self.unit.shape[1] - 1
        # Blocks may cross the scene's edge, and cells without data have no centre: those results are not used.
        block_rows = np.clip(rows - self.top, 0, last_row)[None, :, None]
        pixels = self.unit[block_rows, np.clip(cols, 0, last_col)[:, None, :]]  # (blocks, side, side, bands)
        middle = self.unit[np.clip(centers[..., 0] - self.top, 0, last_row), np.clip(centers[..., 1], 0, last_col)]
        # In float64: in float32 a cosine's last bit depends on the product's shape and moves a weight by 1e-5.
        pixels = pixels.reshape(len(cols), -1, pixels.shape[-1]).astype(np.float64)
        return pixels @ middle.astype(np.float64).swapaxes(1, 2)


def nearness(distance_px: NDArray[np.int64], half_px: int) -> NDArray[np.float32]:
    """1 at a patch's centre, falling linearly to just above 0 at its edge."""
    return (1 - np.abs(distance_px) / np.float32(half_px + 1)).astype(np.float32)


def likeness(cosine: NDArray[np.float64], stride_px: int) -> NDArray[np.float32]:
    """Weight of a vote by the spectral angle between pixel and centre: a Gaussian, never 0."""
    # Chosen for strides 4 and 8 on SalinasA and HyMap Berlin: narrower is worse than `linear`, wider gains less.
    sigma_rad = 0.04 + 0.01 * stride_px
    # 2 (1 - cos a) is the angle squared, for small angles.
    exponent = ((cosine - 1) / sigma_rad**2).astype(np.float32)
    weight: NDArray[np.float32] = np.exp(exponent) + np.float32(1e-6)
    return weight


def _reach(distance_px: NDArray[np.int64], half_px: int) -> NDArray[np.float32]:
    """Nearness inside a patch, 0 outside; a patch extends one pixel further up and left than down and right."""
    is_covered = (distance_px >= -half_px) & (distance_px < half_px)
    return np.where(is_covered, nearness(distance_px, half_px), np.float32(0))


def _cells_in_reach(plan: Plan) -> int:
    """Cells of a lattice row whose patches may cover a pixel of a block."""
    lattice = plan.lattice
    first, last = 1 - lattice.half_px, BLOCK_PX - 1 + lattice.half_px  # centres, from the block's first pixel
    return last // lattice.stride_px - first // lattice.stride_px + 1


def _unit(spectra: NDArray[np.float32]) -> NDArray[np.float32]:
    """Spectra (pixels, bands) scaled to length 1; zeros stay 0."""
    norm = np.sqrt(np.einsum("pb,pb->p", spectra, spectra))
    scaled: NDArray[np.float32] = spectra * (1 / np.maximum(norm, np.float32(1e-30)))[:, None]
    return scaled
