"""What a worker computes with: an engine of its own, or the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from model.bundle import Bundle, load_bundle
from service.errors import NotReady
from service.mapping.classify import Crew
from service.mapping.engines import Device, Engine, make_engine
from service.settings import Settings

CLUSTER = "cluster"  # the device that is several machines
KEPT_ENGINES = 4

Note = Callable[[str], None]


class Devices(Protocol):
    """Whatever answers for a model."""

    @property
    def trouble(self) -> str | None:
        """Why nothing can be computed right now, where that may pass."""

    def members(self) -> list[dict[str, Any]]:
        """Of a cluster: every worker by name, and why it is not used; None where it is."""

    def check(self, model: str) -> tuple[str, str]:
        """The device and what runs a model on it; raises why nothing can."""

    def take(self, model: str, note: Note, is_over: Callable[[], bool]) -> tuple[Bundle, Engine | Crew]:
        """A model and what runs it, for one job; what happens on the way is noted."""


class Shelf:
    """The bundles that are served, by name; the last ones used are kept."""

    def __init__(self, bundles: dict[str, Path]) -> None:
        self._paths = bundles
        self._kept: dict[str, Bundle] = {}

    def find(self, model: str) -> Bundle:
        """A bundle, self-checked."""
        if model not in self._paths:
            raise NotReady(f"the model {model} is no longer served: send the scene again with another one")
        if model not in self._kept:
            while len(self._kept) >= KEPT_ENGINES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[model] = load_bundle(self._paths[model])
        return self._kept[model]


class OwnDevice:
    """One device of this machine."""

    trouble = None

    def __init__(self, settings: Settings, device: str, threads: int, shelf: Shelf) -> None:
        self._kind: Device = device.partition(":")[0]  # type: ignore[assignment]
        self._threads = threads
        self._batch = settings.batch
        self._shelf = shelf
        self._engines: dict[str, Engine] = {}  # by the bundle's sha256

    def members(self) -> list[dict[str, Any]]:
        """None: it is one machine."""
        return []

    def check(self, model: str) -> tuple[str, str]:
        """The device and what runs a model on it."""
        engine = self._engine(self._shelf.find(model))
        return engine.device, engine.provider

    def take(self, model: str, note: Note, is_over: Callable[[], bool]) -> tuple[Bundle, Engine]:
        """A model and its engine."""
        bundle = self._shelf.find(model)
        return bundle, self._engine(bundle)

    def _engine(self, bundle: Bundle) -> Engine:
        if bundle.sha256 not in self._engines:
            while len(self._engines) >= KEPT_ENGINES:
                self._engines.pop(next(iter(self._engines)))
            self._engines[bundle.sha256] = make_engine(bundle, self._kind, self._threads, self._batch)
        return self._engines[bundle.sha256]


class ClusterDevice:
    """All workers of a cluster; nothing of Dask is imported without it."""

    def __init__(self, settings: Settings, shelf: Shelf) -> None:
        try:
            from service.cluster.crew import Cluster
        except ModuleNotFoundError as error:
            raise NotReady(f"a cluster needs the package {error.name}: pip install 'hyperscene[cluster]'") from error
        self._cluster = Cluster(settings)
        self._shelf = shelf

    @property
    def trouble(self) -> str | None:
        """Why no worker of the cluster can be used."""
        return self._cluster.trouble

    def members(self) -> list[dict[str, Any]]:
        """Every worker that the scheduler lists."""
        return self._cluster.members()

    def check(self, model: str) -> tuple[str, str]:
        """What the cluster's workers run."""
        found = self._cluster.choice(self._shelf.find(model))
        if found is None:
            bundle = self._shelf.find(model)
            reason = self.trouble or self._cluster.refusal(bundle) or "the cluster's workers are being given the bundle"
            raise NotReady(reason)
        return CLUSTER, found.provider

    def take(self, model: str, note: Note, is_over: Callable[[], bool]) -> tuple[Bundle, Crew]:
        """A model and the workers that have it; waits until there are some."""
        bundle = self._shelf.find(model)
        return bundle, self._cluster.crew(bundle, note, is_over)


def open_device(settings: Settings, device: str, threads: int, bundles: dict[str, Path]) -> Devices:
    """What a slot's worker computes with."""
    shelf = Shelf(bundles)
    return ClusterDevice(settings, shelf) if device == CLUSTER else OwnDevice(settings, device, threads, shelf)
