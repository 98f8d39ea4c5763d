"""The supervisor: starts a worker process for each device, and a new one when a worker ends."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hyperscene.child_process import module_command
from hyperscene.model.bundle import Bundle, BundleRefused, read_bundle
from hyperscene.model.probing import CRASH_SIGNALS
from hyperscene.service.jobs.database import retry_write
from hyperscene.service.jobs.devices import CLUSTER
from hyperscene.service.jobs.disk import drop_job
from hyperscene.service.jobs.in_flight import read_in_flight
from hyperscene.service.jobs.models import Models
from hyperscene.service.jobs.records import TRAINING
from hyperscene.service.jobs.store import Store
from hyperscene.service.mapping.engine_health import candidates, engine_report
from hyperscene.service.mapping.engines import cores
from hyperscene.service.settings import Settings, child_environment

log = logging.getLogger("hyperscene.supervisor")

WORKER, TRAINING_WORKER = "hyperscene.service.jobs.worker", "hyperscene.service.jobs.train_worker"
SHORT_LIFE_S, SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 0.2, 10.0
POLL_EVERY_S = 1.0
START_S = 60.0  # until a worker's first heartbeat


@dataclass(frozen=True)
class Slot:
    """A worker process to keep running: its name, its device, and its share of the cores."""

    name: str
    device: str
    threads: int


def plan_slots(devices: tuple[str, ...], threads: int) -> list[Slot]:
    """A slot for each device; those on CPUs share the cores."""
    on_cpu = [index for index, device in enumerate(devices) if device.partition(":")[0] not in ("cuda", "tensorrt")]
    share = max(1, (threads or cores()) // max(1, len(on_cpu)))
    return [
        Slot(f"{device.replace(':', '-')}-{index}", device, share if index in on_cpu else 0)
        for index, device in enumerate(devices)
    ]


def cluster_slots(jobs: int) -> list[Slot]:
    """A slot for each job that shares the cluster."""
    return [Slot(f"{CLUSTER}-{index}", CLUSTER, 0) for index in range(jobs)]


class Supervisor:
    """Keeps the workers running; one thread for each waits for its end."""

    def __init__(self, settings: Settings, store: Store, models: Models) -> None:
        self._settings = settings
        self._store = store
        self._models = models
        self._is_stopping = threading.Event()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self.slots = (
            cluster_slots(settings.cluster_jobs) if settings.cluster else plan_slots(settings.devices, settings.threads)
        )
        self.training_slots = [Slot(f"train-{index}", TRAINING, 0) for index in range(settings.training_processes)]

    def start(self) -> None:
        """Start every worker."""
        for slot in (*self.slots, *self.training_slots):
            thread = threading.Thread(
                target=self._keep_alive, args=(slot,), name=f"hyperscene-{slot.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def wake(self) -> None:
        """Have every worker check the store now."""
        for child in list(self._children.values()):
            try:
                assert child.stdin is not None
                child.stdin.write(b"\n")
                child.stdin.flush()
            except (OSError, ValueError):  # it ended: its thread handles that
                continue

    def ask_to_stop(self) -> None:
        """Send every worker SIGTERM; returns at once."""
        self._is_stopping.set()
        for child in list(self._children.values()):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)

    def release_jobs(self) -> None:
        """Release the jobs of an earlier server."""
        for job in self._store.release_after_server_crash(self._read_in_flight(), self._settings.keep_results_s):
            drop_job(self._settings, self._store, job)

    def stop(self, within_s: float) -> None:
        """End every worker, with SIGKILL when the time is over."""
        self.ask_to_stop()
        deadline = time.monotonic() + within_s
        for child in list(self._children.values()):
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))

    def _keep_alive(self, slot: Slot) -> None:
        """Run one worker after another in this slot."""
        pause_s = SHORTEST_PAUSE_S
        while not self._is_stopping.is_set():
            began = time.monotonic()
            try:
                self._run_once(slot)
            except Exception:  # no process can be started, or the store is locked: tried again
                log.exception("worker %s cannot be run", slot.name, extra={"worker": slot.name})
            is_short = time.monotonic() - began < SHORT_LIFE_S
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if is_short else SHORTEST_PAUSE_S
            self._is_stopping.wait(pause_s)

    def _run_once(self, slot: Slot) -> None:
        self._touch(slot)
        child = self._spawn(slot)
        self._children[slot.name] = child
        try:
            if self._is_stopping.is_set():
                child.terminate()
            code = self._wait_for_end(slot, child)
        finally:
            if child.poll() is None:  # a slot never has two workers
                child.kill()
                child.wait()
        if self._is_stopping.is_set():
            return
        log.error("worker %s ended with %s: starting another", slot.name, code, extra={"worker": slot.name})
        if -code in CRASH_SIGNALS and (engine := self._broken_engine(slot)):
            self._retry_write(lambda: self._store.release_after_engine_crash(slot.name, engine))
            return
        failed = self._retry_write(
            lambda: self._store.release_after_worker_crash(
                slot.name, self._read_in_flight(), self._settings.keep_results_s
            )
        )
        for job in failed or []:
            drop_job(self._settings, self._store, job)

    def _broken_engine(self, slot: Slot) -> str | None:
        """The engine that a crashed worker used or was opening, if it fails a new probe."""
        if slot.device in (CLUSTER, TRAINING):
            return None
        used = [worker.device for worker in self._store.workers() if worker.name == slot.name]
        bundle = self._bundle_in_use(slot)
        for engine in candidates((used[0] if used else slot.device).partition(":")[0], bundle):
            report = engine_report(engine, bundle, is_fresh=True)
            if report.is_broken:
                log.error("%s", report.failure, extra={"worker": slot.name})
                return engine
        return None

    def _bundle_in_use(self, slot: Slot) -> Bundle | None:
        """The bundle that a crashed worker was running or loading; None if it cannot be read any more."""
        job = self._store.job_of(slot.name)
        model = (self._models.of_job(job) if job else None) or self._models.default
        try:
            return read_bundle(model.path)
        except BundleRefused:
            return None

    def _touch(self, slot: Slot) -> None:
        path = self._settings.heartbeat_file(slot.name)
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def _wait_for_end(self, slot: Slot, child: subprocess.Popen[bytes]) -> int:
        """A worker's exit code; a worker without a heartbeat is killed."""
        path = self._settings.heartbeat_file(slot.name)
        began = path.stat().st_mtime
        while True:
            try:
                return child.wait(POLL_EVERY_S)
            except subprocess.TimeoutExpired:
                heartbeat = path.stat().st_mtime
                patience_s = self._settings.lease_s if heartbeat > began else max(START_S, self._settings.lease_s)
                if time.time() - heartbeat > patience_s and not self._is_stopping.is_set():
                    log.error("worker %s has no heartbeat: ending it", slot.name, extra={"worker": slot.name})
                    child.kill()

    def _spawn(self, slot: Slot) -> subprocess.Popen[bytes]:
        environment = child_environment()
        _, _, number = slot.device.partition(":")
        if number:  # the worker sees this GPU and no other
            environment["CUDA_VISIBLE_DEVICES"] = number
        # In its own session: Ctrl-C goes to the server only, which stops its workers.
        child = subprocess.Popen(
            module_command(TRAINING_WORKER if slot.device == TRAINING else WORKER), stdin=subprocess.PIPE,
            env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps(self._start_message(slot)).encode() + b"\n")
            child.stdin.flush()
            os.set_blocking(child.stdin.fileno(), False)  # a worker that does not read blocks nothing
        except OSError:  # it ended before it read the message
            pass
        return child

    def _start_message(self, slot: Slot) -> dict[str, Any]:
        return {
            "settings": self._settings.model_dump(mode="json", exclude={"api_keys"}),
            "name": slot.name,
            "device": slot.device,
            "threads": slot.threads,
            "model": self._models.default.name,
            "bundles": {name: str(model.path) for name, model in self._models.by_name.items()},
        }

    def _read_in_flight(self) -> dict[str, frozenset[int]]:
        """The positions that each attempt had in flight, by its token."""
        return read_in_flight(self._settings.data / "jobs")

    def _retry_write(self, work: Callable[[], Any]) -> Any:
        return retry_write(work, self._is_stopping)
