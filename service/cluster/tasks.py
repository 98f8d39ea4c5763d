"""What runs on a cluster's workers: bundles kept by their sha256, and blocks of pixels answered by an engine.

Nothing here knows Dask. Refusals are answers, so that whatever is raised is the cluster's trouble and not the scene's.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Generator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.bundle import FORMAT_VERSION, Bundle, BundleRefused, parse_bundle
from service.errors import ServiceError, error_of
from service.mapping.ahead import Cancelled, StageClock, Stop
from service.mapping.classify import Block, LocalClassifier, Run
from service.mapping.engines import Device, Engine, make_engine
from service.mapping.lattice import Plan, Strip
from service.mapping.view import Pixels

EQUIPMENT = "HYPERSCENE_EQUIPMENT"  # the variable by which a worker's process learns what it has
KEPT_BUNDLES = 4
KEPT_STOPS = 1000


@dataclass(frozen=True)
class Equipment:
    """What a worker computes with."""

    device: Device = "auto"
    threads: int = 0
    batch: int = 0

    def to_variable(self) -> dict[str, str]:
        """As a variable of the worker's process."""
        return {EQUIPMENT: json.dumps(asdict(self))}

    @classmethod
    def from_variable(cls) -> Equipment:
        """As this process was told."""
        return cls(**json.loads(os.environ.get(EQUIPMENT, "{}")))


def tag() -> str:
    """What a worker has to carry to be used: the same package, and bundles of the same format."""
    return f"hyperscene {version('hyperscene')}, bundle format {FORMAT_VERSION}"


@dataclass(frozen=True)
class Ready:
    """An engine that has a bundle and gives its answers."""

    device: str
    provider: str
    batch: int


@dataclass(frozen=True)
class Missing:
    """The bundle has not come here yet."""


@dataclass(frozen=True)
class Refused:
    """Work that was refused or failed for a reason that a person can act on."""

    code: str
    detail: str

    @classmethod
    def because(cls, error: ServiceError) -> Refused:
        return cls(error.code, str(error))

    @property
    def error(self) -> ServiceError:
        """The refusal as it was raised."""
        return error_of(self.code, self.detail)


@dataclass(frozen=True)
class Question:
    """Groups of a scene's lattice with the pixels that their patches cover."""

    run_id: str
    sha256: str  # of the bundle
    plan: Plan  # without its strips
    groups: list[int]
    pixels: Pixels


@dataclass(frozen=True)
class Answer:
    """What the network said, group by group, and for how long it was busy."""

    probabilities: list[NDArray[np.float32]]  # as in Answers
    seconds: float


_engines: dict[str, tuple[Bundle, Engine]] = {}  # by the bundle's sha256
_stops: dict[str, Stop] = {}  # by run
_lock = threading.Lock()


def equip(sha256: str) -> Ready | Missing:
    """Whether the bundle is here."""
    with _lock:
        if sha256 not in _engines:
            return Missing()
        engine = _engines[sha256][1]
    return Ready(engine.device, engine.provider, engine.batch)


def keep_bundle(content: bytes, sha256: str, name: str) -> Ready | Missing | Refused:
    """Load a bundle that was sent, and try it."""
    if hashlib.sha256(content).hexdigest() != sha256:
        return Refused("not_ready", f"the bundle {name} was damaged on its way")
    equipment = Equipment.from_variable()
    try:
        bundle = parse_bundle(content, Path(name))
        engine = make_engine(bundle, equipment.device, equipment.threads, equipment.batch)
    except (ServiceError, BundleRefused) as error:
        return Refused("not_ready", str(error))
    with _lock:
        while len(_engines) >= KEPT_BUNDLES:
            _engines.pop(next(iter(_engines)))
        _engines[sha256] = bundle, engine
    return equip(sha256)


def answer_question(question: Question) -> Answer | Missing | Refused:
    """Ask the network about a block."""
    with _lock:
        kept, stop = _engines.get(question.sha256), _stop_of(question.run_id)
    if kept is None:
        return Missing()
    (bundle, engine), clock = kept, StageClock()
    run = Run(bundle.manifest, question.plan, clock, lambda done, total: None, stop)
    try:
        answered = LocalClassifier(engine, run).classify(_blocks(question))
        probabilities = [answers.probabilities for block in answered for answers in block.answers]
        return Answer(probabilities, clock.seconds.get("network", 0.0))
    except Cancelled:
        return Refused("not_ready", "the job was stopped")
    except ServiceError as error:
        return Refused.because(error)
    except MemoryError:
        return Refused("inference_failed", "a worker's memory ran out: crop the scene, or give workers more of it")


def _blocks(question: Question) -> Generator[Block, None, None]:
    pixels = question.pixels
    for group in question.groups:
        strip = Strip(0, pixels.top, pixels.bottom, range(group, group + 1))
        yield Block(strip, strip.groups, pixels)


def stop_run(run_id: str) -> None:
    """End what is being computed for a run, and do not begin what waits."""
    with _lock:
        _stop_of(run_id).leave()


def _stop_of(run_id: str) -> Stop:
    if run_id not in _stops:
        while len(_stops) >= KEPT_STOPS:
            _stops.pop(next(iter(_stops)))
        _stops[run_id] = Stop()
    return _stops[run_id]
