"""The command line as a person uses it: in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "service.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]
