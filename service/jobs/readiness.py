"""Readiness: why no work can be done right now."""

from __future__ import annotations

import time
from shutil import disk_usage

from service.errors import ServiceError
from service.jobs.store import Store
from service.settings import Settings


def not_ready_reasons(settings: Settings, store: Store) -> list[str]:
    """Why no work can be done right now; nothing where it can."""
    reasons, now = [], time.time()
    workers = store.workers()
    alive = [worker for worker in workers if worker.state == "ready" and now - worker.heartbeat < settings.lease_s]
    if not alive:
        reasons += [worker.reason or f"worker {worker.name} is {worker.state}" for worker in workers]
        reasons += [] if workers else ["no worker is running yet"]
    free = disk_usage(settings.data).free
    if free < settings.min_free_bytes:
        reasons.append(f"{free} bytes of disk are free, and {int(settings.min_free_bytes)} have to stay free")
    try:
        store.count("readiness_probes", 1)
    except (ServiceError, OSError) as error:
        reasons.append(f"the store cannot be written: {error}")
    return reasons
