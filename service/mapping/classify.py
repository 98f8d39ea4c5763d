"""Asking the network: windows of pixels out of a block, a call for each tile, answers in the lattice's order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.bundle import Manifest
from service.errors import InferenceFailed, ServiceError, unwritten
from service.mapping.ahead import StageClock, Stop
from service.mapping.blend import Answers
from service.mapping.engines import Engine
from service.mapping.lattice import Plan, Strip
from service.mapping.strips import Checkpoint
from service.mapping.view import Pixels, PixelSource


@dataclass(frozen=True)
class Block:
    """What one strip needs to be mapped: its groups that were not classified before, and their pixels."""

    strip: Strip
    groups: range
    pixels: Pixels


@dataclass(frozen=True)
class AnsweredBlock:
    """A block and what the network said about it."""

    block: Block
    answers: list[Answers]


Report = Callable[[int, int], None]  # lattice cells behind us, of how many; never by two threads at once


class Cancelled(Exception):
    """The work was stopped because somebody asked for it."""


def read_blocks(source: PixelSource, plan: Plan, strips: Iterable[Strip]) -> Iterator[Block]:
    """Blocks for consecutive strips; rows and groups that two strips need are read and classified once."""
    held: Pixels | None = None
    next_group = 0
    for strip in strips:
        groups = strip.groups if held is None else range(next_group, strip.groups.stop)
        top, bottom = plan.rows_needed(strip, groups)
        held = source.read(top, bottom) if held is None else _extend(held.since(top), source, bottom)
        next_group = strip.groups.stop
        yield Block(strip, groups, held)


def _extend(held: Pixels, source: PixelSource, bottom: int) -> Pixels:
    if bottom <= held.bottom:
        return held
    fresh = source.read(held.bottom, bottom)
    return Pixels(held.top, np.concatenate([held.cube, fresh.cube]), np.concatenate([held.valid, fresh.valid]))


class _InOrder:
    """Reports how far the network is without a gap, whatever order its answers come in."""

    def __init__(self, report: Report, total: int) -> None:
        self._report = report
        self._total = total
        self._lock = threading.Lock()
        self._expected: deque[_Milestone] = deque()

    def expect(self, cells: int) -> _Milestone:
        """One more milestone, after all others: so many cells lie behind us when it and they are reached."""
        milestone = _Milestone(cells)
        with self._lock:
            self._expected.append(milestone)
        return milestone

    def reach(self, milestone: _Milestone) -> None:
        """Report the last milestone before which none is missing."""
        with self._lock:
            milestone.is_reached = True
            cells = -1
            while self._expected and self._expected[0].is_reached:
                cells = self._expected.popleft().cells
            if cells >= 0:
                self._report(cells, self._total)


@dataclass
class _Milestone:
    cells: int
    is_reached: bool = False


class Classifier:
    """A bundle's engine and as many threads as it wants to be called from."""

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        plan: Plan,
        clock: StageClock,
        report: Report,
        stop: Stop,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._engine = engine
        self._manifest = manifest
        self._plan = plan
        self._clock = clock
        self._progress = _InOrder(report, plan.cells)
        self._stop = stop
        self._checkpoint = checkpoint

    def classify(self, blocks: Generator[Block, None, None]) -> Generator[AnsweredBlock, None, None]:
        """Answers, block after block; the next block's calls are queued before this one's are awaited."""
        with ThreadPoolExecutor(self._engine.callers, "hyperscene-caller") as callers:
            pending: deque[tuple[Block, list[_PendingGroup]]] = deque()
            try:
                for block in blocks:
                    pending.append((block, [self._begin(callers, block.pixels, group) for group in block.groups]))
                    if len(pending) > 1:
                        yield self._finish(*pending.popleft())
                while pending:
                    yield self._finish(*pending.popleft())
            finally:
                callers.shutdown(wait=True, cancel_futures=True)
                blocks.close()

    def _begin(self, callers: ThreadPoolExecutor, pixels: Pixels, group: int) -> _PendingGroup:
        lattice, plan = self._plan.lattice, self._plan
        top = group * plan.group_px
        inside = pixels.valid[top - pixels.top : min(top + plan.group_px, lattice.rows) - pixels.top]
        centers, is_asked = lattice.place_centers(inside, top)
        if self._manifest.head == "token":  # every pixel answers for itself, so the centre may lie on missing data
            centers, _ = lattice.place_centers(np.ones_like(inside), top)
        calls = []
        for tile in range(plan.tiles):
            cells = slice(tile * plan.tile_cols, (tile + 1) * plan.tile_cols)
            asked = is_asked[:, cells]
            if asked.any():
                tile_centers = centers[:, cells][asked]
                milestone = self._progress.expect(plan.cells_before(group) + cells.start * len(is_asked))
                calls.append((tile, callers.submit(self._ask, pixels, group, tile, tile_centers, milestone)))
        self._progress.reach(self._progress.expect(plan.cells_before(group + 1)))
        return _PendingGroup(group, centers, is_asked, calls)

    def _ask(
        self, pixels: Pixels, group: int, tile: int, centers: NDArray[np.int64], milestone: _Milestone
    ) -> NDArray[np.float32]:
        answer = self._answer(pixels, group, tile, centers)
        self._progress.reach(milestone)
        return answer

    def _answer(self, pixels: Pixels, group: int, tile: int, centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """From the checkpoint, where it was asked before, or from the network."""
        if self._stop.is_set():
            raise Cancelled
        if self._checkpoint is None:
            return self._run(pixels, group, tile, centers)
        shape = (len(centers), *self._answer_px, self._manifest.classes)
        try:
            kept = self._checkpoint.load_answer(group, tile, shape)
            if kept is None:
                kept = self._run(pixels, group, tile, centers)
                self._checkpoint.save_answer(group, tile, kept)
        except OSError as error:
            raise unwritten(error) from error
        return kept

    @property
    def _answer_px(self) -> tuple[int, ...]:
        """The pixels that one answer speaks of, where it is more than its centre."""
        return (self._manifest.patch_px,) * 2 if self._manifest.head == "token" and self._plan.is_voting else ()

    def _run(self, pixels: Pixels, group: int, tile: int, centers: NDArray[np.int64]) -> NDArray[np.float32]:
        (top, bottom), (left, right) = self._plan.window_rows(group), self._plan.window_cols(tile)
        window = cut_window(pixels, self._plan.lattice.rows, top, bottom, left, right)
        # A constant number of centres: one shape for the engine, and the same sums whatever is missing.
        filled = np.concatenate([centers, np.repeat(centers[-1:], self._plan.patches_per_tile - len(centers), axis=0)])
        try:
            with self._clock.stage("network", 1 / self._engine.callers):
                answer = self._engine.probabilities(window, filled - np.array([top, left]))[: len(centers)]
        except ServiceError:
            raise
        except Exception as error:  # whatever an engine raises
            raise InferenceFailed(f"{self._engine.provider} failed: {error}; try another device") from error
        if not np.isfinite(answer).all():
            raise InferenceFailed(
                f"{self._engine.provider} gave probabilities that are no numbers: check the scene's values, "
                "or export the bundle anew"
            )
        if answer.ndim == 4 and not self._plan.is_voting:  # the centre's token answers for its own pixel
            half = self._manifest.patch_px // 2
            answer = answer[:, half, half].copy()
        return answer

    def _finish(self, block: Block, groups: list[_PendingGroup]) -> AnsweredBlock:
        return AnsweredBlock(block, [self._gather(group) for group in groups])

    def _gather(self, pending: _PendingGroup) -> Answers:
        plan, manifest = self._plan, self._manifest
        shape = (*pending.is_asked.shape, *self._answer_px, manifest.classes)
        probabilities = np.zeros(shape, np.float32)
        for tile, call in pending.calls:
            cells = slice(tile * plan.tile_cols, (tile + 1) * plan.tile_cols)
            probabilities[:, cells][pending.is_asked[:, cells]] = call.result()
        return Answers(pending.group, pending.centers, pending.is_asked, probabilities)


@dataclass(frozen=True)
class _PendingGroup:
    group: int
    centers: NDArray[np.int64]
    is_asked: NDArray[np.bool_]
    calls: list[tuple[int, Future[NDArray[np.float32]]]]


def cut_window(pixels: Pixels, scene_rows: int, top: int, bottom: int, left: int, right: int) -> NDArray[np.float32]:
    """Pixels top..bottom, left..right; what lies outside of the scene is its reflection, as in training."""
    cols = pixels.cube.shape[1]
    if top >= pixels.top and bottom <= pixels.bottom and left >= 0 and right <= cols:
        return np.ascontiguousarray(pixels.cube[top - pixels.top : bottom - pixels.top, left:right])
    rows = _reflected(top, bottom, scene_rows)
    # Rows that no patch reads may be missing from the block (the lattice's last cells lie outside): any will do.
    rows = np.clip(rows, pixels.top, pixels.bottom - 1) - pixels.top
    return pixels.cube[rows[:, None], _reflected(left, right, cols)[None, :]]


def _reflected(start: int, stop: int, size: int) -> NDArray[np.int64]:
    """Places start..stop folded into 0..size-1 without repeating the edge."""
    period = max(2 * (size - 1), 1)
    folded = np.arange(start, stop) % period
    return np.minimum(folded, period - folded)
