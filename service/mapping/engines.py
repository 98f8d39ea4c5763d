"""Engines run a bundle's network: the fused kernel, OpenVINO and ONNX Runtime behind one small interface."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import NotReady, OptionsUnusable
from hyperscene.model.bundle import (
    BFLOAT16_TOLERANCE,
    CHECK_TOLERANCE,
    Bundle,
    BundleRefused,
    import_onnxruntime,
    open_session,
    replay_check,
    run_graph,
)
from hyperscene.service.mapping.devices import DEVICES, PRECISIONS, Device, Precision, precision_of
from hyperscene.service.mapping.engine_health import candidates, engine_report
from hyperscene.service.mapping.fused_engine import FusedEngine, settle_precision
from hyperscene.service.mapping.gpu import PROVIDERS, GpuEngine
from hyperscene.service.mapping.openvino_engine import OpenVinoEngine

# Small batches keep a layer's output in the caches, larger ones share more of a window's pixels. OpenVINO at stride 1,
# compared with 16: 8 is 3 % faster, 4 is 5 % and 32 is 3 % slower; at stride 4 with 200 bands 8 is 5 % slower
# (interleaved, 2 cores of an AMD EPYC).
CPU_BATCH = 16


class Engine(Protocol):
    """Runs a bundle's graph; safe to call from `callers` threads at once."""

    @property
    def device(self) -> str:
        """The device's name, as in DEVICES."""

    @property
    def provider(self) -> str:
        """Library, version and provider, for the summary."""

    @property
    def callers(self) -> int:
        """How many threads should call at once."""

    @property
    def batch(self) -> int:
        """Patches per call."""

    def probabilities(self, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Probabilities of the patches round `centers` (n, 2) of `cube` (rows, cols, bands)."""


@dataclass(frozen=True)
class CpuEngine:
    """ONNX Runtime on the CPU, with one thread per caller."""

    session: Any
    callers: int
    batch: int
    device: str = "cpu"

    @property
    def provider(self) -> str:
        return f"ONNX Runtime {import_onnxruntime().__version__} {self.session.get_providers()[0]}"

    def probabilities(self, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """One call of the graph, in the caller's thread."""
        return run_graph(self.session, cube, centers)


def make_engine(
    bundle: Bundle, device: Device = "auto", threads: int = 0, batch: int = 0, precision: Precision = "auto"
) -> Engine:
    """The engine for a device, self-checked; `auto` uses the fastest that works. 0 threads means all cores."""
    return choose_engine(bundle, device, threads, batch, precision)[0]


def choose_engine(
    bundle: Bundle, device: Device = "auto", threads: int = 0, batch: int = 0, precision: Precision = "auto"
) -> tuple[Engine, list[str]]:
    """An engine as by `make_engine`, and why each engine that would come before it is not used."""
    if threads < 0 or batch < 0:
        raise OptionsUnusable("threads and batch must be 1 or more, or 0 for the default")
    if device not in DEVICES:
        raise OptionsUnusable(f"device must be one of {', '.join(DEVICES)}, not {device}")
    if precision not in PRECISIONS:
        raise OptionsUnusable(f"precision must be one of {', '.join(PRECISIONS)}, not {precision}")
    reasons: list[str] = []
    for candidate in candidates(device, bundle):
        report = engine_report(candidate, bundle)
        try:
            if report.is_broken:
                raise NotReady(report.failure)
            return open_engine(bundle, candidate, threads, batch, precision), reasons
        except NotReady as error:
            reasons.append(str(error))
    raise NotReady("; ".join(reasons))


def check_bundle(bundle: Bundle, device: str) -> None:
    """Run a bundle's self-check on a device; raises BundleRefused."""
    engine = _start_engine(bundle, device, threads=1, batch=0)
    replay_check(engine.probabilities, bundle.manifest, bundle.path.name)


def open_engine(bundle: Bundle, device: str, threads: int, batch: int, precision: Precision = "float32") -> Engine:
    """The engine for a device in this process, self-checked, without a probe."""
    engine = _start_engine(bundle, device, threads, batch, precision)
    tolerance = CHECK_TOLERANCE if precision_of(engine.provider) == "float32" else BFLOAT16_TOLERANCE
    try:
        replay_check(engine.probabilities, bundle.manifest, bundle.path.name, tolerance)
    except BundleRefused as error:
        raise NotReady(f"{engine.provider} does not reproduce the bundle's reference output: {error}") from error
    return engine


def _start_engine(bundle: Bundle, device: str, threads: int, batch: int, precision: Precision = "float32") -> Engine:
    callers = threads or cores()
    if device == "fused":
        return FusedEngine.open(bundle, callers, batch or CPU_BATCH, settle_precision(bundle, precision))
    if precision == "bfloat16":
        raise NotReady(f"{device} computes in float32 only: for bfloat16 use the device fused, or precision auto")
    if device in PROVIDERS:
        return GpuEngine.open(bundle, device, batch)
    if device == "openvino":
        if importlib.util.find_spec("openvino") is None:
            raise NotReady("OpenVINO is not installed: pip install 'hyperscene[cpu]', or use the device cpu")
        return OpenVinoEngine(bundle.content, callers, batch or CPU_BATCH)
    return CpuEngine(open_session(bundle.content, bundle.path.name, threads=1), callers, batch or CPU_BATCH)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux: may be fewer than all cores
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
