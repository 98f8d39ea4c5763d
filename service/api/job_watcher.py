"""Waiting for jobs to change: one query of the store, ten times a second, for all waiting requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any, TypeVar

from hyperscene.service.jobs.records import JobRecord
from hyperscene.service.jobs.store import Store

POLL_S = 0.1
MAX_WAIT_S = 3600.0  # event loops have no infinite timers

Result = TypeVar("Result")


class ServerStopping(Exception):
    """The server is shutting down; the jobs continue after its next start."""


class JobWatcher:
    """Polls the store and wakes the requests that wait for a job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[asyncio.Future[None], tuple[str, int, bool]] = {}  # job id, version, wake only at its end
        self._has_waiters = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self.is_stopping = False

    def start(self) -> None:
        """Start polling."""
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._task = self._loop.create_task(self._poll_forever())

    def stop_soon(self) -> None:
        """Call `stop` from a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Stop polling; everything that waits raises ServerStopping."""
        self.is_stopping = True
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(ServerStopping())
        if self._task is not None:
            self._task.cancel()

    async def change(self, job: JobRecord, timeout_s: float, *, only_end: bool = False) -> JobRecord | None:
        """The job after its next change, or its end with `only_end`; unchanged after the timeout, None if removed."""
        if self.is_stopping:
            raise ServerStopping
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = (job.id, job.version, only_end)
        self._has_waiters.set()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiter, timeout_s)
        finally:
            self._waiters.pop(waiter, None)
        return await asyncio.to_thread(self._store.job, job.id)

    async def changes(self, job: JobRecord, keep_alive_s: float) -> AsyncIterator[JobRecord | None]:
        """The job after each change until it is finished; None after every `keep_alive_s` without a change."""
        while not job.is_finished:
            changed = await self.change(job, keep_alive_s)
            if changed is None:
                return
            yield None if changed.version == job.version else changed
            job = changed

    async def finished(self, job: JobRecord, timeout_s: float) -> JobRecord:
        """The job when it is finished, or as it is after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not job.is_finished and (left := deadline - time.monotonic()) > 0:
            changed = await self.change(job, min(left, MAX_WAIT_S), only_end=True)
            if changed is None:
                return job
            job = changed
        return job

    async def result_of(self, work: Future[Result], timeout_s: float | None = None) -> Result:
        """The result of a thread's work, awaited without blocking a thread.

        A cancelled request does not cancel the work, which other requests may share. TimeoutError after `timeout_s`;
        the work continues.
        """
        assert self._stopped is not None
        result = asyncio.wrap_future(work)
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # marks the exception as retrieved
        either: set[asyncio.Future[Any]] = {result, self._stopped}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if result.cancelled() or (self._stopped.done() and not result.done()):
            raise ServerStopping
        if not result.done():
            raise TimeoutError
        return result.result()

    async def _poll_forever(self) -> None:
        while True:
            if not self._waiters:
                self._has_waiters.clear()
                await self._has_waiters.wait()
            waiters = dict(self._waiters)
            with contextlib.suppress(Exception):  # for example a locked store: the next query may succeed
                found = await asyncio.to_thread(self._store.versions, {job_id for job_id, _, _ in waiters.values()})
                for waiter, (job_id, version, only_end) in waiters.items():
                    current, is_finished = found.get(job_id, (-1, True))
                    if (is_finished if only_end else current != version) and not waiter.done():
                        waiter.set_result(None)
            await asyncio.sleep(POLL_S)
