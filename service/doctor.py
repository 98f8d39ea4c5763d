"""Checks of this machine for `hyperscene doctor`; engines are checked by running them."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from hyperscene.model.bundle import DEMO_BUNDLE, BundleRefused, read_bundle
from hyperscene.model.probing import cache_folder, installed_version
from hyperscene.model.processor import cpu_flags, cpu_name, instruction_cap, is_amx_broken
from hyperscene.service.mapping.engine_health import PACKAGES, EngineReport, engine_report, is_installed
from hyperscene.service.mapping.engines import cores
from hyperscene.service.settings import Settings
from hyperscene.training.fit.precision_health import fastest, probe_precisions

Status = Literal["ok", "slow", "broken"]

PROBES_S = 12.0  # for all probes together; if the machine is too busy for them, the checks say so
SHOWN_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "torch", "distributed")
SLOW_PATCHES_PER_S = 20.0  # of the demo bundle; 2 cores of an AMD EPYC run 400 with ONNX Runtime
MIN_MEMORY_BYTES, MIN_DISK_BYTES = 2 * 10**9, 10**9
MIN_OPEN_FILES = 1024
CLOCK_TOLERANCE_S = 60.0


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    status: Status
    found: str
    remedy: str | None = None
    is_needed: bool = False  # mapping is impossible if this is broken


def examine(settings: Settings, within_s: float = PROBES_S) -> list[Check]:
    """Run all checks, in the order of the output. The probes come last and share what is left of the time."""
    deadline = time.monotonic() + within_s
    machine = [_guarded(step) for step in (_versions, _processor, _memory, lambda: _disk(settings), _open_files, _gpu,
                                           _bundle)]  # fmt: skip
    others = [_guarded(step) for step in (lambda: _data_folder(settings), lambda: _clock(settings), _test_tools)]
    probes = [_guarded(lambda: _engines(deadline)), _guarded(lambda: _training(deadline))]
    return [check for checks in (*machine, *probes, *others) for check in checks]


def _guarded(step: Callable[[], Iterable[Check]]) -> list[Check]:
    """A step's checks; one that the system refuses does not end the others."""
    checks: list[Check] = []
    try:
        checks.extend(step())
    except OSError as error:
        checks.append(Check("system", "broken", str(error), "change the rights or the settings of what it names"))
    return checks


def can_map(checks: list[Check]) -> bool:
    """Whether no check that mapping needs is broken."""
    return not any(check.is_needed and check.status == "broken" for check in checks)


def _versions() -> Iterator[Check]:
    yield Check(
        "hyperscene", "ok", f"{version('hyperscene')} on Python {platform.python_version()}, {platform.platform()}"
    )
    numbers = {name: installed_version(name) for name in SHOWN_PACKAGES}
    yield Check("packages", "ok", ", ".join(f"{name} {number}" for name, number in numbers.items() if number))
    try:
        import rasterio

        found = f"rasterio {rasterio.__version__} with GDAL {rasterio.__gdal_version__}"
        yield Check("rasters", "ok", found, is_needed=True)
    except ImportError as error:
        yield Check("rasters", "broken", f"rasterio cannot be imported ({error})", "reinstall rasterio", is_needed=True)


def _processor() -> Iterator[Check]:
    flags = cpu_flags()
    sets = [name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX-512"), ("avx512_bf16", "bfloat16"),
                                      ("amx_tile", "AMX")) if flag in flags]  # fmt: skip
    found = f"{cpu_name()}, {cores()} cores, reports {', '.join(sets) or 'nothing beyond SSE'}"
    cap = instruction_cap()
    if is_amx_broken():
        yield Check("processor", "slow", f"{found}; the kernel does not support AMX, capped at {cap}",
                    "nothing to do: run on a machine with working AMX for more speed")  # fmt: skip
    elif flags and "avx2" not in flags:
        yield Check("processor", "slow", found, "use a processor with AVX2 or AVX-512")
    else:
        yield Check("processor", "ok", found + (f"; capped at {cap} by the environment" if cap else ""))


