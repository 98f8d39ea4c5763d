"""Commands that start our own modules as child processes."""

from __future__ import annotations

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """A command that runs one of our modules.

    -P keeps the current folder off the path: with -m alone, a numpy.py in it would be imported instead of numpy.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
