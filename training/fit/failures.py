"""Errors of torch in one sentence, with the cause and the remedy; the traceback goes to a log file."""

from __future__ import annotations

import platform
import tempfile
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from hyperscene.errors import ServiceError, TrainingFailed, error_text
from hyperscene.model.bundle import BundleRefused
from hyperscene.model.probing import installed_version
from hyperscene.model.processor import cpu_name, instruction_cap
from hyperscene.model.spectra import BandMismatch

# Words in the messages of torch, which has no exception classes for these cases, and the remedies.
REMEDIES = {
    "could not create a primitive": "set ONEDNN_MAX_CPU_ISA=AVX2 in the environment, or use --precision float32",
    "could not execute a primitive": "set ONEDNN_MAX_CPU_ISA=AVX2 in the environment, or use --precision float32",
    "out of memory": "free some memory, crop the scene, or use a smaller --batch",
    "can't allocate memory": "free some memory, crop the scene, or use a smaller --batch",
    "cannot allocate memory": "free some memory, crop the scene, or use a smaller --batch",
    "no space left": "free disk space, or choose another folder for the output",
    "not enough memory": "free some memory, crop the scene, or use a smaller --batch",
    "cuda": "check the driver, or use --device cpu",
    "cudnn": "check the driver, or use --device cpu",
    "no kernel image": "use --device cpu: this torch was not built for this GPU",
}
REPORT_IT = "report it with the output of hyperscene doctor"
# Printed as one line by the command line; a broken pipe is the end of `| head`.
OWN_REFUSALS = (ServiceError, BundleRefused, BandMismatch, BrokenPipeError)


@contextmanager
def explained(work: str, log: Path) -> Generator[None, None, None]:
    """Turn unexpected errors of `work` (for example "training") into TrainingFailed; refusals pass unchanged."""
    try:
        yield
    except OWN_REFUSALS:
        raise
    except Exception as error:
        kept = _write_log(log, error)
        where = "no log of it could be written" if kept is None else f"the traceback is in {kept}"
        raise TrainingFailed(f"{work} failed ({_cause(error)}): {_remedy(error)}; {where}") from error


def _cause(error: Exception) -> str:
    return error_text(error).splitlines()[0][:200]


def _remedy(error: Exception) -> str:
    text = str(error).lower()
    if isinstance(error, MemoryError):
        return REMEDIES["out of memory"]
    return next((remedy for words, remedy in REMEDIES.items() if words in text), REPORT_IT)


def _write_log(log: Path, error: Exception) -> Path | None:
    """Write the traceback, in the temporary folder if need be; None if no folder can be written."""
    packages = f"hyperscene {version('hyperscene')}, torch {installed_version('torch')}"
    machine = f"{packages}, {platform.platform()}, {cpu_name()}"
    text = (
        f"{machine}, ONEDNN_MAX_CPU_ISA {instruction_cap() or 'not set'}\n{''.join(traceback.format_exception(error))}"
    )
    with suppress(OSError):
        log.write_text(text, encoding="utf-8")
        return log
    with suppress(OSError):
        with tempfile.NamedTemporaryFile("w", prefix="hyperscene-", suffix=".log", delete=False) as file:
            file.write(text)
        return Path(file.name)
    return None
