"""Asking the network: windows of pixels out of a block, a call for each tile, answers in the lattice's order."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.bundle import Manifest
from service.errors import InferenceFailed, ServiceError, unwritten
from service.mapping.ahead import Cancelled, StageClock, Stop
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
# What is being asked about, or was last: the lattice cells that lie before each tile; never by two threads at once.
Asking = Callable[[Collection[int]], None]


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
        self._expected: deque[Milestone] = deque()

    def expect(self, cells: int) -> Milestone:
        """One more milestone, after all others: so many cells lie behind us when it and they are reached."""
        milestone = Milestone(cells)
        with self._lock:
            self._expected.append(milestone)
        return milestone

    def reach(self, milestone: Milestone) -> None:
        """Report the last milestone before which none is missing."""
        with self._lock:
            milestone.is_reached = True
            cells = -1
            while self._expected and self._expected[0].is_reached:
                cells = self._expected.popleft().cells
            if cells >= 0:
                self._report(cells, self._total)


class _UnderWay:
    """Tells what is being asked about, or was asked last, whenever that changes."""

    def __init__(self, tell: Asking) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._cells: set[int] = set()

    @contextmanager
    def asking(self, cells: int) -> Iterator[None]:
        """While a tile is asked about, before which so many cells lie."""
        with self._lock:
            self._cells.add(cells)
            self._tell(self._cells)
        yield
        with self._lock:  # not where it was raised: then nothing was answered
            self._cells.remove(cells)
            if self._cells:
                self._tell(self._cells)


@dataclass
class Milestone:
    """A place that the network gets to."""

    cells: int
    is_reached: bool = False


@dataclass(frozen=True)
class Run:
    """The mapping of one scene, as everybody who takes part in it has to know it."""

    manifest: Manifest
    plan: Plan
    clock: StageClock
    report: Report
    stop: Stop
    checkpoint: Checkpoint | None = None
    asking: Asking = lambda _: None


Pending = deque[tuple[Block, list["PendingGroup"]]]


class Classifier(ABC):
    """Has blocks answered: the next ones are asked about before the oldest is awaited."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._manifest, self._plan = run.manifest, run.plan
        self._progress = _InOrder(run.report, run.plan.cells)

    def classify(self, blocks: Generator[Block, None, None]) -> Generator[AnsweredBlock, None, None]:
        """Answers, block after block."""
        pending: Pending = deque()
        try:
            for block in blocks:
                pending.append((block, self._begin(block)))
                while len(pending) > 1 and self._is_enough(pending):
                    yield self._finish(*pending.popleft())
            while pending:
                yield self._finish(*pending.popleft())
        finally:
            self._close()
            blocks.close()

    @abstractmethod
    def _begin(self, block: Block) -> list[PendingGroup]:
        """Ask about a block, without waiting for the answers."""

    @abstractmethod
    def _is_enough(self, pending: Pending) -> bool:
        """Whether the oldest block is awaited before another one is begun."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of everything, whether all blocks were answered or not."""

    def _asked(self, pixels: Pixels, group: int) -> AskedGroup:
        """Where a group's patches lie."""
        lattice, plan = self._plan.lattice, self._plan
        top = group * plan.group_px
        inside = pixels.valid[top - pixels.top : min(top + plan.group_px, lattice.rows) - pixels.top]
        centers, is_asked = lattice.place_centers(inside, top)
        if self._manifest.head == "token":  # every pixel answers for itself, so the centre may lie on missing data
            centers, _ = lattice.place_centers(np.ones_like(inside), top)
        tiles = [tile for tile in range(plan.tiles) if is_asked[:, plan.tile_cells(tile)].any()]
        return AskedGroup(group, centers, is_asked, tiles)

    def _expect(self, asked: AskedGroup, tile: int) -> Milestone:
        """Progress that is made when a tile is answered."""
        cells = self._plan.cells_before(asked.group) + self._plan.tile_cells(tile).start * len(asked.is_asked)
        return self._progress.expect(cells)

    def _expect_end(self, group: int) -> None:
        """Progress that is made when all of a group is answered."""
        self._progress.reach(self._progress.expect(self._plan.cells_before(group + 1)))

    def _load(self, asked: AskedGroup, tile: int) -> NDArray[np.float32] | None:
        """What an earlier run was told."""
        if self._run.checkpoint is None:
            return None
        patches = int(asked.is_asked[:, self._plan.tile_cells(tile)].sum())
        return self._run.checkpoint.load_answer(asked.group, tile, (patches, *self._answer_px, self._manifest.classes))

    @property
    def _answer_px(self) -> tuple[int, ...]:
        """The pixels that one answer speaks of, where it is more than its centre."""
        return (self._manifest.patch_px,) * 2 if self._manifest.head == "token" and self._plan.is_voting else ()

    def _finish(self, block: Block, groups: list[PendingGroup]) -> AnsweredBlock:
        return AnsweredBlock(block, [self._gather(group) for group in groups])

    def _gather(self, pending: PendingGroup) -> Answers:
        asked = pending.asked
        probabilities = np.zeros((*asked.is_asked.shape, *self._answer_px, self._manifest.classes), np.float32)
        for tile, call in pending.calls:
            cells = self._plan.tile_cells(tile)
            probabilities[:, cells][asked.is_asked[:, cells]] = call.result()
        return Answers(asked.group, asked.centers, asked.is_asked, probabilities)


