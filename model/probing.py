"""Probes: run code that may crash in a child process, and cache the result for this machine.

Processor flags prove nothing, so what this machine can do is tried once. A child that is killed by a signal or hangs
is a result too. Results are cached in the user's cache folder together with what they depend on, and computed again
when that changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hyperscene.model.processor import cpu_flags, cpu_name, instruction_cap

CACHE_VARIABLE = "HYPERSCENE_CACHE"
# Signals that end a process because of a fault in its code or of the processor.
CRASH_SIGNALS = frozenset({signal.SIGILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE})


@dataclass(frozen=True)
class ProbeRun:
    """What a child printed, and how it ended."""

    lines: list[dict[str, Any]]  # a JSON document each
    failure: str | None = None  # completes the sentence "the probe ..."; None after success
    is_crash: bool = False  # by one of CRASH_SIGNALS
    has_hung: bool = False


def run_probe(command: Sequence[str], timeout_s: float, given: bytes = b"") -> ProbeRun:
    """Run a child that reads `given` and prints JSON lines; it is killed after `timeout_s`."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the command only; the child's own children are killed with it
    ) as child:
        try:
            output, errors = child.communicate(given, timeout_s)  # a child may end before it has read everything
            failure = _ending(child.returncode, errors)
        except subprocess.TimeoutExpired:
            _kill_group(child)
            output, _ = child.communicate()
            return ProbeRun(_documents(output), f"did not finish within {timeout_s:.0f} s", has_hung=True)
        except BaseException:  # Ctrl-C: no child is left behind
            _kill_group(child)
            child.communicate()
            raise
    return ProbeRun(_documents(output), failure, -child.returncode in CRASH_SIGNALS)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _ending(code: int, errors: bytes) -> str | None:
    if code == 0:
        return None
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    last = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"failed with exit code {code}" + (f" ({last})" if last else "")


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _documents(output: bytes) -> list[dict[str, Any]]:
    found = []
    for line in output.splitlines():
        with suppress(ValueError):  # cut off by the child's end, or printed by a library
            document = json.loads(line)
            if isinstance(document, dict):
                found.append(document)
    return found


def confine_probe(seconds: int) -> None:
    """Called in the child: no core dump, and an alarm that ends it if the parent is gone."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(seconds)


def machine_key(*packages: str, probe: str) -> dict[str, str]:
    """What a result depends on: processor, kernel, caps, our version, the probe's source and the packages it tries."""
    flags = " ".join(sorted(cpu_flags()))
    key = {
        "processor": cpu_name(),
        "flags": hashlib.sha256(flags.encode()).hexdigest()[:16],
        "kernel": platform.release(),
        "cap": instruction_cap() or "",
        "torch cap": os.environ.get("ATEN_CPU_CAPABILITY", ""),
        "hyperscene": version("hyperscene"),
        "probe": hashlib.sha256(Path(probe).read_bytes()).hexdigest()[:16],
    }
    return key | {package: _fingerprint(package) for package in packages}


def installed_version(package: str) -> str | None:
    """A package's version; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _fingerprint(package: str) -> str:
    """A package's version and the file that would be imported; the package itself is not imported."""
    number = installed_version(package) or ""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return number
    with suppress(OSError):
        return f"{number} {spec.origin} {Path(spec.origin).stat().st_mtime_ns}"
    return number


def cache_folder() -> Path | None:
    """$HYPERSCENE_CACHE, else the user's cache folder; None without a home folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hyperscene"
    try:
        return Path.home() / ".cache" / "hyperscene"
    except RuntimeError:
        return None


def read_cached(name: str, key: dict[str, str]) -> Any | None:
    """The result cached under this name; None if the key differs or it has expired."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        document = json.loads((folder / f"{name}.json").read_text())
        is_fresh = document["key"] == key and (document["expires"] is None or time.time() < document["expires"])
        return document["answer"] if is_fresh else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_cache(name: str, key: dict[str, str], result: Any, for_s: float | None = None) -> None:
    """Cache a result, for ever or for some seconds; does nothing if the folder cannot be written."""
    folder = cache_folder()
    if folder is None:
        return
    document = {"key": key, "answer": result, "expires": None if for_s is None else time.time() + for_s}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{name}-", delete=False) as unfinished:
            json.dump(document, unfinished, indent=2)
        Path(unfinished.name).replace(folder / f"{name}.json")
