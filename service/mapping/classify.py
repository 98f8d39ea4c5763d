"""Classifying strips: cut a window of pixels for each batch of patches, run the network, collect the predictions."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import InferenceFailed, ServiceError, error_text, write_error
from hyperscene.model.bundle import Manifest
from hyperscene.service.mapping.band_view import PixelRows, PixelSource
from hyperscene.service.mapping.blend import Predictions
from hyperscene.service.mapping.engines import Engine
from hyperscene.service.mapping.lattice import BatchRow, Plan, Strip
from hyperscene.service.mapping.prefetch import Cancelled, StageClock, Stop
from hyperscene.service.mapping.strips import Checkpoint


@dataclass(frozen=True)
class StripInput:
    """A strip, its batch rows that are not classified yet, and the pixels needed to map it."""

    strip: Strip
    batch_rows: range
    pixels: PixelRows


@dataclass(frozen=True)
class StripPredictions:
    """A strip's input and the predictions of its batch rows."""

    input: StripInput
    predictions: list[Predictions]


@dataclass(frozen=True)
class MapProgress:
    """Progress of a map. Cells without data have no patch, which is known only once their pixels are read."""

    cells_done: int = 0
    cells_total: int = 0
    patches_done: int = 0  # by this run and earlier ones

    @property
    def patches_total(self) -> int:
        """Patches of the whole scene; too high until the last missing data is read."""
        return self.patches_done + self.cells_total - self.cells_done


Report = Callable[[MapProgress], None]  # calls never overlap
# Batches that are being classified, or were last, each by the number of lattice cells before it; all cells after the
# last one. Before a strip's first batch a negative number: BEFORE_STRIPS minus the strip's index. Calls never overlap.
ReportInFlight = Callable[[Collection[int]], None]
BEFORE_STRIPS = -2


def report_patches(report: Callable[[int, int], None]) -> Report:
    """A Report that passes on the patches done and their total."""
    return lambda now: report(now.patches_done, now.patches_total)


def read_strip_inputs(source: PixelSource, plan: Plan, strips: Iterable[Strip]) -> Iterator[StripInput]:
    """Inputs of consecutive strips; pixel rows and batch rows that two strips share are read and classified once."""
    held: PixelRows | None = None
    next_batch_row = 0
    for strip in strips:
        batch_rows = strip.batch_rows if held is None else range(next_batch_row, strip.batch_rows.stop)
        top, bottom = plan.rows_needed(strip, batch_rows)
        held = source.read(top, bottom) if held is None else _extend(held.since(top), source, bottom)
        next_batch_row = strip.batch_rows.stop
        yield StripInput(strip, batch_rows, held)


def _extend(held: PixelRows, source: PixelSource, bottom: int) -> PixelRows:
    if bottom <= held.bottom:
        return held
    return held.joined(source.read(held.bottom, bottom))


class _OrderedProgress:
    """Reports progress without gaps, whatever the order in which batches finish."""

    def __init__(self, report: Report, total: int) -> None:
        self._report = report
        self._total = total
        self._lock = threading.Lock()
        self._expected: deque[Milestone] = deque()

    def expect(self, cells: int, patches: int) -> Milestone:
        """Add a milestone after all others, with the cells and patches done when it and those before are reached."""
        milestone = Milestone(cells, patches)
        with self._lock:
            self._expected.append(milestone)
        return milestone

    def reach(self, milestone: Milestone) -> None:
        """Mark a milestone; report the last one before which none is missing."""
        with self._lock:
            milestone.is_reached = True
            last: Milestone | None = None
            while self._expected and self._expected[0].is_reached:
                last = self._expected.popleft()
            if last is not None:
                self._report(MapProgress(last.cells, self._total, last.patches))


@dataclass
class Milestone:
    """A step of the progress: lattice cells and patches done."""

    cells: int
    patches: int
    is_reached: bool = False


class _InFlightBatches:
    """Reports the batches in flight whenever they change; after the last one, it stays the one reported."""

    def __init__(self, report: ReportInFlight) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._cells: set[int] = set()

    @contextmanager
    def add(self, cells: int) -> Iterator[None]:
        """Count a batch as in flight inside the `with` block; `cells` is the number of cells before it."""
        with self._lock:
            self._cells.add(cells)
            self._report(self._cells)
        yield
        with self._lock:  # not after an error: a batch that failed stays in flight
            self._cells.remove(cells)
            if self._cells:
                self._report(self._cells)


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True)
class RunControl:
    """How the caller follows, cancels and resumes a run."""

    report: Report = _ignore
    cancelled: threading.Event = field(default_factory=threading.Event)
    checkpoint: Path | None = None  # folder of finished strips, from which a later run continues
    report_in_flight: ReportInFlight = _ignore


