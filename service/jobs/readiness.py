"""Readiness: why no work can be done right now."""

from __future__ import annotations

import time
from shutil import disk_usage

from service.jobs.records import WorkerRecord
from service.jobs.store import Store
from service.settings import Settings


def not_ready_reasons(settings: Settings, store: Store) -> list[str]:
    """Why no work can be done right now; nothing where it can."""
    reasons, now = [], time.time()
    workers = store.workers()
    alive = [worker for worker in workers if worker.state == "ready" and now - worker.heartbeat < settings.lease_s]
    if not alive:
        reasons += [worker.reason or _unfit(worker, now) for worker in workers]
        reasons += [] if workers else ["no worker is running yet"]
    free = disk_usage(settings.data).free
    if free < settings.min_free_bytes:
        reasons.append(f"{free} bytes of disk are free, and {int(settings.min_free_bytes)} have to stay free")
    if not store.is_writable():
        reasons.append("the store cannot be written: its disk is full, or another process holds it")
    return list(dict.fromkeys(reasons))  # several workers may say the same


def _unfit(worker: WorkerRecord, now: float) -> str:
    if worker.state == "ready":
        return f"worker {worker.name} has been silent for {now - worker.heartbeat:.0f} s"
    return f"worker {worker.name} is {worker.state}"
