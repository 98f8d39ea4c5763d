"""What a worker computes with: an engine of this machine, or the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from hyperscene.errors import NotReady
from hyperscene.lru import LruCache
from hyperscene.model.bundle import Bundle, read_bundle
from hyperscene.service.mapping.classify import RemoteEngine
from hyperscene.service.mapping.devices import Device
from hyperscene.service.mapping.engines import Engine, choose_engine
from hyperscene.service.settings import Settings

CLUSTER = "cluster"  # the device that stands for several machines
KEPT_ENGINES = 4

Note = Callable[[str], None]


class WorkerDevice(Protocol):
    """Runs models for a worker."""

    @property
    def outage(self) -> str | None:
        """Why nothing can be computed right now, where that may pass."""

    def cluster_workers(self) -> list[dict[str, Any]]:
        """Every worker of a cluster by name, with the reason why it is not used, or None."""

    def check(self, model: str) -> tuple[str, str, list[str]]:
        """The device and the provider that run a model, and why others are not used; raises if none can."""

    def open_model(self, model: str, note: Note, is_over: Callable[[], bool]) -> tuple[Bundle, Engine | RemoteEngine]:
        """A bundle and its engine for one job; `note` adds to the job's events."""


class BundleCache:
    """The served bundles by name; those used last stay loaded."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self._paths = paths
        self._loaded: LruCache[str, Bundle] = LruCache(KEPT_ENGINES)

    def load(self, model: str) -> Bundle:
        """A bundle; its engine verifies its reference output."""
        if model not in self._paths:
            raise NotReady(f"the model {model} is no longer served: send the scene again with another one")
        return self._loaded.get_or_make(model, lambda: read_bundle(self._paths[model]))


class LocalDevice:
    """One device of this machine."""

    outage = None

    def __init__(self, settings: Settings, device: str, threads: int, bundles: BundleCache) -> None:
        self._kind: Device = device.partition(":")[0]  # type: ignore[assignment]
        self._threads = threads
        self._batch = settings.batch
        self._precision = settings.precision
        self._bundles = bundles
        # By the bundle's sha256: the engine, and why others are not used.
        self._engines: LruCache[str, tuple[Engine, list[str]]] = LruCache(KEPT_ENGINES)

    def cluster_workers(self) -> list[dict[str, Any]]:
        """None: it is one machine."""
        return []

    def check(self, model: str) -> tuple[str, str, list[str]]:
        """The device and the provider that run a model, and why other engines are not used."""
        engine, left_out = self._choose(self._bundles.load(model))
        return engine.device, engine.provider, left_out

    def open_model(self, model: str, note: Note, is_over: Callable[[], bool]) -> tuple[Bundle, Engine]:
        """A bundle and its engine."""
        bundle = self._bundles.load(model)
        engine, left_out = self._choose(bundle)
        for reason in left_out:
            note(reason)
        return bundle, engine

    def _choose(self, bundle: Bundle) -> tuple[Engine, list[str]]:
        return self._engines.get_or_make(
            bundle.sha256, lambda: choose_engine(bundle, self._kind, self._threads, self._batch, self._precision)
        )


class ClusterDevice:
    """All workers of a cluster; Dask is imported here only."""

    def __init__(self, settings: Settings, bundles: BundleCache) -> None:
        try:
            from hyperscene.service.cluster.remote_engine import Cluster
        except ModuleNotFoundError as error:
            raise NotReady(f"a cluster needs the package {error.name}: pip install 'hyperscene[cluster]'") from error
        self._cluster = Cluster(settings)
        self._bundles = bundles

    @property
    def outage(self) -> str | None:
        """Why no worker of the cluster can be used."""
        return self._cluster.outage

    def cluster_workers(self) -> list[dict[str, Any]]:
        """Every worker that the scheduler lists."""
        return self._cluster.list_workers()

    def check(self, model: str) -> tuple[str, str, list[str]]:
        """What the cluster's workers run, and why they do not use other engines."""
        bundle = self._bundles.load(model)
        found = self._cluster.choose_engine(bundle)
        if found is None:
            reason = self.outage or self._cluster.refusal(bundle) or "the cluster's workers are loading the bundle"
            raise NotReady(reason)
        return CLUSTER, found.provider, list(found.left_out)

    def open_model(self, model: str, note: Note, is_over: Callable[[], bool]) -> tuple[Bundle, RemoteEngine]:
        """A bundle and the workers that have loaded it; waits until there are some."""
        bundle = self._bundles.load(model)
        return bundle, self._cluster.engine(bundle, note, is_over)


def open_device(settings: Settings, device: str, threads: int, bundles: dict[str, Path]) -> WorkerDevice:
    """What a worker computes with."""
    cache = BundleCache(bundles)
    return ClusterDevice(settings, cache) if device == CLUSTER else LocalDevice(settings, device, threads, cache)
