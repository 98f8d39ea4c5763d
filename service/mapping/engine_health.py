"""Which engines work on this machine: each is tried in a child process before it is opened in one of ours.

An engine that crashes on loading or at its first batch then ends a child process and not a worker. Each structure of
graph is tried: on a processor without AVX-512, OpenVINO 2026.4 runs the demo bundle and crashes on one of width 8.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec

from hyperscene.child_process import module_command
from hyperscene.model.bundle import DEMO_BUNDLE, Bundle, read_bundle
from hyperscene.model.probing import installed_version, machine_key, read_cached, run_probe, write_cache
from hyperscene.service.mapping.fused_engine import KERNEL_MODULE, unsuitable

PROBE_MODULE = "hyperscene.service.mapping.engine_probe"
PROBE_S = 60.0
RETRY_S = 86400.0  # after which an engine that crashed or is unavailable is tried again
SOON_RETRY_S = 600.0  # for other failures: the machine may have been busy, or its set-up unfinished
# Optional engines, the fastest first: the module and the distribution that provides it.
PACKAGES = {
    "cuda": ("onnxruntime", "onnxruntime-gpu"),
    "fused": (KERNEL_MODULE, "hyperscene"),
    "openvino": ("openvino", "openvino"),
}


@dataclass(frozen=True)
class EngineReport:
    """The result of an engine's probe."""

    device: str
    provider: str | None = None
    patches_per_s: float | None = None  # on all cores
    failure: str | None = None  # why it is not used; None if it works
    has_hung: bool = False  # the last probe did
    is_broken: bool = False  # it crashed or hung; otherwise it is unavailable, with a reason


# Reports of this process with their key and expiry, because the cache may not be writable.
_known: dict[str, tuple[dict[str, str], EngineReport, float]] = {}


def engine_report(
    device: str, bundle: Bundle | None = None, is_fresh: bool = False, timeout_s: float = PROBE_S
) -> EngineReport:
    """Whether an engine runs a bundle here: the cached report, or a new probe if there is none or `is_fresh` is set.

    Without a bundle it is the demo bundle. If a new probe has too little time, the cached report counts.
    """
    bundle = bundle or read_bundle(DEMO_BUNDLE)
    kept = known_report(device, bundle)
    if kept is not None and not is_fresh:
        return kept
    name, key = _entry(device, bundle)
    report, for_s = _probe(device, bundle, timeout_s)
    if report.has_hung and timeout_s < PROBE_S:  # not conclusive: the time was short
        return report if kept is None else replace(kept, has_hung=True)
    _known[name] = key, report, time.time() + (for_s or float("inf"))
    write_cache(name, key, asdict(report), for_s)
    return report


def known_report(device: str, bundle: Bundle) -> EngineReport | None:
    """The report of an earlier probe, if it is still valid."""
    name, key = _entry(device, bundle)
    known = _known.get(name)
    if known is not None and known[0] == key and time.time() < known[2]:
        return known[1]
    cached = read_cached(name, key)
    return None if cached is None else EngineReport(**cached)


def _entry(device: str, bundle: Bundle) -> tuple[str, dict[str, str]]:
    """The name of a report in the cache, and what it depends on."""
    key = machine_key("onnxruntime", "openvino", KERNEL_MODULE, probe=_probe_file())
    return f"engine-{device}-{bundle.structure[:16]}", key | {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}


def _probe(device: str, bundle: Bundle, timeout_s: float) -> tuple[EngineReport, float | None]:
    """A report, and for how many seconds it is valid; None means for ever."""
    run = run_probe(module_command(PROBE_MODULE, device), timeout_s, bundle.content)
    found = run.lines[-1] if run.lines else {}
    if run.failure is not None:
        failure = f"{device} is not used: a probe of it {run.failure}"
        valid_s = RETRY_S if run.is_crash else SOON_RETRY_S
        return EngineReport(device, found.get("provider"), None, failure, run.has_hung, is_broken=True), valid_s
    if "unavailable" in found:
        return EngineReport(device, found.get("provider"), None, str(found["unavailable"])), RETRY_S
    return EngineReport(device, str(found["provider"]), float(found["patches_per_s"])), None


def _probe_file() -> str:
    spec = find_spec(PROBE_MODULE)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def is_installed(device: str) -> bool:
    """Whether an engine's package is installed; it is not imported."""
    module, distribution = PACKAGES[device]
    return installed_version(distribution) is not None and find_spec(module) is not None


def checking_device(bundle: Bundle) -> str:
    """The engine that checks a bundle when it is read: ONNX Runtime, unless that is broken here."""
    return "openvino" if engine_report("cpu", bundle).is_broken else "cpu"


def candidates(device: str, bundle: Bundle | None = None) -> list[str]:
    """The engines of a device, in the order in which they are tried; `auto` uses the first that works.

    On 2 cores of an AMD EPYC the fused kernel runs the networks that it knows twice as fast as OpenVINO, and OpenVINO
    all networks 1.2 to 1.5 times as fast as ONNX Runtime; `hyperscene bench` measures all three.
    """
    if device != "auto":
        return [device]
    is_left_out = {"fused": bundle is None or unsuitable(bundle.manifest) is not None}
    return [*(name for name in PACKAGES if is_installed(name) and not is_left_out.get(name)), "cpu"]
