"""The state of the service: /health for people, /livez and /readyz for probes, /metrics for Prometheus."""

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

from hyperscene.errors import NotReady
from hyperscene.service.api.context import OwnerDep, Service, ServiceDep
from hyperscene.service.api.documents import Health, LiveStatus, ReadyStatus
from hyperscene.service.api.problems import problems
from hyperscene.service.jobs.counters import BUCKETS_S

router = APIRouter(tags=["health"])

COUNTERS = {
    "jobs_submitted": ("Accepted jobs", ()),
    "jobs_finished": ("Finished jobs, by status and reason of failure", ("status", "reason")),
    "patches": ("Patches that the network classified, of successful jobs", ()),
    "cells": ("Patch centres processed so far, with and without data, of all jobs", ()),
    "pixels": ("Pixels of finished maps, by kind: valid or without data", ("kind",)),
    "upload_bytes": ("Bytes of uploaded scenes", ()),
    "job_resumes": ("Times that a job was resumed after an interruption", ()),
}
HISTOGRAMS = {
    "job_seconds": ("Seconds from a job's first start to its end", ()),
    "job_queue_seconds": ("Seconds from a job's acceptance to its first start", ()),
    "stage_seconds": ("Busy seconds of a stage in a finished job", ("stage",)),
}


@router.get("/livez", summary="Liveness probe", responses={500: problems()[500]})
async def livez() -> LiveStatus:
    """Responds with 200 as long as the process is alive."""
    return LiveStatus()


@router.get("/readyz", summary="Readiness probe", responses={status: problems()[status] for status in (500, 503)})
async def readyz(service: ServiceDep) -> ReadyStatus:
    """Ready: the bundle passed its self-check, a worker is alive, the store is writable, and enough disk is free."""
    if reasons := await service.not_ready_reasons():
        raise NotReady("; ".join(reasons))
    return ReadyStatus(warnings=await service.engine_warnings())


@router.get("/health", summary="State of the service", responses=problems())
async def health(service: ServiceDep, owner: OwnerDep) -> Health:
    """Version, workers and their devices, models, jobs and free disk."""
    return await asyncio.to_thread(_health, service, await service.not_ready_reasons(), await service.engine_warnings())


