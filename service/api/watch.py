"""Watching jobs: one look at the store, a few times a second, for everybody who waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any, TypeVar

from service.jobs.records import JobRecord
from service.jobs.store import Store

LOOK_EVERY_S = 0.1
LONGEST_LOOK_S = 3600.0  # event loops know no endless timers

Answer = TypeVar("Answer")


class Stopping(Exception):
    """The server shuts down; what is watched goes on after its next start."""


class Watch:
    """Wakes those who wait for a job to change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[asyncio.Future[None], tuple[str, int, bool]] = {}  # job, version, whether its end counts
        self._someone_waits = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Future[None] | None = None
        self.is_stopping = False

    def start(self) -> None:
        """Begin to look."""
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        self._task = self._loop.create_task(self._look_forever())

    def stop_soon(self) -> None:
        """The same as `stop`, from a signal's handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Send everybody home."""
        self.is_stopping = True
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Stopping())
        if self._task is not None:
            self._task.cancel()

    async def change(self, job: JobRecord, within_s: float, *, only_end: bool = False) -> JobRecord | None:
        """The job as soon as it is another than this, or finished; the same after `within_s`, None where it is gone."""
        if self.is_stopping:
            raise Stopping
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = (job.id, job.version, only_end)
        self._someone_waits.set()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiter, within_s)
        finally:
            self._waiters.pop(waiter, None)
        return await asyncio.to_thread(self._store.job, job.id)

    async def changes(self, job: JobRecord, quiet_s: float) -> AsyncIterator[JobRecord | None]:
        """The job after every change until it is finished; None after so much quiet."""
        while not job.is_finished:
            changed = await self.change(job, quiet_s)
            if changed is None:
                return
            yield None if changed.version == job.version else changed
            job = changed

    async def finished(self, job: JobRecord, within_s: float) -> JobRecord:
        """The job when it is finished, or as it is after `within_s`."""
        deadline = time.monotonic() + within_s
        while not job.is_finished and (left := deadline - time.monotonic()) > 0:
            changed = await self.change(job, min(left, LONGEST_LOOK_S), only_end=True)
            if changed is None:
                return job
            job = changed
        return job

    async def answer(self, work: Future[Answer], within_s: float | None = None) -> Answer:
        """What a thread answers, without a thread that waits; whoever goes away leaves it to the others.

        TimeoutError after `within_s`: the work goes on.
        """
        assert self._end is not None
        answer = asyncio.wrap_future(work)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # is heard, even by nobody
        either: set[asyncio.Future[Any]] = {answer, self._end}
        await asyncio.wait(either, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if answer.cancelled() or (self._end.done() and not answer.done()):
            raise Stopping
        if not answer.done():
            raise TimeoutError
        return answer.result()

    async def _look_forever(self) -> None:
        while True:
            if not self._waiters:
                self._someone_waits.clear()
                await self._someone_waits.wait()
            waiters = dict(self._waiters)
            with contextlib.suppress(Exception):  # a locked store, say: the next look may get through
                found = await asyncio.to_thread(self._store.versions, {job_id for job_id, _, _ in waiters.values()})
                for waiter, (job_id, version, only_end) in waiters.items():
                    now, is_finished = found.get(job_id, (-1, True))
                    if (is_finished if only_end else now != version) and not waiter.done():
                        waiter.set_result(None)
            await asyncio.sleep(LOOK_EVERY_S)
