"""Runs pytest so that the run always ends: within a limit, with no process left, naming the tests that were running.

Used by scripts/test: python -m tests.bounded_run --limit-minutes 60 -- OPTIONS OF PYTEST
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

from tests.lifetimes import adopt_orphans, ends_with_parent

RUNNING_TESTS = "RUNNING_TESTS_FOLDER"  # environment variable; tests/run_plugin.py writes there
EXCEEDED = 1
LOOK_EVERY_S = 0.05
SUMMARY_S = 20.0  # for pytest after Ctrl-C or the limit; execnet alone gives stuck workers 10 s
LINGER_S = 3.0  # for processes that notice by themselves that their parent has ended
SHOWN_CHARS = 160  # of a command line


class BoundedRun:
    """One run of pytest and everything that it starts."""

    def __init__(self, options: list[str], limit_s: float, folder: Path) -> None:
        self._records = folder
        self._deadline = time.monotonic() + limit_s
        self._reason = f"the run exceeded its limit of {limit_s / 60:g} minutes"
        self._code = EXCEEDED
        adopt_orphans()
        # In this process group: Ctrl-C reaches pytest and its workers from the terminal, and --pdb can read from it.
        self._pytest = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "tests.run_plugin", *options],
            env=os.environ | {RUNNING_TESTS: str(folder)},
            preexec_fn=ends_with_parent(accepts_ctrl_c=True),
        )
        signal.signal(signal.SIGINT, self._on_ctrl_c)
        for sign in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(sign, self._on_end)

    def finish(self) -> int:
        """Wait for pytest, end what is left, and return the exit code."""
        try:
            code = self._wait()
            if code is None:
                self._say(f"{self._reason}; running were:", self._running() or ["no test"])
                self._interrupt()
                self._deadline = time.monotonic() + SUMMARY_S
                self._wait()
                return self._code
            self._say("tests that began and did not end:", self._running())
            return code
        finally:
            self._end_the_rest()

    def _on_ctrl_c(self, sign: int, frame: FrameType | None) -> None:
        self._deadline = min(self._deadline, time.monotonic() + SUMMARY_S)
        self._reason = f"pytest did not end within {SUMMARY_S:.0f} s after Ctrl-C"

    def _on_end(self, sign: int, frame: FrameType | None) -> None:
        self._deadline = time.monotonic()
        self._reason = f"stopped by {signal.Signals(sign).name}"
        self._code = 128 + sign

    def _wait(self) -> int | None:
        """The exit code of pytest, as a shell has it; None at the deadline."""
        while not self._has_ended():
            if time.monotonic() > self._deadline:
                return None
            time.sleep(LOOK_EVERY_S)
        code = self._pytest.wait()
        return code if code >= 0 else 128 - code

    def _has_ended(self) -> bool:
        """Whether pytest has ended; collects orphans that have, which tests wait for."""
        if sys.platform != "linux":
            return self._pytest.poll() is not None
        with suppress(ChildProcessError):  # there is no child at all
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self._pytest.pid:
                    return True
                os.waitpid(ended.si_pid, 0)
        return self._pytest.returncode is not None

    def _running(self) -> list[str]:
        """Tests that have begun and not ended, with their processes."""
        found = []
        for record in self._records.iterdir():
            with suppress(FileNotFoundError):  # this test has just ended
                age_s = time.time() - record.stat().st_mtime
                found.append(f"{record.read_text('utf-8')} (process {record.name}, begun {age_s:.0f} s ago)")
        return sorted(found)

    def _interrupt(self) -> None:
        """What Ctrl-C does: pytest and its workers end their tests and show the summary."""
        pids = {str(child.pid) for child in self._descendants()} & {record.name for record in self._records.iterdir()}
        for pid in {self._pytest.pid, *map(int, pids)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def _descendants(self) -> list[psutil.Process]:
        """Processes of this run that are alive, orphans included."""
        alive = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        return alive

    def _end_the_rest(self) -> None:
        deadline = time.monotonic() + LINGER_S
        while (left := self._descendants()) and time.monotonic() < deadline:
            self._has_ended()
            time.sleep(LOOK_EVERY_S)
        self._say("processes that were left and are killed now:", list(map(_shown, left)))
        deadline = time.monotonic() + LINGER_S
        while left and time.monotonic() < deadline:  # more than once: one may have started another meanwhile
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._has_ended()
            time.sleep(LOOK_EVERY_S)
            left = self._descendants()

    def _say(self, heading: str, lines: list[str]) -> None:
        if lines:
            print("\n  ".join([f"bounded_run: {heading}", *lines]), file=sys.stderr, flush=True)


def _shown(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        command = "ended meanwhile"
    return f"{process.pid} {command[:SHOWN_CHARS]}"


def main() -> int:
    """Run pytest with the options after `--`."""
    parser = argparse.ArgumentParser(description="Run pytest within a limit, and end every process that it leaves.")
    parser.add_argument("--limit-minutes", type=float, required=True)
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="running-tests-") as folder:
        return BoundedRun(given.options, given.limit_minutes * 60, Path(folder)).finish()


if __name__ == "__main__":
    sys.exit(main())
