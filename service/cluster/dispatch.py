"""Sends a job's tasks to free workers, and sends them again when a worker fails, hangs or is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field

from hyperscene.errors import InferenceFailed, ServiceError, error_text, format_duration
from hyperscene.service.cluster.tasks import BundleMissing, Refusal, StripPrediction, stop_run
from hyperscene.service.cluster.worker_pool import SchedulerLost, WorkerPool, run_task
from hyperscene.service.cluster.worker_state import StripTask, WorkerState
from hyperscene.service.mapping.classify import WorkersLost
from hyperscene.service.mapping.prefetch import Cancelled

log = logging.getLogger("hyperscene.cluster")

REFRESH_EVERY_S = 0.3
POLL_EVERY_S = 0.1  # whether the job is over
TASKS_PER_WORKER = 2  # one is computed while the next is sent
MAX_FAILURES = 3  # of workers that had started a task
MAX_LOSSES = 10  # of workers that had a task, started or not
MAX_OWN_FAILURES = 3  # of one worker, at tasks that others completed
NO_MATCH_S = 60.0  # wait for a worker with the job's engine while there are only others

Note = Callable[[str], None]


@dataclass(frozen=True)
class ClusterRun:
    """One job's mapping on the cluster."""

    run_id: str
    sha256: str
    provider: str
    note: Note  # adds to the job's events
    is_over: Callable[[], bool]
    completed: Counter[str] = field(default_factory=Counter)  # strips by worker
    refused: set[str] = field(default_factory=set)  # names of workers whose refusal was noted