@dataclass(frozen=True)
class Run:
    """What all stages share while one scene is mapped."""

    manifest: Manifest
    plan: Plan
    clock: StageClock
    stop: Stop
    report: Report = _ignore
    report_in_flight: ReportInFlight = _ignore
    checkpoint: Checkpoint | None = None
    first_row: int = 0  # of the run's strips
    patches_before: int = 0  # in the batch rows that start above it


@dataclass(frozen=True)
class PendingBatchRow:
    """A batch row and its calls of the network, by batch column."""

    row: BatchRow
    calls: list[tuple[int, Future[NDArray[np.float32]]]]


Pending = deque[tuple[StripInput, list[PendingBatchRow]]]


class Classifier(ABC):
    """Classifies strips; calls for the next strips start before the oldest strip is complete."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._manifest, self._plan = run.manifest, run.plan
        self._progress = _OrderedProgress(run.report, run.plan.cells)
        self._patches = run.patches_before

    def classify(self, inputs: Generator[StripInput, None, None]) -> Generator[StripPredictions, None, None]:
        """Predictions, strip by strip."""
        pending: Pending = deque()
        try:
            for strip_input in inputs:
                pending.append((strip_input, self._begin(strip_input)))
                while len(pending) > 1 and self._is_full(pending):
                    yield self._finish(*pending.popleft())
            while pending:
                yield self._finish(*pending.popleft())
        finally:
            self._close()
            inputs.close()

    @abstractmethod
    def _begin(self, strip_input: StripInput) -> list[PendingBatchRow]:
        """Start the calls for a strip without waiting for their results."""

    @abstractmethod
    def _is_full(self, pending: Pending) -> bool:
        """Whether to wait for the oldest strip before another one is started."""

    @abstractmethod
    def _close(self) -> None:
        """Release all resources, whether or not all strips are classified."""

    def _place_patches(self, pixels: PixelRows, batch_row: int) -> BatchRow:
        lattice, plan = self._plan.lattice, self._plan
        top = batch_row * plan.batch_row_px
        valid = pixels.valid[top - pixels.top : min(top + plan.batch_row_px, lattice.rows) - pixels.top]
        centers, has_patch = lattice.place_centers(valid, top)
        if self._manifest.head == "token":  # every token predicts its own pixel, so the centre may miss data
            centers, _ = lattice.place_centers(np.ones_like(valid), top)
        batch_cols = [col for col in range(plan.batch_cols) if has_patch[:, plan.batch_cells(col)].any()]
        return BatchRow(batch_row, centers, has_patch, batch_cols)

    def _expect(self, row: BatchRow, batch_col: int) -> Milestone:
        """The milestone of a batch."""
        self._run.stop.raise_if_cancelled()  # a wide scene has thousands of batches in a row
        start = self._plan.batch_cells(batch_col).start
        cells = self._plan.cells_before(row.index) + start * len(row.has_patch)
        return self._progress.expect(cells, self._patches + self._count_patches(row, start))

    def _expect_row_end(self, row: BatchRow) -> None:
        """Count a whole batch row as done once all its batches are."""
        self._patches += self._count_patches(row, self._plan.lattice.cell_cols)
        self._progress.reach(self._progress.expect(self._plan.cells_before(row.index + 1), self._patches))

    def _count_patches(self, row: BatchRow, cell_cols: int) -> int:
        """Patches in a batch row's first columns of cells; none if an earlier run has counted the row."""
        is_counted = row.index * self._plan.batch_row_px < self._run.first_row
        return 0 if is_counted else int(row.patches_before[min(cell_cols, row.has_patch.shape[1])])

    def _load(self, row: BatchRow, batch_col: int) -> NDArray[np.float32] | None:
        """A batch's predictions from the checkpoint of an earlier run."""
        if self._run.checkpoint is None:
            return None
        patches = int(row.has_patch[:, self._plan.batch_cells(batch_col)].sum())
        shape = (patches, *self._predicted_px, self._manifest.classes)
        return self._run.checkpoint.load_prediction(row.index, batch_col, shape)

    @property
    def _predicted_px(self) -> tuple[int, ...]:
        """Pixels (rows, cols) that a patch predicts where they are more than its centre."""
        return (self._manifest.patch_px,) * 2 if self._manifest.head == "token" and self._plan.is_voting else ()

    def _finish(self, strip_input: StripInput, rows: list[PendingBatchRow]) -> StripPredictions:
        return StripPredictions(strip_input, [self._gather(row) for row in rows])

    def _gather(self, pending: PendingBatchRow) -> Predictions:
        row = pending.row
        probabilities = np.zeros((*row.has_patch.shape, *self._predicted_px, self._manifest.classes), np.float32)
        for batch_col, call in pending.calls:
            cells = self._plan.batch_cells(batch_col)
            probabilities[:, cells][row.has_patch[:, cells]] = call.result()
        return Predictions(row, probabilities)


