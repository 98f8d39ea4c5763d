"""The lattice of patch centres, and the plan that cuts the work into strips, groups and tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lattice:
    """Cells of `stride_px` x `stride_px` pixels over a scene; each cell with something to map has one patch centre."""

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

    def place_centers(self, may_hold: NDArray[np.bool_], top: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Centres (cell rows, cell cols, 2), and which cells have one, for pixel rows that begin at `top`.

        A centre lies in the middle of its cell, or on the nearest of its pixels that may hold one: at the scene's edge
        it is pulled inside, and beside missing data it moves onto data.
        """
        stride = self.stride_px
        rows = -(-len(may_hold) // stride) * stride
        padded = np.zeros((rows, self.cell_cols * stride), bool)
        padded[: len(may_hold), : self.cols] = may_hold
        cells = padded.reshape(rows // stride, stride, self.cell_cols, stride).swapaxes(1, 2)
        offsets = np.argwhere(np.ones((stride, stride), bool))
        nearest_first = offsets[np.argsort(((offsets - stride // 2) ** 2).sum(axis=1), kind="stable")]
        ordered = cells[:, :, nearest_first[:, 0], nearest_first[:, 1]]  # (cell rows, cell cols, stride ** 2)
        corners = np.moveaxis(np.indices(cells.shape[:2]), 0, -1) * stride + np.array([top, 0])
        centers: NDArray[np.int64] = corners + nearest_first[ordered.argmax(axis=-1)]
        has_center: NDArray[np.bool_] = np.asarray(ordered.any(axis=-1))
        return centers, has_center


@dataclass(frozen=True)
class Strip:
    """Rows top..bottom of the map: the unit of reading, writing, checkpoint and distribution."""

    index: int
    top: int
    bottom: int
    groups: range  # of which patches vote on its rows


@dataclass(frozen=True)
class Plan:
    """Everything that will be asked of the network, before anything is read.

    The lattice is cut into tiles of `tile_rows` x `tile_cols` cells, counted from the scene's corner; a tile's centres
    share one window of pixels and one call. A row of tiles is a group. Tiles do not depend on strips, so neither does
    any answer.
    """

    lattice: Lattice
    tile_rows: int
    tile_cols: int
    is_voting: bool  # patches vote on every pixel they cover; otherwise each answers for its own centre alone
    strips: tuple[Strip, ...]

    @property
    def groups(self) -> int:
        return -(-self.lattice.cell_rows // self.tile_rows)

    @property
    def tiles(self) -> int:
        """Tiles in a group."""
        return -(-self.lattice.cell_cols // self.tile_cols)

    @property
    def patches_per_tile(self) -> int:
        return self.tile_rows * self.tile_cols

    @property
    def group_px(self) -> int:
        return self.tile_rows * self.lattice.stride_px

    @property
    def cells(self) -> int:
        return self.lattice.cell_rows * self.lattice.cell_cols

    def cells_before(self, group: int) -> int:
        """Cells of the lattice that lie above a group."""
        return min(group * self.tile_rows, self.lattice.cell_rows) * self.lattice.cell_cols

    def tile_cells(self, tile: int) -> slice:
        """A tile's columns of cells; the last tile of a group may reach over the lattice's edge."""
        return slice(tile * self.tile_cols, (tile + 1) * self.tile_cols)

    def window_rows(self, group: int) -> tuple[int, int]:
        """Pixel rows, maybe outside of the scene, that a group's patches cover."""
        top = group * self.group_px
        return top - self.lattice.half_px, top + self.group_px + self.lattice.half_px - 1

    def window_cols(self, tile: int) -> tuple[int, int]:
        """Pixel columns, maybe outside of the scene, that a tile's patches cover."""
        left = tile * self.tile_cols * self.lattice.stride_px
        right = left + self.tile_cols * self.lattice.stride_px
        return left - self.lattice.half_px, right + self.lattice.half_px - 1

    def rows_needed(self, strip: Strip, groups: range) -> tuple[int, int]:
        """Pixel rows that have to be at hand to classify `groups` and map the strip, with one more on either side.

        Where the strip has no group of its own, `groups` is empty and starts at the next one, whose rows are kept.
        """
        top = min(strip.top, self.window_rows(groups.start)[0])
        bottom = max(strip.bottom, self.window_rows(groups[-1])[1]) if groups else strip.bottom
        return max(0, top - 1), min(self.lattice.rows, bottom + 1)


def plan_mapping(lattice: Lattice, *, is_voting: bool, batch: int, strip_px: int) -> Plan:
    """Cut the scene into strips that can be classified in any order, anywhere."""
    tile_rows = max(1, int(batch**0.5))
    tile_cols = max(1, batch // tile_rows)
    reach_px = lattice.half_px if is_voting else 0
    group_px = tile_rows * lattice.stride_px

    def groups_of(top: int, bottom: int) -> range:
        # A patch covers its centre's row - half .. + half - 1: rows from top see centres from top - half + 1.
        first = max(0, top - reach_px + (reach_px > 0))
        last = min(lattice.rows - 1, bottom - 1 + reach_px)
        return range(first // group_px, last // group_px + 1)

    tops = range(0, lattice.rows, strip_px)
    strips = tuple(
        Strip(index, top, min(top + strip_px, lattice.rows), groups_of(top, min(top + strip_px, lattice.rows)))
        for index, top in enumerate(tops)
    )
    return Plan(lattice, tile_rows, tile_cols, is_voting, strips)
