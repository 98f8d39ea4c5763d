"""Overlapping stages: an iterator runs in its own thread, one item ahead of its reader."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")

POLL_S = 0.05


class Cancelled(Exception):
    """The work was cancelled by the user."""


class Stop:
    """Tells all stages of a run to end: it was cancelled, or its reader has stopped."""

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled or threading.Event()
        self._is_left = threading.Event()

    def leave(self) -> None:
        """End this run only; other users of the same event continue."""
        self._is_left.set()

    def is_cancelled(self) -> bool:
        """Whether the run was cancelled; otherwise a stage has failed and its error follows."""
        return self._cancelled.is_set()

    def raise_if_cancelled(self) -> None:
        """Called in loops that may take longer than a user should wait."""
        if self._cancelled.is_set():
            raise Cancelled

    def is_set(self) -> bool:
        """Whether to end; every stage checks it often."""
        return self._is_left.is_set() or self._cancelled.is_set()


@dataclass(frozen=True)
class _End:
    error: BaseException | None


def prefetch(items: Generator[Item, None, None], stop: Stop) -> Generator[Item, None, None]:
    """The same items in the same order; an error of the thread is raised here.

    Closing it before the last item stops the whole run and waits for the thread.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(maxsize=1)
    is_left = threading.Event()

    def put(item: Item | _End) -> bool:
        while not is_left.is_set():
            try:
                ready.put(item, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        error = None
        try:
            for item in items:
                if not put(item):
                    break
        except BaseException as raised:  # passed on to the reader
            error = raised
        finally:
            items.close()  # here, so that files and pools are closed by the thread that opened them
        put(_End(error))

    thread = threading.Thread(target=work, name="hyperscene-stage", daemon=True)
    thread.start()
    is_complete = False
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        is_complete = item.error is None
        if item.error is not None:
            raise item.error
    finally:
        if not is_complete:
            stop.leave()
        is_left.set()
        thread.join()


@dataclass
class StageClock:
    """Seconds that each stage was busy; stages overlap, so their sum exceeds the total."""

    seconds: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def stage(self, name: str, share: float = 1.0) -> Iterator[None]:
        """Count the time of the `with` block; `share` is 1/n if n threads work on the stage at once."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, share * (time.perf_counter() - began))

    def add(self, name: str, seconds: float) -> None:
        """Add time that was measured elsewhere."""
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