def _health(service: Service, reasons: list[str], warnings: list[str]) -> Health:
    settings, store = service.settings, service.store
    disk = disk_usage(settings.data)
    now = time.time()
    workers, training_workers = (
        [{**asdict(worker), "heartbeat_age_s": round(now - worker.heartbeat, 1)} for worker in found]
        for found in (store.workers(), store.training_workers())
    )
    return Health(
        status="not ready" if reasons else "ready",
        reasons=reasons,
        warnings=warnings,
        version=version("hyperscene"),
        uptime_s=round(now - service.started, 1),
        workers=workers,
        training_workers=training_workers,
        models=[*service.models.by_name],
        jobs=store.count_jobs(),
        disk={"free_bytes": disk.free, "total_bytes": disk.total, "min_free_bytes": int(settings.min_free_bytes)},
    )


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "Metrics in Prometheus' text format",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": "hyperscene_jobs_pending 0.0\n"}},
        },
        **problems(),
    },
)
async def metrics(service: ServiceDep, owner: OwnerDep) -> Response:
    """Metrics in Prometheus' text format. The counters are stored and survive a restart."""
    registry = CollectorRegistry()
    registry.register(_Collector(service, not await service.not_ready_reasons()))
    text = await asyncio.to_thread(generate_latest, registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class _Collector(Collector):
    """Metrics of the store, the workers and the disk."""

    def __init__(self, service: Service, is_ready: bool) -> None:
        self._settings = service.settings
        self._store = service.store
        self._models = service.models
        self._is_ready = is_ready

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        counts = self._store.counts()
        for name, (description, labels) in COUNTERS.items():
            counter = CounterMetricFamily(f"hyperscene_{name}", description, labels=labels)
            found = [(values, total) for stored, values, total in counts if stored == f"{name}_total"]
            for values, total in found or ([] if labels else [({}, 0.0)]):
                counter.add_metric([values[label] for label in labels], total)
            yield counter
        for name, (description, labels) in HISTOGRAMS.items():
            yield self._histogram(name, description, labels, counts)
        yield from self._job_gauges()
        yield from self._worker_gauges()
        yield from self._disk_gauges()

    def _histogram(
        self, name: str, description: str, labels: tuple[str, ...], counts: list[tuple[str, dict[str, str], float]]
    ) -> Metric:
        histogram = HistogramMetricFamily(f"hyperscene_{name}", description, labels=labels)
        sums = {
            tuple(values[label] for label in labels): total
            for stored, values, total in counts
            if stored == f"{name}_sum"
        }
        for key, total in sums.items():
            buckets = {
                values["le"]: count
                for stored, values, count in counts
                if stored == f"{name}_bucket" and tuple(values[label] for label in labels) == key
            }
            histogram.add_metric(list(key), _cumulative(buckets), total)
        return histogram

    def _job_gauges(self) -> Iterator[Metric]:
        jobs = self._store.count_jobs()
        yield GaugeMetricFamily("hyperscene_ready", "1 if the service is ready, else 0", float(self._is_ready))
        yield GaugeMetricFamily("hyperscene_jobs_pending", "Waiting jobs", jobs.get("accepted", 0))
        yield GaugeMetricFamily("hyperscene_jobs_running", "Running jobs", jobs.get("running", 0))
        yield GaugeMetricFamily(
            "hyperscene_jobs_pending_limit", "Maximum number of waiting jobs", self._settings.max_waiting
        )

    def _worker_gauges(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "hyperscene_worker_heartbeat_age_seconds", "Seconds since a worker's last heartbeat", labels=["worker"]
        )
        for worker in (*self._store.workers(), *self._store.training_workers()):
            age.add_metric([worker.name], max(0.0, time.time() - worker.heartbeat))
        yield age
        yield self._cluster_workers()
        info = GaugeMetricFamily("hyperscene_model_info", "Models and their providers", labels=["model", "provider"])
        for provider in {worker.provider for worker in self._store.workers() if worker.provider}:
            for model in self._models.by_name:
                info.add_metric([model, provider], 1)
        yield info

    def _cluster_workers(self) -> Metric:
        """The Dask cluster's workers, from the worker process that sees most of them; empty without a cluster."""
        gauge = GaugeMetricFamily("hyperscene_cluster_workers", "Cluster workers, used or not", labels=["used"])
        if self._settings.cluster:
            members = max((worker.members for worker in self._store.workers()), key=len, default=[])
            used = sum(member["reason"] is None for member in members)
            gauge.add_metric(["yes"], used)
            gauge.add_metric(["no"], len(members) - used)
        return gauge

    def _disk_gauges(self) -> Iterator[Metric]:
        disk = disk_usage(self._settings.data)
        yield GaugeMetricFamily("hyperscene_disk_free_bytes", "Free bytes of the data folder's disk", disk.free)
        yield GaugeMetricFamily("hyperscene_disk_total_bytes", "Size of the data folder's disk in bytes", disk.total)
        minimum = int(self._settings.min_free_bytes)
        yield GaugeMetricFamily("hyperscene_disk_min_free_bytes", "Free bytes required to accept jobs", minimum)


def _cumulative(buckets: dict[str, float]) -> list[tuple[str, float]]:
    """All buckets of the histogram, including empty ones, with cumulative counts."""
    edges = [*(str(float(edge)) for edge in BUCKETS_S), "+Inf"]
    cumulative, count = [], 0.0
    for edge in edges:
        count = max(count, buckets.get(edge, 0.0))
        cumulative.append((edge, count))
    return cumulative
