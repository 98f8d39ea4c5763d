"""How the service is: for people, for probes, for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from shutil import disk_usage

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from service.api.context import OwnerDep, Service, ServiceDep
from service.api.documents import Health, Live, Ready
from service.api.problems import problems
from service.errors import NotReady
from service.jobs.store import BUCKETS_S

router = APIRouter(tags=["health"])

COUNTERS = {
    "jobs_submitted": ("Jobs that were accepted", ()),
    "jobs_finished": ("Jobs by how they ended, and why they failed", ("status", "reason")),
    "patches": ("Patches that the network was asked about, by jobs that were mapped", ()),
    "cells": ("Cells of the lattice that jobs have behind them, as they go: a patch each, where there is data", ()),
    "pixels": ("Pixels of finished maps: valid, or without data", ("kind",)),
    "upload_bytes": ("Bytes of scenes that came in", ()),
    "job_resumes": ("Times that a job was taken up again", ()),
}
HISTOGRAMS = {
    "job_seconds": ("From a job's first start to its end", ()),
    "job_queue_seconds": ("From a job's acceptance to its first start", ()),
    "stage_seconds": ("Busy time of a stage in a finished job", ("stage",)),
}


@router.get("/livez", summary="Whether the process answers", responses={500: problems()[500]})
async def livez() -> Live:
    """Always, unless it hangs."""
    return Live()


@router.get(
    "/readyz", summary="Whether work can be done", responses={status: problems()[status] for status in (500, 503)}
)
async def readyz(service: ServiceDep) -> Ready:
    """The bundle is self-checked, a worker is alive, the store can be written, and there is disk."""
    if reasons := await service.not_ready_reasons():
        raise NotReady("; ".join(reasons))
    return Ready()


@router.get("/health", summary="The service on one page", responses=problems())
async def health(service: ServiceDep, owner: OwnerDep) -> Health:
    """Version, devices, models, queue, disk."""
    return await asyncio.to_thread(_health, service, await service.not_ready_reasons())


def _health(service: Service, reasons: list[str]) -> Health:
    settings, store = service.settings, service.store
    disk = disk_usage(settings.data)
    now = time.time()
    workers = [
        {**asdict(worker), "heartbeat_age_s": round(now - worker.heartbeat, 1)}
        for worker in store.workers()
    ]  # fmt: skip
    return Health(
        status="not ready" if reasons else "ready",
        reasons=reasons,
        version=version("hyperscene"),
        uptime_s=round(now - service.began, 1),
        workers=workers,
        models=[*service.models.by_name],
        jobs=store.count_jobs(),
        disk={"free_bytes": disk.free, "total_bytes": disk.total, "min_free_bytes": int(settings.min_free_bytes)},
    )


@router.get(
    "/metrics",
    summary="For Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "Text exposition",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": "hyperscene_jobs_pending 0.0\n"}},
        },
        **problems(),
    },
)
async def metrics(service: ServiceDep, owner: OwnerDep) -> Response:
    """Counters survive a restart: they live in the store."""
    registry = CollectorRegistry()
    registry.register(_Collector(service, not await service.not_ready_reasons()))
    text = await asyncio.to_thread(generate_latest, registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class _Collector(Collector):
    """The store's numbers, and the disk's, as Prometheus has them."""

    def __init__(self, service: Service, is_ready: bool) -> None:
        self._settings = service.settings
        self._store = service.store
        self._models = service.models
        self._is_ready = is_ready

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        counts = self._store.counts()
        for name, (words, labels) in COUNTERS.items():
            counter = CounterMetricFamily(f"hyperscene_{name}", words, labels=labels)
            found = [(given, value) for counted, given, value in counts if counted == f"{name}_total"]
            for given, value in found or ([] if labels else [({}, 0.0)]):
                counter.add_metric([given[label] for label in labels], value)
            yield counter
        for name, (words, labels) in HISTOGRAMS.items():
            yield self._histogram(name, words, labels, counts)
        yield from self._job_gauges()
        yield from self._worker_gauges()
        yield from self._disk_gauges()

    def _histogram(
        self, name: str, words: str, labels: tuple[str, ...], counts: list[tuple[str, dict[str, str], float]]
    ) -> Metric:
        histogram = HistogramMetricFamily(f"hyperscene_{name}", words, labels=labels)
        sums = {
            tuple(given[label] for label in labels): value
            for counted, given, value in counts
            if counted == f"{name}_sum"
        }
        for key, total in sums.items():
            buckets = {
                given["le"]: value
                for counted, given, value in counts
                if counted == f"{name}_bucket" and tuple(given[label] for label in labels) == key
            }
            histogram.add_metric(list(key), _cumulative(buckets), total)
        return histogram

    def _job_gauges(self) -> Iterator[Metric]:
        jobs = self._store.count_jobs()
        yield GaugeMetricFamily("hyperscene_ready", "Whether work can be done: 1, or 0", float(self._is_ready))
        yield GaugeMetricFamily("hyperscene_jobs_pending", "Jobs that wait", jobs.get("accepted", 0))
        yield GaugeMetricFamily("hyperscene_jobs_running", "Jobs that are being mapped", jobs.get("running", 0))
        yield GaugeMetricFamily(
            "hyperscene_jobs_pending_limit", "Jobs that may wait, before more are refused", self._settings.max_waiting
        )

    def _worker_gauges(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "hyperscene_worker_heartbeat_age_seconds", "Since a worker was last heard of", labels=["worker"]
        )
        for worker in self._store.workers():
            age.add_metric([worker.name], max(0.0, time.time() - worker.heartbeat))
        yield age
        yield self._members()
        info = GaugeMetricFamily("hyperscene_model_info", "What runs which model", labels=["model", "provider"])
        for provider in {worker.provider for worker in self._store.workers() if worker.provider}:
            for model in self._models.by_name:
                info.add_metric([model, provider], 1)
        yield info

    def _members(self) -> Metric:
        """A cluster's workers, as the connection that sees most of them does; nothing without a cluster."""
        gauge = GaugeMetricFamily("hyperscene_cluster_workers", "Workers of the cluster, by use", labels=["used"])
        if self._settings.cluster:
            members = max((worker.members for worker in self._store.workers()), key=len, default=[])
            used = sum(member["reason"] is None for member in members)
            gauge.add_metric(["yes"], used)
            gauge.add_metric(["no"], len(members) - used)
        return gauge

    def _disk_gauges(self) -> Iterator[Metric]:
        disk = disk_usage(self._settings.data)
        yield GaugeMetricFamily("hyperscene_disk_free_bytes", "Free on the data folder's disk", disk.free)
        yield GaugeMetricFamily("hyperscene_disk_total_bytes", "Size of the data folder's disk", disk.total)
        least = int(self._settings.min_free_bytes)
        yield GaugeMetricFamily("hyperscene_disk_min_free_bytes", "Below this much free, no work is taken", least)


def _cumulative(buckets: dict[str, float]) -> list[tuple[str, float]]:
    """Every bucket of the histogram, the empty ones too."""
    edges = [*(str(float(edge)) for edge in BUCKETS_S), "+Inf"]
    filled, last = [], 0.0
    for edge in edges:
        last = max(last, buckets.get(edge, 0.0))
        filled.append((edge, last))
    return filled
