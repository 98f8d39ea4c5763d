"""The workers of a cluster as one engine: a classifier that sends them strips instead of calling an engine here."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import NotReady, write_error
from hyperscene.model.bundle import Bundle
from hyperscene.service.cluster.dispatch import ClusterRun, Dispatcher, Note
from hyperscene.service.cluster.tasks import EngineInfo, StripPrediction, StripRequest
from hyperscene.service.cluster.worker_pool import WorkerPool, adopt_logs
from hyperscene.service.cluster.worker_state import StripTask
from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.classify import (
    Classifier,
    Milestone,
    Pending,
    PendingBatchRow,
    RemoteEngine,
    Run,
    StripInput,
)
from hyperscene.service.mapping.engines import cores
from hyperscene.service.mapping.lattice import BatchRow, Plan
from hyperscene.service.mapping.prefetch import Cancelled
from hyperscene.service.settings import Settings

POLL_EVERY_S = 0.1


class Cluster:
    """A connection to a cluster, run by a separate thread; it serves one job at a time."""

    def __init__(self, settings: Settings) -> None:
        adopt_logs()
        self.memory_bytes = int(settings.cluster_memory_bytes)
        self._loop = asyncio.new_event_loop()
        self._pool = WorkerPool(settings)
        self._dispatcher = Dispatcher(self._pool, settings.stall_s)
        self._thread = threading.Thread(target=self._run_loop, name="hyperscene-cluster", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._dispatcher.watch())
        self._loop.close()

    def close(self) -> None:
        """Disconnect."""
        self._loop.call_soon_threadsafe(self._dispatcher.close)
        self._thread.join()

    @property
    def outage(self) -> str | None:
        """Why nothing can be computed right now."""
        return self._pool.outage

    def list_workers(self) -> list[dict[str, Any]]:
        """Every worker that the scheduler lists, by name, and why it is not used."""
        return self._pool.list_workers()

    def choose_engine(self, bundle: Bundle) -> EngineInfo | None:
        """The engine of the workers, once they have loaded the bundle; None until then."""
        self._loop.call_soon_threadsafe(self._pool.load_bundle, bundle)
        return None if self.outage else self._pool.choose_engine(bundle.sha256)

    def refusal(self, bundle: Bundle) -> str | None:
        """Why no worker can run this bundle, although some run others."""
        return self._pool.refusal(bundle.sha256)

    def engine(self, bundle: Bundle, note: Note, is_over: Callable[[], bool]) -> ClusterEngine:
        """An engine for one job; waits until there are workers."""
        while (found := self.choose_engine(bundle)) is None:
            if is_over():
                raise Cancelled
            if not self.outage and (reason := self.refusal(bundle)):
                raise NotReady(f"no worker of the cluster runs the bundle {bundle.manifest.name}: {reason}")
            time.sleep(POLL_EVERY_S)
        for reason in found.left_out:
            note(reason)
        return ClusterEngine(self, bundle, found, note)

    def begin(self, run: ClusterRun) -> None:
        """Accept tasks of this run."""
        self._loop.call_soon_threadsafe(self._dispatcher.begin, run)

    def submit(self, task: StripTask) -> Future[StripPrediction]:
        """Send a task to the next free worker."""
        self._loop.call_soon_threadsafe(self._dispatcher.enqueue, task)
        return task.prediction

    def end(self) -> None:
        """End the run; returns when none of its tasks is in flight."""
        ended = threading.Event()

        def end() -> None:
            self._dispatcher.end()
            ended.set()

        self._loop.call_soon_threadsafe(end)
        ended.wait()


class ClusterEngine(RemoteEngine):
    """The workers that run one kind of engine, for one job."""

    device = "cluster"

    def __init__(self, cluster: Cluster, bundle: Bundle, found: EngineInfo, note: Note) -> None:
        self._cluster = cluster
        self._bundle = bundle
        self._note = note
        self.provider, self.batch = found.provider, found.batch
        self.callers = cores()

    def classifier(self, run: Run) -> Classifier:
        """A classifier that sends a run's strips to the workers."""
        run_id = secrets.token_hex(8)
        self._cluster.begin(ClusterRun(run_id, self._bundle.sha256, self.provider, self._note, run.stop.is_set))
        return ClusterClassifier(self._cluster, run, run_id, self._bundle.sha256)


