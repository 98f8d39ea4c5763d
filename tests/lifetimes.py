"""Processes that end when the process that started them does, and the adoption of orphans. Both work on Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

# Options of prctl(2), from <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# Loaded here: between fork and exec, nothing may be imported.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def ends_with_parent(ending: signal.Signals = signal.SIGKILL, *, accepts_ctrl_c: bool = False) -> Callable[[], None]:
    """A `preexec_fn` that sends the new process a signal when the thread that started it ends.

    `accepts_ctrl_c` restores SIGINT, which a shell sets to be ignored in background jobs and their children.
    """
    parent = os.getpid()

    def prepare() -> None:
        if accepts_ctrl_c:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if _libc is not None:
            _libc.prctl(PR_SET_PDEATHSIG, int(ending), 0, 0, 0)
            if os.getppid() != parent:  # it ended before the call above, so no signal will come
                os._exit(1)

    return prepare


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends; this process then has to wait for them."""
    if _libc is not None:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
