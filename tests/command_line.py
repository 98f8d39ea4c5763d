"""Runs hyperscene commands as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from hyperscene.service.cli import main


def cli_command(*arguments: object) -> list[str]:
    """The command as a list for subprocess."""
    return [sys.executable, "-m", "hyperscene.service.cli", *map(str, arguments)]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command and wait for it."""
    options = {"capture_output": True, "text": True, "timeout": 300, "env": os.environ | environment}
    return subprocess.run(cli_command(*arguments), check=False, **options)


def run_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which saves the import of torch."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
            code = main([str(argument) for argument in arguments])
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    finally:
        signal.signal(signal.SIGTERM, handler)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The error message, which must be one line."""
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]