class LocalClassifier(Classifier):
    """Classifies with an engine of this process, called from as many threads as the engine needs."""

    def __init__(self, engine: Engine, run: Run) -> None:
        super().__init__(run)
        self._engine = engine
        self._callers = ThreadPoolExecutor(engine.callers, "hyperscene-caller")
        self._in_flight = _InFlightBatches(run.report_in_flight)

    def _begin(self, strip_input: StripInput) -> list[PendingBatchRow]:
        return [self._begin_row(strip_input.pixels, batch_row) for batch_row in strip_input.batch_rows]

    def _begin_row(self, pixels: PixelRows, batch_row: int) -> PendingBatchRow:
        row = self._place_patches(pixels, batch_row)
        submit = self._callers.submit
        calls = [
            (col, submit(self._classify_batch, pixels, row, col, self._expect(row, col))) for col in row.batch_cols
        ]
        self._expect_row_end(row)
        return PendingBatchRow(row, calls)

    def _is_full(self, pending: Pending) -> bool:
        return True  # the next strip's calls are queued before this one's results are awaited

    def _close(self) -> None:
        self._callers.shutdown(wait=True, cancel_futures=True)

    def _classify_batch(
        self, pixels: PixelRows, row: BatchRow, batch_col: int, milestone: Milestone
    ) -> NDArray[np.float32]:
        """A batch's predictions, from the checkpoint if it holds them."""
        if self._run.stop.is_set():
            raise Cancelled
        try:
            prediction = self._load(row, batch_col)
            if prediction is None:
                with self._in_flight.add(milestone.cells):
                    prediction = self._run_network(pixels, row, batch_col)
                    if self._run.checkpoint is not None:
                        self._run.checkpoint.save_prediction(row.index, batch_col, prediction)
        except OSError as error:
            raise write_error(error) from error
        self._progress.reach(milestone)
        return prediction

    def _run_network(self, pixels: PixelRows, row: BatchRow, batch_col: int) -> NDArray[np.float32]:
        (top, bottom), (left, right) = self._plan.window_rows(row.index), self._plan.window_cols(batch_col)
        window = cut_window(pixels, self._plan.lattice.rows, top, bottom, left, right)
        cells = self._plan.batch_cells(batch_col)
        centers = row.centers[:, cells][row.has_patch[:, cells]]
        # Padded to a constant number of centres: one shape for the engine, and the same sums whatever is missing.
        padded = np.concatenate([centers, np.repeat(centers[-1:], self._plan.batch_size - len(centers), axis=0)])
        try:
            with self._run.clock.stage("network", 1 / self._engine.callers):
                prediction = self._engine.probabilities(window, padded - np.array([top, left]))[: len(centers)]
        except ServiceError:
            raise
        except Exception as error:  # engines have their own error classes
            raise InferenceFailed(f"{self._engine.provider} failed: {error_text(error)}; try another device") from error
        if not np.isfinite(prediction).all():
            raise InferenceFailed(
                f"{self._engine.provider} returned probabilities that are NaN or infinite: check the scene's values, "
                "or export the bundle again"
            )
        if prediction.ndim == 4 and not self._plan.is_voting:  # of all tokens, only the centre's is used
            half = self._manifest.patch_px // 2
            prediction = prediction[:, half, half].copy()
        return prediction


class WorkersLost(Exception):
    """No worker is left of the kind that the run started with: it has to start again with others."""


class RemoteEngine(ABC):
    """Engines of other processes that share the batches of a run and compute alike."""

    device: str
    provider: str
    callers: int  # threads of this process that the other stages may use
    batch: int

    @abstractmethod
    def classifier(self, run: Run) -> Classifier:
        """A classifier that sends the run's batches to these engines."""


def cut_window(pixels: PixelRows, scene_rows: int, top: int, bottom: int, left: int, right: int) -> NDArray[np.float32]:
    """Pixels top..bottom, left..right; outside the scene they are reflected, as in training."""
    cols = pixels.cube.shape[1]
    if top >= pixels.top and bottom <= pixels.bottom and left >= 0 and right <= cols:
        return np.ascontiguousarray(pixels.cube[top - pixels.top : bottom - pixels.top, left:right])
    rows = _reflected(top, bottom, scene_rows)
    # The lattice's last cells may lie outside the scene; no patch reads their rows, so any row will do.
    rows = np.clip(rows, pixels.top, pixels.bottom - 1) - pixels.top
    return pixels.cube[rows[:, None], _reflected(left, right, cols)[None, :]]


def _reflected(start: int, stop: int, size: int) -> NDArray[np.int64]:
    """Indices start..stop folded into 0..size-1 without repeating the edge."""
    period = max(2 * (size - 1), 1)
    folded = np.arange(start, stop) % period
    return np.minimum(folded, period - folded)
