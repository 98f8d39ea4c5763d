"""pytest plugin of `tests.bounded_run`: records the running test, and lets a run go on after a worker has died."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.bounded_run import RUNNING_TESTS


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep the test's node id in a file named after this process; a process that dies leaves it behind."""
    record = Path(os.environ[RUNNING_TESTS]) / str(os.getpid())
    record.write_text(item.nodeid, "utf-8")
    try:
        return (yield)
    finally:
        record.unlink(missing_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Replace xdist's own scheduler of `--dist loadfile`."""
    return CrashTolerantScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class CrashTolerantScheduling(LoadFileScheduling):
    """`--dist loadfile` that neither stalls nor repeats the crash when a worker dies.

    xdist 3.8.0 puts everything that the worker was ever given back into the queue. The replacement is given the crashed
    test again, and dies too; or it is given files that are done already, which are no work, and waits forever
    (https://github.com/pytest-dev/pytest-xdist/issues/1323, 1327 and 1378).
    """

    def remove_node(self, node: Any) -> str | None:
        """Requeue the tests that a worker has not run, without the one that it died on; that one's id."""
        files = self.assigned_work.pop(node)
        waiting = [test for tests in files.values() for test, is_done in tests.items() if not is_done]
        if not waiting:
            return None
        crashed = waiting[0]
        for file, tests in files.items():
            left = {test: False for test, is_done in tests.items() if not is_done and test != crashed}
            if left:
                self.workqueue[file] = left
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Give a worker files until it has two tests: it runs one only when it knows what comes next."""
        if node not in self.registered_collections:  # a replacement that still collects: work for it would be lost
            return
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