def _memory() -> Iterator[Check]:
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        yield Check("memory", "ok", "unknown on this system")
        return
    found = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB available"
    if free < MIN_MEMORY_BYTES:
        yield Check("memory", "slow", found, "close other programs; training needs 2 GB or more")
    else:
        yield Check("memory", "ok", found)


def _disk(settings: Settings) -> Iterator[Check]:
    folders = {"data folder's disk": _existing(settings.data), "temporary folder": Path(tempfile.gettempdir())}
    for name, folder in folders.items():
        free, minimum = shutil.disk_usage(folder).free, MIN_DISK_BYTES
        if name.startswith("data"):
            minimum = int(settings.min_free_bytes)
        found = f"{free / 1e9:.1f} GB free"
        if free < minimum:
            yield Check(name, "broken", found, f"free disk space: {minimum / 1e9:.1f} GB are required", is_needed=True)
        else:
            yield Check(name, "ok", found, is_needed=True)


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if _exists(path))


def _exists(path: Path) -> bool:
    """Whether a path exists and may be seen."""
    try:
        return path.exists()
    except PermissionError:
        return False


def _open_files() -> Iterator[Check]:
    if sys.platform == "win32":
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_OPEN_FILES:
        yield Check("open files", "slow", f"at most {soft}", f"ulimit -n {4 * MIN_OPEN_FILES}")
    else:
        yield Check("open files", "ok", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}")


def _gpu() -> Iterator[Check]:
    has_driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    has_engine = is_installed("cuda")
    if has_driver and not has_engine:
        yield Check("GPU", "slow", "an NVIDIA driver, but no ONNX Runtime for CUDA",
                    "pip uninstall onnxruntime && pip install 'hyperscene[gpu]'")  # fmt: skip
    elif has_engine and not has_driver:
        yield Check("GPU", "slow", "onnxruntime-gpu is installed, but there is no NVIDIA driver",
                    "install the driver, or use 'hyperscene[cpu]'")  # fmt: skip
    elif has_engine:
        yield Check("GPU", "ok", "an NVIDIA driver and ONNX Runtime for CUDA")
    else:
        yield Check("GPU", "ok", "none: there is no NVIDIA driver")


def _bundle() -> Iterator[Check]:
    try:
        manifest = read_bundle(DEMO_BUNDLE).manifest
        yield Check("demo bundle", "ok", f"{manifest.bands} bands, {manifest.classes} classes", is_needed=True)
    except BundleRefused as error:
        yield Check("demo bundle", "broken", str(error), "reinstall hyperscene", is_needed=True)


def _engines(deadline: float) -> Iterator[Check]:
    reports = []
    devices = [device for device in (*PACKAGES, "cpu") if device not in PACKAGES or is_installed(device)]
    if not {"openvino", "cuda"} & set(devices):
        yield Check("engine openvino", "slow", "not installed", "pip install 'hyperscene[cpu]'")
    for index, device in enumerate(devices):
        probes = len(devices) - index + 1  # with that of training
        report = engine_report(device, is_fresh=True, timeout_s=_share_s(deadline, probes))
        reports.append(report)
        yield _engine_check(report)
    yield _mapping_check(reports)


def _mapping_check(reports: list[EngineReport]) -> Check:
    works = [report for report in reports if report.failure is None]
    if works:
        return Check("mapping", "ok", f"with {works[0].provider}", is_needed=True)
    if any(report.has_hung for report in reports):
        remedy = "run this command again when the machine is less busy"
        return Check("mapping", "broken", "no engine finished its test in time", remedy, is_needed=True)
    return Check("mapping", "broken", "no engine works", "see the lines above", is_needed=True)


def _engine_check(report: EngineReport) -> Check:
    name = f"engine {report.device}"
    rate = f"{report.provider}, {report.patches_per_s or 0:.0f} patches/s of the demo bundle"
    if report.has_hung:
        found = report.failure or f"{rate}, measured earlier: a new probe did not finish in time"
        return Check(name, "slow", found, "run this command again when the machine is less busy")
    if report.failure is not None:
        remedy = "not used; reinstall its package, or report this output" if report.is_broken else None
        return Check(name, "broken", report.failure, remedy)
    if (report.patches_per_s or 0) < SLOW_PATCHES_PER_S:
        return Check(name, "slow", rate, "check which other programs use the processor")
    return Check(name, "ok", rate)