class ClusterClassifier(Classifier):
    """Sends each strip's pixels to a worker; the strips in flight are limited by the memory of their pixels."""

    def __init__(self, cluster: Cluster, run: Run, run_id: str, sha256: str) -> None:
        super().__init__(run)
        self._cluster = cluster
        self._run_id, self._sha256 = run_id, sha256
        self._bare_plan = replace(run.plan, strips=())  # workers need none, and there may be thousands
        self._receiver = ThreadPoolExecutor(1, "hyperscene-receiver")

    def _begin(self, strip_input: StripInput) -> list[PendingBatchRow]:
        expected: list[ExpectedRow] = []
        pending = []
        for batch_row in strip_input.batch_rows:
            row = self._place_patches(strip_input.pixels, batch_row)
            calls: list[tuple[int, Future[NDArray[np.float32]]]] = [(col, Future()) for col in row.batch_cols]
            batches = [(col, call, self._expect(row, col)) for col, call in calls]
            self._expect_row_end(row)
            pending.append(PendingBatchRow(row, calls))
            if not self._resolve_kept(row, batches):
                expected.append((row, batches))
        if expected:
            self._send(strip_input.pixels, expected)
        return pending

    def _resolve_kept(self, row: BatchRow, batches: ExpectedBatches) -> bool:
        """Resolve the calls of a batch row from the checkpoint; whether it holds all of them."""
        kept = [self._load(row, batch_col) for batch_col, _, _ in batches]
        if any(prediction is None for prediction in kept):
            return False
        for (_, call, milestone), prediction in zip(batches, kept, strict=True):
            assert prediction is not None
            call.set_result(prediction)
            self._progress.reach(milestone)
        return True

    def _send(self, pixels: PixelRows, expected: list[ExpectedRow]) -> None:
        batch_rows = [row.index for row, _ in expected]
        top, bottom = rows_of(self._plan, batch_rows)
        part = PixelRows(top, pixels.cube[top - pixels.top : bottom - pixels.top],
                      pixels.valid[top - pixels.top : bottom - pixels.top])  # fmt: skip
        request = StripRequest(self._run_id, self._sha256, self._bare_plan, batch_rows, part)
        first = batch_rows[0] * self._plan.batch_row_px
        last = min((batch_rows[-1] + 1) * self._plan.batch_row_px, self._plan.lattice.rows)
        call = self._cluster.submit(StripTask(request, range(first, last)))
        # In a separate thread: predictions are written to disk, which must not block the cluster's event loop.
        call.add_done_callback(lambda done: self._receiver.submit(self._receive, expected, done))

    def _receive(self, expected: list[ExpectedRow], done: Future[StripPrediction]) -> None:
        try:
            found = done.result()
            self._run.clock.add("network", found.seconds)
            for (row, batches), probabilities in zip(expected, found.probabilities, strict=True):
                for batch_col, call, milestone in batches:
                    cells = self._plan.batch_cells(batch_col)
                    prediction = probabilities[:, cells][row.has_patch[:, cells]]
                    if self._run.checkpoint is not None:
                        self._run.checkpoint.save_prediction(row.index, batch_col, prediction)
                    # Batch rows are sent far ahead of their results, so the job's position is the last result: it is
                    # in the checkpoint and never computed again.
                    self._run.report_in_flight([milestone.cells])
                    call.set_result(prediction)
                    self._progress.reach(milestone)
        except BaseException as error:
            reason = write_error(error) if isinstance(error, OSError) else error
            for call in (call for _, batches in expected for _, call, _ in batches if not call.done()):
                call.set_exception(reason)

    def _is_full(self, pending: Pending) -> bool:
        return sum(strip_input.pixels.cube.nbytes for strip_input, _ in pending) >= self._cluster.memory_bytes

    def _close(self) -> None:
        self._cluster.end()
        self._receiver.shutdown(wait=True)


ExpectedBatches = list[tuple[int, Future[NDArray[np.float32]], Milestone]]
ExpectedRow = tuple[BatchRow, ExpectedBatches]


def rows_of(plan: Plan, batch_rows: list[int]) -> tuple[int, int]:
    """The scene's rows that the patches of some batch rows cover."""
    top, bottom = plan.window_rows(batch_rows[0])[0], plan.window_rows(batch_rows[-1])[1]
    return max(0, top), min(plan.lattice.rows, bottom)