class LocalClassifier(Classifier):
    """An engine of this process, and as many threads as it wants to be called from."""

    def __init__(self, engine: Engine, run: Run) -> None:
        super().__init__(run)
        self._engine = engine
        self._callers = ThreadPoolExecutor(engine.callers, "hyperscene-caller")
        self._under_way = _UnderWay(run.asking)

    def _begin(self, block: Block) -> list[PendingGroup]:
        return [self._begin_group(block.pixels, group) for group in block.groups]

    def _begin_group(self, pixels: Pixels, group: int) -> PendingGroup:
        asked = self._asked(pixels, group)
        calls = [
            (tile, self._callers.submit(self._ask, pixels, asked, tile, self._expect(asked, tile)))
            for tile in asked.tiles
        ]
        self._expect_end(group)
        return PendingGroup(asked, calls)

    def _is_enough(self, pending: Pending) -> bool:
        return True  # the next block's calls are queued before this one's are awaited

    def _close(self) -> None:
        self._callers.shutdown(wait=True, cancel_futures=True)

    def _ask(self, pixels: Pixels, asked: AskedGroup, tile: int, milestone: Milestone) -> NDArray[np.float32]:
        answer = self._answer(pixels, asked, tile, milestone.cells)
        self._progress.reach(milestone)
        return answer

    def _answer(self, pixels: Pixels, asked: AskedGroup, tile: int, place: int) -> NDArray[np.float32]:
        """From the checkpoint, where it was asked before, or from the network."""
        if self._run.stop.is_set():
            raise Cancelled
        try:
            answer = self._load(asked, tile)
            if answer is None:
                with self._under_way.asking(place):
                    answer = self._ask_network(pixels, asked, tile)
                    if self._run.checkpoint is not None:
                        self._run.checkpoint.save_answer(asked.group, tile, answer)
        except OSError as error:
            raise unwritten(error) from error
        return answer

    def _ask_network(self, pixels: Pixels, asked: AskedGroup, tile: int) -> NDArray[np.float32]:
        (top, bottom), (left, right) = self._plan.window_rows(asked.group), self._plan.window_cols(tile)
        window = cut_window(pixels, self._plan.lattice.rows, top, bottom, left, right)
        cells = self._plan.tile_cells(tile)
        centers = asked.centers[:, cells][asked.is_asked[:, cells]]
        # A constant number of centres: one shape for the engine, and the same sums whatever is missing.
        filled = np.concatenate([centers, np.repeat(centers[-1:], self._plan.patches_per_tile - len(centers), axis=0)])
        try:
            with self._run.clock.stage("network", 1 / self._engine.callers):
                answer = self._engine.probabilities(window, filled - np.array([top, left]))[: len(centers)]
        except ServiceError:
            raise
        except Exception as error:  # whatever an engine raises
            reason = str(error) or type(error).__name__  # as MemoryError, which says nothing
            raise InferenceFailed(f"{self._engine.provider} failed: {reason}; try another device") from error
        if not np.isfinite(answer).all():
            raise InferenceFailed(
                f"{self._engine.provider} gave probabilities that are no numbers: check the scene's values, "
                "or export the bundle anew"
            )
        if answer.ndim == 4 and not self._plan.is_voting:  # the centre's token answers for its own pixel
            half = self._manifest.patch_px // 2
            answer = answer[:, half, half].copy()
        return answer


class CrewLost(Exception):
    """Nobody is left who computes as the run began: it has to begin anew with others."""


class Crew(ABC):
    """Engines of other processes, that answer blocks together and all alike."""

    device: str
    provider: str
    callers: int  # threads of this process that the rest of the work may take
    batch: int

    @abstractmethod
    def classifier(self, run: Run) -> Classifier:
        """Whoever sends a run's blocks to them."""


@dataclass(frozen=True)
class AskedGroup:
    """A row of tiles: which of its cells the network is asked about."""

    group: int
    centers: NDArray[np.int64]  # (cell rows, cell cols, 2)
    is_asked: NDArray[np.bool_]  # (cell rows, cell cols)
    tiles: list[int]  # that have a cell that is asked about


@dataclass(frozen=True)
class PendingGroup:
    """A group whose answers are on their way."""

    asked: AskedGroup
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
