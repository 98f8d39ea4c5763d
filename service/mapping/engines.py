"""Engines: what runs a bundle's graph. One small contract; ONNX Runtime and OpenVINO behind it."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from model.bundle import Bundle, BundleRefused, import_onnxruntime, open_session, replay_check, run_graph
from service.errors import NotReady, OptionsUnusable
from service.mapping.gpu import PROVIDERS, GpuEngine
from service.mapping.vino import OpenVinoEngine

Device = Literal["auto", "cpu", "openvino", "cuda", "tensorrt"]
DEVICES: tuple[Device, ...] = get_args(Device)

# Small calls keep what a layer writes in the caches, larger ones share more of a window's pixels. With OpenVINO at
# stride 1, against 16 a call: 8 ran 3 % faster, 4 ran 5 % and 32 ran 3 % slower; at stride 4 with 200 bands 8 ran 5 %
# slower (interleaved, 2 cores of an AMD EPYC).
CPU_BATCH = 16


class Engine(Protocol):
    """A bundle, ready to answer; safe to call from `callers` threads at once."""

    @property
    def device(self) -> str:
        """The device's name, as in DEVICES."""

    @property
    def provider(self) -> str:
        """What runs the graph, for the record."""

    @property
    def callers(self) -> int:
        """How many threads should call at once."""

    @property
    def batch(self) -> int:
        """Patches a call."""

    def probabilities(self, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Probabilities of the patches round `centers` (n, 2) of `cube` (rows, cols, bands)."""


@dataclass(frozen=True)
class CpuEngine:
    """ONNX Runtime on the processor: as many callers as threads, each with one thread of its own."""

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


def make_engine(bundle: Bundle, device: Device = "auto", threads: int = 0, batch: int = 0) -> Engine:
    """The engine for a device, self-checked; `auto` takes the fastest that works. 0 threads are all cores."""
    if threads < 0 or batch < 0:
        raise OptionsUnusable("threads and batch are counts: give 1 or more, or 0 to have them chosen")
    if device not in DEVICES:
        raise OptionsUnusable(f"device must be one of {', '.join(DEVICES)}, not {device}")
    if device != "auto":
        return _open_engine(bundle, device, threads, batch)
    # OpenVINO ran this network 1.2 to 1.5 times as fast as ONNX Runtime's own processor kernels, on 2 cores of an AMD
    # EPYC; `hyperscene bench` measures both.
    for candidate in ("cuda", "openvino"):
        try:
            return _open_engine(bundle, candidate, threads, batch)
        except NotReady:
            continue
    return _open_engine(bundle, "cpu", threads, batch)


def _open_engine(bundle: Bundle, device: str, threads: int, batch: int) -> Engine:
    callers = threads or cores()
    engine: Engine
    if device in PROVIDERS:
        engine = GpuEngine.open(bundle, device, batch)
    elif device == "openvino":
        if importlib.util.find_spec("openvino") is None:
            raise NotReady("OpenVINO is not installed: pip install 'hyperscene[cpu]', or ask for the device cpu")
        engine = OpenVinoEngine(bundle.content, callers, batch or CPU_BATCH)
    else:
        engine = CpuEngine(open_session(bundle.content, bundle.path.name, threads=1), callers, batch or CPU_BATCH)
    try:
        replay_check(engine.probabilities, bundle.manifest, bundle.path.name)
    except BundleRefused as error:
        raise NotReady(f"{engine.provider} does not give the bundle's own answers: {error}") from error
    return engine


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux knows better than the count of all cores
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
