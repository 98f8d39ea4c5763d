"""Progress of long work: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

LINE_EVERY_S = 10.0


class Progress:
    """Counts steps; the terminal's bar also shows time left."""

    def __init__(self, total: int, what: str) -> None:
        self._total = total
        self._what = what
        self._done = 0
        self._began = self._said = time.monotonic()
        self._bar = tqdm(total=total, desc=what, file=sys.stderr, dynamic_ncols=True) if sys.stderr.isatty() else None

    def advance_to(self, done: int, note: str = "") -> None:
        """Show that `done` steps of the total are behind us."""
        if self._bar is not None:
            if self._done == 0 and done > 1:  # resumed: earlier steps say nothing about the speed
                self._bar.initial = done - 1
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)
        elif done == self._total or time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            print(f"{self._what} {done}/{self._total} {note} {self._left(done)}".rstrip(), file=sys.stderr, flush=True)
        self._done = done

    def say(self, text: str) -> None:
        """Print a line without tearing the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def _left(self, done: int) -> str:
        seconds = (time.monotonic() - self._began) / max(done, 1) * (self._total - done)
        return f"{seconds:.0f} s left" if done < self._total else ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