def _training(deadline: float) -> Iterator[Check]:
    torch = installed_version("torch")
    if torch is None:
        remedy = "pip install torch==2.13.0 && pip install 'hyperscene[cpu,train]'"
        yield Check("training", "ok", f"torch is not installed; to train: {remedy}")
        return
    reports = probe_precisions(is_fresh=True, timeout_s=_share_s(deadline, 1))
    float32 = reports["float32"]
    steps = ", ".join(
        f"{report.precision} {1000 * report.seconds:.0f} ms per step" if report.works and report.seconds else
        f"{report.precision} does not work (a probe {report.failure})"
        for report in (float32, reports["bfloat16"])
    )  # fmt: skip
    found = f"torch {torch} ({steps})"
    if float32.works:
        yield Check("training", "ok", f"torch {torch} in {fastest(reports)} ({steps})")
    elif float32.is_crash:
        yield Check("training", "broken", found, "set ONEDNN_MAX_CPU_ISA=AVX2 in the environment")
    else:
        yield Check("training", "slow", found, "run this command again when the machine is less busy")


def _share_s(deadline: float, probes: int) -> float:
    """The time of the next of some probes, so that one that hangs leaves time for the others."""
    return max(1.0, (deadline - time.monotonic()) / probes)


def _data_folder(settings: Settings) -> Iterator[Check]:
    data = settings.data
    found, status, remedy = _state_of(data, settings.database)
    yield Check("data folder", status, f"{data}: {found}", remedy, is_needed=True)
    folder = cache_folder()
    if folder is not None and os.access(_existing(folder), os.W_OK):
        yield Check("cache folder", "ok", str(folder))
    else:
        yield Check("cache folder", "slow", f"{folder or 'no home folder'}: not writable",
                    "set HYPERSCENE_CACHE to a writable folder")  # fmt: skip


def _state_of(data: Path, database: Path) -> tuple[str, Status, str | None]:
    if not _exists(data):
        is_fine = os.access(_existing(data), os.W_OK)
        return ("does not exist yet; `serve` creates it", "ok", None) if is_fine else (
            "cannot be created", "broken", "choose another with --data")  # fmt: skip
    if not os.access(data, os.W_OK | os.X_OK):
        return "not writable", "broken", "change its owner, or choose another with --data"
    if not database.exists():
        return "no jobs", "ok", None
    try:
        with sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=2) as store:
            counts = dict(store.execute("SELECT status, COUNT(*) FROM jobs GROUP BY status").fetchall())
        store.close()
    except sqlite3.Error as error:
        return f"{database.name} cannot be read ({error})", "broken", "restore it from a backup"
    return ", ".join(f"{count} jobs {status}" for status, count in counts.items()) or "no jobs", "ok", None


def _clock(settings: Settings) -> Iterator[Check]:
    """The clock must not be behind the times of existing files: leases and expiry depend on it."""
    files = [path for path in (settings.database, Path(__file__)) if path.exists()]
    behind_s = max(path.stat().st_mtime for path in files) - time.time()
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if behind_s > CLOCK_TOLERANCE_S:
        yield Check("clock", "broken", f"{now}, {behind_s:.0f} s behind the times of files", "set the clock")
    else:
        yield Check("clock", "ok", now)


def _test_tools() -> Iterator[Check]:
    tools: dict[str, tuple[tuple[str, ...], Callable[[str], str]]] = {
        "chromium": (("chromium", "chromium-browser", "google-chrome"), lambda path: path),
        "containers": (("docker", "podman"), _container_state),
    }
    for name, (commands, state) in tools.items():
        path = next((found for command in commands if (found := shutil.which(command))), None)
        found = "not found; tests that need it are skipped" if path is None else state(path)
        yield Check(name, "ok", f"{found} (needed by tests only)" if path else found)


def _container_state(path: str) -> str:
    try:
        done = subprocess.run([path, "info"], capture_output=True, timeout=1.5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return f"{path}, but its engine does not respond"
    return path if done.returncode == 0 else f"{path}, but its engine does not respond"
