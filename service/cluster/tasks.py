"""What runs on a cluster's workers: bundles kept by their sha256, and strips of pixels classified by an engine.

Nothing here knows Dask. Refusals are returned, so that an exception always means a fault of the cluster.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import ServiceError, error_from_code
from hyperscene.lru import LruCache
from hyperscene.model.bundle import FORMAT_VERSION, Bundle, BundleRefused, parse_bundle
from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.classify import LocalClassifier, Run, StripInput
from hyperscene.service.mapping.devices import Device, UsedPrecision
from hyperscene.service.mapping.engines import Engine, choose_engine
from hyperscene.service.mapping.lattice import Plan, Strip
from hyperscene.service.mapping.prefetch import Cancelled, StageClock, Stop

OPTIONS_VARIABLE = "HYPERSCENE_ENGINE_OPTIONS"  # environment variable of a worker's process
KEPT_BUNDLES = 4
KEPT_STOPS = 1000


@dataclass(frozen=True)
class EngineOptions:
    """What a worker computes with."""

    device: Device = "auto"
    threads: int = 0
    batch: int = 0
    precision: UsedPrecision = "float32"  # the same on all workers: a map is made by many

    def to_variable(self) -> dict[str, str]:
        """As an environment variable for the worker's process."""
        return {OPTIONS_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_variable(cls) -> EngineOptions:
        """From this process's environment."""
        return cls(**json.loads(os.environ.get(OPTIONS_VARIABLE, "{}")))


TASKS_VERSION = 3  # counted up when the names or arguments of tasks change


def version_tag() -> str:
    """The tag that a worker needs to be used: the same package, task and bundle versions."""
    return f"hyperscene {version('hyperscene')}, tasks {TASKS_VERSION}, bundle format {FORMAT_VERSION}"


@dataclass(frozen=True)
class EngineInfo:
    """An engine that has loaded a bundle and passed its check."""

    device: str
    provider: str
    batch: int
    left_out: tuple[str, ...] = field(default=(), compare=False)  # why engines that come before it are not used


@dataclass(frozen=True)
class BundleMissing:
    """The worker does not have the bundle yet."""


@dataclass(frozen=True)
class Refusal:
    """A request that was refused or failed for a reason that a person can act on."""

    code: str
    detail: str

    @classmethod
    def of(cls, error: ServiceError) -> Refusal:
        return cls(error.code, str(error))

    @property
    def error(self) -> ServiceError:
        """The error as it was raised."""
        return error_from_code(self.code, self.detail)


@dataclass(frozen=True)
class StripRequest:
    """Batch rows of a scene's lattice with the pixels that their patches cover."""

    run_id: str
    sha256: str  # of the bundle
    plan: Plan  # without its strips
    batch_rows: list[int]
    pixels: PixelRows


@dataclass(frozen=True)
class StripPrediction:
    """Probabilities by batch row, and how long the network was busy."""

    probabilities: list[NDArray[np.float32]]  # as in Predictions
    seconds: float


_engines: LruCache[str, tuple[Bundle, Engine, EngineInfo]] = LruCache(KEPT_BUNDLES)  # by the bundle's sha256
_stops: LruCache[str, Stop] = LruCache(KEPT_STOPS)  # by run
_lock = threading.Lock()


def find_engine(sha256: str) -> EngineInfo | BundleMissing:
    """The engine that has loaded a bundle."""
    with _lock:
        kept = _engines.get(sha256)
    return BundleMissing() if kept is None else kept[2]


def receive_bundle(content: bytes, sha256: str, name: str) -> EngineInfo | Refusal:
    """Load a bundle that was sent, and check it."""
    if hashlib.sha256(content).hexdigest() != sha256:
        return Refusal("not_ready", f"the bundle {name} was damaged in transfer")
    options = EngineOptions.from_variable()
    try:
        bundle = parse_bundle(content, Path(name))
        engine, left_out = choose_engine(bundle, options.device, options.threads, options.batch, options.precision)
    except (ServiceError, BundleRefused) as error:
        return Refusal("not_ready", str(error))
    found = EngineInfo(engine.device, engine.provider, engine.batch, tuple(left_out))
    with _lock:
        return _engines.get_or_make(sha256, lambda: (bundle, engine, found))[2]


def predict_strip(request: StripRequest) -> StripPrediction | BundleMissing | Refusal:
    """Run the network on a strip."""
    with _lock:
        kept, stop = _engines.get(request.sha256), _stop_of(request.run_id)
    if kept is None:
        return BundleMissing()
    (bundle, engine, _), clock = kept, StageClock()
    run = Run(bundle.manifest, request.plan, clock, stop)
    try:
        classified = LocalClassifier(engine, run).classify(_strip_inputs(request))
        probabilities = [predictions.probabilities for strip in classified for predictions in strip.predictions]
        return StripPrediction(probabilities, clock.seconds.get("network", 0.0))
    except Cancelled:
        return Refusal("not_ready", "the job was stopped")
    except ServiceError as error:
        return Refusal.of(error)
    except MemoryError:
        return Refusal("inference_failed", "a worker ran out of memory: crop the scene, or give workers more memory")


def _strip_inputs(request: StripRequest) -> Generator[StripInput, None, None]:
    pixels = request.pixels
    for batch_row in request.batch_rows:
        strip = Strip(0, pixels.top, pixels.bottom, range(batch_row, batch_row + 1))
        yield StripInput(strip, strip.batch_rows, pixels)


def stop_run(run_id: str) -> None:
    """Stop what is being computed for a run, and refuse its later requests."""
    with _lock:
        _stop_of(run_id).leave()


def _stop_of(run_id: str) -> Stop:
    return _stops.get_or_make(run_id, Stop)
