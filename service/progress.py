"""Progress of long work: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import TracebackType

from tqdm import tqdm

LINE_EVERY_S = 10.0


class Progress:
    """Counts steps; the terminal's bar also shows time left."""

    def __init__(self, total: int, what: str) -> None:
        self._total = total
        self._what = what
        self._done = 0
        self._first: int | None = None  # steps that an earlier run had done: they say nothing about this one's speed
        self._began = self._said = time.monotonic()
        self._bar: tqdm | None = None
        self._is_watched = sys.stderr is not None

    def begin_at(self, done: int, note: str = "") -> None:
        """Show the bar before the first step of this run; `done` are behind us already, and no time left is known."""
        self._first = done
        self._began = time.monotonic()
        self._move_to(done, note)

    def advance_to(self, done: int, note: str = "") -> None:
        """Show that `done` steps of the total are behind us."""
        if self._first is None:
            self._first = max(done - 1, 0)
        self._move_to(done, note)

    def _move_to(self, done: int, note: str) -> None:
        try:
            if self._is_watched:
                self._show(done, note)
        except OSError:  # whoever watched has gone; the work goes on
            self._is_watched = False
        self._done = done

    def _show(self, done: int, note: str) -> None:
        if self._bar is None and sys.stderr.isatty():
            self._bar = self._open_bar()
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            if done > self._bar.n:  # tqdm would take a mere note for a pause, and the next step for a quick one
                self._bar.update(done - self._bar.n)
            self._bar.refresh()
        elif (done == self._total and done != self._first) or time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            line = " ".join(filter(None, (f"{self._what} {done}/{self._total}", note, self._left(done))))
            print(line, file=sys.stderr, flush=True)

    def advance_of(self, done: int, total: int) -> None:
        """The same where the total is known only now."""
        self._total = total
        if done > self._done:
            self.advance_to(done)

    def _open_bar(self) -> tqdm:
        """Begin the bar when there is something to show: a refusal before it leaves no empty one."""
        bar = tqdm(total=self._total, initial=self._first, desc=self._what, file=sys.stderr, dynamic_ncols=True)
        waited = time.monotonic() - self._began
        bar.start_t -= waited
        bar.last_print_t -= waited
        return bar

    def say(self, text: str) -> None:
        """Print a line without tearing the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def _left(self, done: int) -> str:
        of_this_run = done - (self._first or 0)
        if of_this_run < 1 or done >= self._total:
            return ""
        return f"{(time.monotonic() - self._began) / of_this_run * (self._total - done):.0f} s left"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()