class Dispatcher:
    """Keeps a pool's workers busy; all methods run in one event loop."""

    def __init__(self, pool: WorkerPool, stall_s: float) -> None:
        self._pool = pool
        self._stall_s = stall_s
        self._run: ClusterRun | None = None
        self._waiting: deque[StripTask] = deque()
        self._lost: list[WorkerState] = []  # whose tasks are not sent again yet
        self._no_match_since: float | None = None  # no worker has the job's engine
        self._is_woken = asyncio.Event()  # something went wrong: refresh now
        self._is_closed = False
        self._background: set[asyncio.Task[None]] = set()

    def begin(self, run: ClusterRun) -> None:
        """Accept tasks of this run."""
        self._run, self._no_match_since = run, None

    def enqueue(self, task: StripTask) -> None:
        """Add a task of the current run."""
        if self._run is None:
            task.prediction.set_exception(Cancelled())
        else:
            self._waiting.append(task)
            self._fill()

    def end(self) -> None:
        """End the current run; its unfinished tasks are cancelled."""
        run, self._run = self._run, None
        if run is None:
            return
        workers = [worker for worker in (*self._pool.workers.values(), *self._lost) if worker.in_flight]
        unfinished = [*self._waiting, *(task for worker in workers for task in worker.in_flight)]
        self._waiting.clear()
        for worker in workers:
            worker.in_flight.clear()
        for task in unfinished:
            _stop_sending(task)
            task.prediction.set_exception(Cancelled())
        if workers:
            self._start(self._pool.broadcast(workers, stop_run, run.run_id))
        if run.completed:
            shares = ", ".join(f"{name} {count}" for name, count in sorted(run.completed.items()))
            run.note(f"strips by worker: {shares}")

    def close(self) -> None:
        """End the current run and the watch."""
        self.end()
        self._is_closed = True
        self._is_woken.set()

    async def watch(self) -> None:
        """Check the cluster until `close`, and handle what went wrong."""
        self._start(self._poll_run())
        while not self._is_closed:
            try:
                await self._refresh()
            except SchedulerLost as error:
                await self._handle_lost_scheduler(str(error))
            except Exception:
                log.exception("the cluster cannot be checked")
            try:
                await asyncio.wait_for(self._is_woken.wait(), REFRESH_EVERY_S)
            except TimeoutError:
                continue
            self._is_woken.clear()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._pool.disconnect()

    async def _poll_run(self) -> None:
        """End a run as soon as it is over, even while a refresh takes long."""
        while not self._is_closed:
            if self._run is not None and self._run.is_over():
                self.end()
            await asyncio.sleep(POLL_EVERY_S)

    async def _refresh(self) -> None:
        if not self._pool.is_connected:
            if self._pool.workers:
                raise SchedulerLost("the connection broke")
            if await self._pool.connect():
                self._note(f"connected to {self._pool.address}", logging.INFO)
        else:
            self._lost += await self._pool.refresh()
            while self._lost:
                await self._handle_lost_worker(self._lost[0])
                del self._lost[0]
            for worker in list(self._pool.workers.values()):
                await self._check_worker(worker)
        self._fill()
        self._restart_run_without_match()

    def _restart_run_without_match(self) -> None:
        """Restart a run whose kind of worker is gone for good: other engines may round differently."""
        run = self._run
        if run is None or not self._waiting or self._pool.outage or self._usable_workers():
            self._no_match_since = None
            return
        self._no_match_since = self._no_match_since or time.monotonic()
        if time.monotonic() - self._no_match_since > NO_MATCH_S:
            self._note(f"no worker is left that runs {run.provider}: the job restarts with the others")
            while self._waiting:
                self._waiting.popleft().prediction.set_exception(WorkersLost())

    async def _handle_lost_scheduler(self, reason: str) -> None:
        """Send everything in flight again once there is a scheduler; no task is blamed."""
        count = 0
        for worker in self._pool.workers.values():
            count += len(worker.in_flight)
            self._take_back(worker)
        self._note(f"the scheduler was lost ({reason}) with {count} strips in flight, which are sent again")
        await self._pool.disconnect()

    async def _handle_lost_worker(self, worker: WorkerState) -> None:
        if not worker.in_flight:
            return
        is_leaving = await self._pool.is_leaving(worker)
        what = "was stopped" if is_leaving else "was lost"
        self._note(f"worker {worker.name} {what} with {_list(worker.in_flight)} in flight, sent again")
        # The task that it started last may be another job's, or a finished one.
        started = None if is_leaving else await self._pool.last_started(worker)
        blamed = next((task for task in worker.in_flight if task.id == started), None)
        self._take_back(worker, blamed, f"worker {worker.name} was lost")

    async def _check_worker(self, worker: WorkerState) -> None:
        for task, error in [(task, task.error) for task in worker.in_flight if task.error is not None]:
            worker.in_flight.remove(task)
            self._fail_on(worker, task, error_text(error))
        if not self._is_stuck(worker):
            return
        started = await self._pool.last_started(worker)  # it may hang at another job's task
        if not self._is_stuck(worker):  # any more
            return
        blamed = next((task for task in worker.in_flight if task.id == started), None)
        silence = f"worker {worker.name} did not respond for {format_duration(self._stall_s)}"
        self._note(f"{silence} with {_list(worker.in_flight)} in flight, sent again; the worker is restarted")
        self._pool.ignore(worker)
        self._take_back(worker, blamed, silence)
        self._start(self._pool.restart(worker))

    def _is_stuck(self, worker: WorkerState) -> bool:
        started = worker.in_flight[0].started if worker.in_flight else None
        return started is not None and time.monotonic() - started > self._stall_s

    def _fail_on(self, worker: WorkerState, task: StripTask, reason: str, refusal: ServiceError | None = None) -> None:
        """Send a task that a living worker failed to others; what all or three of them refuse fails the job."""
        _mark_started(worker)
        task.failed_on.add(worker.address)
        others = [other for other in self._usable_workers() if other.address not in task.failed_on]
        if refusal is not None and (not others or len(task.failed_on) >= MAX_FAILURES):
            task.prediction.set_exception(refusal)
            return
        self._note(f"worker {worker.name} failed at {task}, sent again: {reason}")
        self._send_again(task, f"worker {worker.name} failed: {reason}")

    def _take_back(self, worker: WorkerState, blamed: StripTask | None = None, failure: str = "") -> None:
        """Send a worker's tasks to others; the failure counts against the task that it was computing."""
        for task in reversed([*worker.in_flight]):
            task.losses += bool(failure)
            self._send_again(task, failure if task is blamed else None)
        worker.in_flight.clear()

    def _send_again(self, task: StripTask, failure: str | None) -> None:
        _stop_sending(task)
        task.started = task.error = None
        if self._run is None or task.request.run_id != self._run.run_id:  # it ended meanwhile
            task.prediction.set_exception(Cancelled())
            return
        if failure is not None:
            task.failures.append(failure)
        if len(task.failures) < MAX_FAILURES and task.losses < MAX_LOSSES:
            self._waiting.appendleft(task)
            return
        count = len(task.failures) if len(task.failures) >= MAX_FAILURES else task.losses
        reasons = f" ({'; '.join(task.failures)})" if task.failures else ""
        task.prediction.set_exception(
            InferenceFailed(
                f"{task} of the scene ended {count} workers{reasons}: crop the scene there, or report the job's id"
            )
        )

    def _fill(self) -> None:
        """Send waiting tasks to workers that have room."""
        if self._run is None:
            return
        self._note_refusals(self._run)
        usable = self._usable_workers()
        for task in [*self._waiting]:
            free = [worker for worker in usable if len(worker.in_flight) < TASKS_PER_WORKER]
            if not free:
                return
            untried = [worker for worker in free if worker.address not in task.failed_on]
            if not untried and any(worker.address not in task.failed_on for worker in usable):
                continue  # a worker that has not tried it will be free
            worker = min(untried or free, key=lambda worker: len(worker.in_flight))
            self._waiting.remove(task)
            worker.in_flight.append(task)
            _mark_started(worker)
            task.sending = asyncio.create_task(self._send(worker, task))

    def _note_refusals(self, run: ClusterRun) -> None:
        for worker in self._pool.workers.values():
            refusal = worker.refusal(run.sha256, run.provider)
            if refusal and worker.name not in run.refused:
                run.refused.add(worker.name)
                self._note(f"worker {worker.name} is not used: {refusal}")

    def _usable_workers(self) -> list[WorkerState]:
        """Workers that the run's tasks may be sent to."""
        run = self._run
        if run is None:
            return []
        return [worker for worker in self._pool.workers.values() if worker.can_run(run.sha256, run.provider)]

    async def _send(self, worker: WorkerState, task: StripTask) -> None:
        run = self._run
        try:
            request = await self._pool.send(worker, task.request)
            found = await self._pool.call(worker, run_task, request, task.id)
        except Exception as error:  # of the worker, of the network, of Dask: the watch finds out which
            task.error = error
            self._is_woken.set()
            return
        if run is None or self._run is not run:
            return
        worker.in_flight.remove(task)
        _mark_started(worker)
        if isinstance(found, StripPrediction):
            run.completed[worker.name] += 1
            task.prediction.set_result(found)
            self._count_own_failures(task.failed_on)
        elif isinstance(found, BundleMissing):
            self._pool.forget_bundle(worker, run.sha256)
            self._send_again(task, None)
        elif isinstance(found, Refusal) and found.code == InferenceFailed.code:
            self._fail_on(worker, task, found.detail, found.error)
        else:
            task.prediction.set_exception(found.error if isinstance(found, Refusal) else TypeError(found))
        self._fill()

    def _count_own_failures(self, addresses: Iterable[str]) -> None:
        """Count a failure against workers that failed a task which another one has now completed."""
        for worker in [self._pool.workers[address] for address in addresses if address in self._pool.workers]:
            worker.own_failures += 1
            if worker.own_failures >= MAX_OWN_FAILURES:
                self._pool.exclude(
                    worker,
                    f"it failed at {worker.own_failures} strips that others completed: see its log, and restart it",
                )

    def _start(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _note(self, text: str, level: int = logging.WARNING) -> None:
        log.log(level, "%s", text)
        if self._run is not None:
            self._run.note(text)


def _mark_started(worker: WorkerState) -> None:
    """A worker computes the first of its tasks."""
    if worker.in_flight and worker.in_flight[0].started is None:
        worker.in_flight[0].started = time.monotonic()


def _stop_sending(task: StripTask) -> None:
    if task.sending is not None:
        task.sending.cancel()
        task.sending = None


def _list(tasks: Iterable[StripTask]) -> str:
    return " and ".join(map(str, tasks))
