"""Threads that read for callers: a few, with a bounded queue, which whoever goes away leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from service.errors import NotReady

Answer = TypeVar("Answer")


class Readers:
    """A pool of threads with so many questions at most, waiting or under way."""

    def __init__(self, threads: int, most: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, f"hyperscene-{name}")
        self._most = most
        self._lock = threading.Lock()
        self._asked = 0

    def ask(self, work: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        """The answer when it is there; to be cancelled by who does not wait for it any more."""
        with self._lock:
            if self._asked >= self._most:
                full = NotReady(f"{self._asked} others are being answered: try again in 1 s")
                full.headers = {"Retry-After": "1"}
                raise full
            self._asked += 1
        try:
            future = self._threads.submit(work, *arguments)
        except RuntimeError:  # after the end
            self._is_answered()
            raise NotReady("the server shuts down: ask again when it is back") from None
        future.add_done_callback(self._is_answered)
        return future

    def close(self) -> None:
        """Nothing more is read."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_answered(self, _: object = None) -> None:
        with self._lock:
            self._asked -= 1
