"""Threads with a bounded queue; requests that were cancelled leave it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from hyperscene.errors import NotReady

Result = TypeVar("Result")


class BoundedPool:
    """A thread pool that refuses calls while `limit` of them are waiting or running."""

    def __init__(self, threads: int, limit: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, f"hyperscene-{name}")
        self._limit = limit
        self._lock = threading.Lock()
        self._count = 0  # waiting or running

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """The call's future; a caller that does not wait for it any more cancels it."""
        with self._lock:
            if self._count >= self._limit:
                full = NotReady(f"{self._count} other requests are waiting: try again in 1 s")
                full.headers = {"Retry-After": "1"}
                raise full
            self._count += 1
        try:
            future = self._threads.submit(function, *arguments)
        except RuntimeError:  # the pool is closed
            self._finish()
            raise NotReady("the server is shutting down: try again when it is back") from None
        future.add_done_callback(self._finish)
        return future

    def close(self) -> None:
        """Cancel what is waiting and refuse new calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _finish(self, _: object = None) -> None:
        with self._lock:
            self._count -= 1
