"""Progress of long work: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import TracebackType

from tqdm import tqdm

LINE_EVERY_S = 10.0


class ProgressBar:
    """Counts steps; the terminal's bar also shows time left."""

    def __init__(self, total: int, what: str) -> None:
        self._total = total
        self._what = what
        self._done = 0
        self._first: int | None = None  # steps of an earlier run: they do not count for the speed
        self._began = self._said = time.monotonic()
        self._bar: tqdm | None = None
        self._can_write = sys.stderr is not None

    def begin_at(self, done: int, note: str = "") -> None:
        """Show the bar before the first step of this run; an earlier run did `done` steps."""
        self._first = done
        self._began = time.monotonic()
        self._move_to(done, note)

    def advance_to(self, done: int, note: str = "") -> None:
        """Show that `done` steps of the total are done."""
        if self._first is None:
            self._first = max(done - 1, 0)
        self._move_to(done, note)

    def _move_to(self, done: int, note: str) -> None:
        try:
            if self._can_write:
                self._show(done, note)
        except OSError:  # the terminal is gone; the work goes on
            self._can_write = False
        self._done = done

    def _show(self, done: int, note: str) -> None:
        if self._bar is None and sys.stderr.isatty():
            self._bar = self._open_bar()
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            if done > self._bar.n:  # tqdm would count a note as a step without progress
                self._bar.update(done - self._bar.n)
            self._bar.refresh()
        elif (done == self._total and done != self._first) or time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            line = " ".join(filter(None, (f"{self._what} {done}/{self._total}", note, self._left(done))))
            print(line, file=sys.stderr, flush=True)

    def advance_of(self, done: int, total: int) -> None:
        """The same with a total that may have changed."""
        has_changed, self._total = total != self._total, total
        if self._bar is not None:
            self._bar.total = total
        if done > self._done or (self._done and has_changed):
            self.advance_to(done)

    def _open_bar(self) -> tqdm:
        """Open the bar when there is something to show, so that an early refusal leaves no empty bar."""
        bar = tqdm(total=self._total, initial=self._first, desc=self._what, file=sys.stderr, dynamic_ncols=True)
        waited = time.monotonic() - self._began
        bar.start_t -= waited
        bar.last_print_t -= waited
        return bar

    def print_line(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def _left(self, done: int) -> str:
        done_now = done - (self._first or 0)
        if done_now < 1 or done >= self._total:
            return ""
        return f"{(time.monotonic() - self._began) / done_now * (self._total - done):.0f} s left"

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()
