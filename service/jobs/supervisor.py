"""The supervisor: starts a worker process for each device, and another one where a worker dies."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.jobs.devices import CLUSTER
from service.jobs.disk import drop_job
from service.jobs.models import Models
from service.jobs.store import Store, insist
from service.jobs.worker import Mark
from service.mapping.engines import cores
from service.settings import Settings, child_environment

log = logging.getLogger("hyperscene.supervisor")

SHORT_LIFE_S, SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 0.2, 10.0
LOOK_EVERY_S = 1.0
START_S = 60.0  # until a worker's first breath


@dataclass(frozen=True)
class Slot:
    """A worker's place: its name, its device, and its share of the cores."""

    name: str
    device: str
    threads: int


def plan_slots(devices: tuple[str, ...], threads: int) -> list[Slot]:
    """A slot for each device; those on processors share the cores."""
    on_cores = [place for place, device in enumerate(devices) if device.partition(":")[0] not in ("cuda", "tensorrt")]
    share = max(1, (threads or cores()) // max(1, len(on_cores)))
    return [
        Slot(f"{device.replace(':', '-')}-{place}", device, share if place in on_cores else 0)
        for place, device in enumerate(devices)
    ]


def cluster_slots(jobs: int) -> list[Slot]:
    """A slot for each job that shares the cluster."""
    return [Slot(f"{CLUSTER}-{place}", CLUSTER, 0) for place in range(jobs)]


class Supervisor:
    """Keeps the workers alive; a thread for each waits for its end."""

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

    def start(self) -> None:
        """Start every worker."""
        for slot in self.slots:
            thread = threading.Thread(
                target=self._keep_alive, args=(slot,), name=f"hyperscene-{slot.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def wake(self) -> None:
        """Have every worker look at the store."""
        for child in list(self._children.values()):
            try:
                assert child.stdin is not None
                child.stdin.write(b"\n")
                child.stdin.flush()
            except (OSError, ValueError):  # it died: its thread knows
                continue

    def ask_to_stop(self) -> None:
        """Have every worker keep what is done and end; returns at once."""
        self._is_stopping.set()
        for child in list(self._children.values()):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)

    def take_over(self) -> None:
        """Free the jobs of an earlier server."""
        for job in self._store.free_all(self._marks(), self._settings.keep_results_s):
            drop_job(self._settings, self._store, job)

    def stop(self, within_s: float) -> None:
        """End every worker: kindly first."""
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
        """A worker in this slot, for ever: whatever goes wrong, another one is tried."""
        pause_s = SHORTEST_PAUSE_S
        while not self._is_stopping.is_set():
            began = time.monotonic()
            try:
                self._live_once(slot)
            except Exception:  # no process to be had, a store that is held: it may get better
                log.exception("worker %s cannot be kept", slot.name, extra={"worker": slot.name})
            is_short = time.monotonic() - began < SHORT_LIFE_S
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if is_short else SHORTEST_PAUSE_S
            self._is_stopping.wait(pause_s)

    def _live_once(self, slot: Slot) -> None:
        self._breathe(slot)
        child = self._spawn(slot)
        self._children[slot.name] = child
        try:
            if self._is_stopping.is_set():
                child.terminate()
            code = self._wait_for_end(slot, child)
        finally:
            if child.poll() is None:  # never two workers in one slot
                child.kill()
                child.wait()
        if self._is_stopping.is_set():
            return
        log.error("worker %s ended with %s: starting another", slot.name, code, extra={"worker": slot.name})
        failed = self._insist(lambda: self._store.forfeit(slot.name, self._marks(), self._settings.keep_results_s))
        for job in failed or []:
            drop_job(self._settings, self._store, job)

    def _breathe(self, slot: Slot) -> None:
        path = self._settings.breath_file(slot.name)
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def _wait_for_end(self, slot: Slot, child: subprocess.Popen[bytes]) -> int:
        """A worker's exit code; one that fell silent is ended."""
        path = self._settings.breath_file(slot.name)
        began = path.stat().st_mtime
        while True:
            try:
                return child.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                breath = path.stat().st_mtime
                patience_s = self._settings.lease_s if breath > began else max(START_S, self._settings.lease_s)
                if time.time() - breath > patience_s and not self._is_stopping.is_set():
                    log.error("worker %s fell silent", slot.name, extra={"worker": slot.name})
                    child.kill()

    def _spawn(self, slot: Slot) -> subprocess.Popen[bytes]:
        environment = child_environment()
        _, _, number = slot.device.partition(":")
        if number:  # the worker sees this GPU and no other
            environment["CUDA_VISIBLE_DEVICES"] = number
        # Not in the terminal's group: Ctrl-C is for the server, which tells its workers.
        child = subprocess.Popen(
            [sys.executable, "-m", "service.jobs.worker"], stdin=subprocess.PIPE, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps(self._orders(slot)).encode() + b"\n")
            child.stdin.flush()
            os.set_blocking(child.stdin.fileno(), False)  # a worker that does not read holds nobody up
        except OSError:  # it died before it read them
            pass
        return child

    def _orders(self, slot: Slot) -> dict[str, Any]:
        return {
            "settings": self._settings.model_dump(mode="json", exclude={"api_keys"}),
            "name": slot.name,
            "device": slot.device,
            "threads": slot.threads,
            "model": self._models.default.name,
            "bundles": {name: str(model.path) for name, model in self._models.by_name.items()},
        }

    def _marks(self) -> dict[str, frozenset[int]]:
        """Where every job was."""
        return {folder.name: Mark.read(folder) for folder in (self._settings.data / "jobs").iterdir()}

    def _insist(self, work: Callable[[], Any]) -> Any:
        return insist(work, self._is_stopping)
