"""How far a worker's current job is."""

from __future__ import annotations

import time

from hyperscene.service.mapping.classify import MapProgress


class JobProgress:
    """How far the current job is, for the thread that writes it to the store."""

    def __init__(self, earlier: MapProgress) -> None:
        self.reached = earlier  # by any run of the job
        self._cells = 0  # of this run alone
        self._moved = time.monotonic()
        self._first: tuple[float, int] | None = None

    def report(self, now: MapProgress) -> None:
        """Called often by the mapping."""
        if self._first is None:
            self._first = time.monotonic(), now.patches_done
        self._moved = time.monotonic()
        self._cells = max(now.cells_done, self._cells)
        self.reached = MapProgress(
            max(now.cells_done, self.reached.cells_done),
            now.cells_total,
            max(now.patches_done, self.reached.patches_done),
        )

    def pause(self) -> None:
        """Restart the stall clock: there is a known reason why nothing moves."""
        self._moved = time.monotonic()

    @property
    def stalled_s(self) -> float:
        """Seconds since the network's last progress; 0 once it has finished."""
        is_finished = 0 < self.reached.cells_total <= self._cells
        return 0.0 if is_finished else time.monotonic() - self._moved

    @property
    def seconds_left(self) -> float | None:
        """At the speed of this run so far."""
        if self._first is None or self.reached.patches_done <= self._first[1]:
            return None
        began, first = self._first
        done, total = self.reached.patches_done, self.reached.patches_total
        return round((time.monotonic() - began) / (done - first) * (total - done), 1)
