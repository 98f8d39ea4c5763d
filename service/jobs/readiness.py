"""Whether jobs can be run now, and why not."""

from __future__ import annotations

import time
from shutil import disk_usage

from hyperscene.service.jobs.records import WorkerRecord
from hyperscene.service.jobs.store import Store
from hyperscene.service.settings import Settings


def not_ready_reasons(settings: Settings, store: Store) -> list[str]:
    """Why no job can be run right now; empty if one can."""
    reasons, now = [], time.time()
    workers = store.workers()
    alive = [worker for worker in workers if worker.state == "ready" and now - worker.heartbeat < settings.lease_s]
    if not alive:
        reasons += [worker.reason or _worker_reason(worker, now) for worker in workers]
        reasons += [] if workers else ["no worker is running yet"]
    free = disk_usage(settings.data).free
    if free < settings.min_free_bytes:
        reasons.append(f"{free} bytes of disk are free, but {int(settings.min_free_bytes)} must stay free")
    if not store.is_writable():
        reasons.append("the store cannot be written: its disk is full, or another process locks it")
    return list(dict.fromkeys(reasons))  # several workers may say the same


def engine_warnings(store: Store) -> list[str]:
    """Why engines are left out although others serve."""
    return list(dict.fromkeys(reason for worker in store.workers() for reason in worker.left_out))


def _worker_reason(worker: WorkerRecord, now: float) -> str:
    if worker.state == "ready":
        return f"worker {worker.name} has had no heartbeat for {now - worker.heartbeat:.0f} s"
    return f"worker {worker.name} is {worker.state}"
