"""Stages that overlap: an iterator run in a thread of its own, one item ahead of whoever reads it."""

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
    """The work was stopped because somebody asked for it."""


class Stop:
    """Tells all stages of a run to end: because somebody cancelled it, or because its reader has gone."""

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled or threading.Event()
        self._is_left = threading.Event()

    def leave(self) -> None:
        """End the run without cancelling anything else that listens to the same event."""
        self._is_left.set()

    def is_cancelled(self) -> bool:
        """Whether somebody asked for the end; otherwise a stage has failed, and its error is on its way."""
        return self._cancelled.is_set()

    def is_set(self) -> bool:
        """Whether to end; asked often, by every stage."""
        return self._is_left.is_set() or self._cancelled.is_set()


@dataclass(frozen=True)
class _End:
    error: BaseException | None


def ahead(items: Generator[Item, None, None], stop: Stop) -> Generator[Item, None, None]:
    """The same items in the same order; an error of the thread is raised here.

    Leaving before the last item, for whatever reason, stops the whole run and waits for the thread.
    """
    handed: queue.Queue[Item | _End] = queue.Queue(maxsize=1)
    is_left = threading.Event()

    def hand(item: Item | _End) -> bool:
        while not is_left.is_set():
            try:
                handed.put(item, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        error = None
        try:
            for item in items:
                if not hand(item):
                    break
        except BaseException as raised:  # handed to the reader, whatever it is
            error = raised
        finally:
            items.close()  # here, so that files and pools are closed by the thread that opened them
        hand(_End(error))

    thread = threading.Thread(target=work, name="hyperscene-stage", daemon=True)
    thread.start()
    is_complete = False
    try:
        while not isinstance(item := handed.get(), _End):
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
    """Seconds that each stage was busy; stages overlap, so they add up to more than the whole."""

    seconds: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def stage(self, name: str, share: float = 1.0) -> Iterator[None]:
        """Count the time in this block; `share` 1/n where n threads do the stage's work at once."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, share * (time.perf_counter() - began))

    def add(self, name: str, seconds: float) -> None:
        """Count time that was measured elsewhere."""
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
