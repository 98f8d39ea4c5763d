"""A worker: one process for one device, that maps one job after the other and can be killed at any time."""

from __future__ import annotations

import json
import logging
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any

from model.bundle import BundleRefused
from service import logs
from service.errors import (
    InferenceFailed,
    InternalError,
    NotReady,
    PlaceUnreachable,
    ServiceError,
    StorageFull,
    unwritten,
)
from service.jobs.devices import CLUSTER, Devices, open_device
from service.jobs.disk import data_path, drop_job, drop_work, flush, flush_folder, version_of
from service.jobs.records import JobRecord, WorkerRecord
from service.jobs.store import MOST_DEATHS, Store, StoreBusy, insist
from service.mapping.ahead import Cancelled
from service.mapping.classify import CrewLost
from service.mapping.pipeline import MapOptions, map_scene
from service.mapping.scenes import open_scene
from service.settings import Settings

log = logging.getLogger("hyperscene.worker")

IDLE_S = 1.0  # between looks at the queue; the server wakes a worker when there is something
BEAT_S = 0.5
RETRY_S = 10.0  # between attempts to get a device that is not there
STANDARD_INPUT = 0
MARK_NAME = "mark"
STUCK = 3  # the exit code of a worker that hangs
LINGER_S = 3.0  # that a cancelled job may take to end, where a place that stalls may hold it up
MOST_PLACE_TRIES, PLACE_WAIT_S = 4, 5.0  # of a place that fell silent


class Progress:
    """How far the job at hand is, for the thread that tells the store."""

    def __init__(self, done: int = 0, total: int = 0) -> None:
        self.done, self.total = done, total  # for people: an earlier run may have been further
        self._run = 0  # of this run alone
        self._moved = time.monotonic()
        self._first: tuple[float, int] | None = None

    def report(self, done: int, total: int) -> None:
        """Called by the mapping, often."""
        if self._first is None:
            self._first = time.monotonic(), done
        self._moved = time.monotonic()
        self._run = max(done, self._run)
        self.done, self.total = max(done, self.done), total

    def excuse(self) -> None:
        """Nothing can move right now, and that is known."""
        self._moved = time.monotonic()

    @property
    def quiet_s(self) -> float:
        """How long the network has been silent, while it still has something to say."""
        return time.monotonic() - self._moved if self._run < self.total or self.total == 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; what an earlier run did says nothing about it."""
        if self._first is None or self.done <= self._first[1]:
            return None
        began, first = self._first
        return round((time.monotonic() - began) / (self.done - first) * (self.total - self.done), 1)


class Mark:
    """A file beside the job that says what the network is being asked about, or was last: read when its worker died.

    A worker that dies before it asks anything leaves what the one before it left.
    """

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder / MARK_NAME, os.O_RDWR | os.O_CREAT, 0o644)

    def set(self, places: Collection[int]) -> None:
        """Say where the job is; some microseconds, so that it can be done for every call of the network."""
        with suppress(OSError):  # a full disk: the next strip will tell
            os.pwrite(self._handle, struct.pack(f"<{1 + len(places)}q", len(places), *places), 0)

    def __enter__(self) -> Mark:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    @staticmethod
    def read(folder: Path) -> frozenset[int]:
        """Where the job in this folder was; nowhere, where nobody has asked anything."""
        try:
            content = (folder / MARK_NAME).read_bytes()
            (count,) = struct.unpack_from("<q", content)
            return frozenset(struct.unpack_from(f"<{count}q", content, 8))
        except (OSError, struct.error):
            return frozenset()


class Worker:
    """Claims jobs, maps them, and tells the store about it twice a second."""

    def __init__(self, settings: Settings, name: str, device: str, threads: int, bundles: dict[str, Path]) -> None:
        self._settings = settings
        self._name = name
        self._device = device
        self._threads = threads
        self._bundles = bundles
        self._store = Store(settings.database)
        self._devices: Devices | None = None
        self._notes: list[str] = []  # about the job at hand, that are not in the store yet
        self._telling = threading.Lock()
        self._state = WorkerRecord(name, device, os.getpid(), "starting", None, None, time.time())
        self._is_stopping = threading.Event()
        self._is_woken = threading.Event()
        self._look = threading.Event()  # at whether the job at hand is still ours
        self._job: JobRecord | None = None
        self._progress = Progress()
        self._cancelled = threading.Event()
        self._is_far = False  # the job's scene is read in another place
        self._lingers_since: float | None = None  # a job that is cancelled and has not ended

    def wake(self) -> None:
        """There is a job, or one was dismissed."""
        self._is_woken.set()
        self._look.set()

    def stop(self) -> None:
        """Keep what is done, and end."""
        self._is_stopping.set()
        self._cancelled.set()
        self.wake()

    def run(self, default_model: str) -> None:
        """Work until told to stop."""
        threading.Thread(target=self._beat_forever, name="hyperscene-heartbeat", daemon=True).start()
        threading.Thread(target=self._breathe_forever, name="hyperscene-breath", daemon=True).start()
        while not self._is_stopping.is_set():
            if self._state.state != "ready" and not self._is_ready(default_model):
                self._is_stopping.wait(RETRY_S if self._device != CLUSTER else IDLE_S)
                continue
            job = self._claim()
            if job is None:
                self._is_woken.wait(IDLE_S)
                self._is_woken.clear()
            else:
                logs.job_id.set(job.id)
                logs.request_id.set(job.request_id)
                self._work_on(job)
                logs.job_id.set(None)
                logs.request_id.set(None)
        self._store.forget_worker(self._name)

    def _is_ready(self, model: str) -> bool:
        """Whether the device runs the bundle and gives its own answers; otherwise everybody can read why not."""
        try:
            if self._devices is None:
                self._devices = open_device(self._settings, self._device, self._threads, self._bundles)
            device, provider = self._devices.check(model)
        except (ServiceError, BundleRefused) as error:
            if self._state.reason != str(error):
                level = logging.INFO if self._state.state == "starting" and self._device == CLUSTER else logging.ERROR
                log.log(level, "not ready: %s", error, extra={"worker": self._name, "device": self._device})
            failed = replace(self._state, state="failed", reason=str(error))
            self._insist(lambda: self._tell(failed))
            return False
        ready = replace(self._state, state="ready", provider=provider, device=device, reason=None)
        self._insist(lambda: self._tell(ready))
        log.info("ready on %s", provider, extra={"worker": self._name, "device": device})
        return True

    def _claim(self) -> JobRecord | None:
        if disk_usage(self._settings.data).free < self._settings.min_free_bytes:
            return None  # what waits is not lost; it goes on when there is room
        try:
            return self._store.claim(self._name, self._settings.lease_s)
        except (StorageFull, StoreBusy):
            return None

    def _work_on(self, job: JobRecord) -> None:
        log.info("started" if job.resumes == 0 else "resumed", extra={"worker": self._name})
        self._cancelled.clear()
        self._is_far, self._lingers_since = False, None
        self._progress = Progress(job.cells_done, job.cells_total)
        self._notes = []
        self._job = job
        if self._is_stopping.is_set():
            self._cancelled.set()
        try:
            self._map(job)
        except Exception as error:
            self._stop_work(job, error)
        finally:
            self._job = None

    def _map(self, job: JobRecord) -> None:
        settings = self._settings
        scene_record = self._store.scene(job.scene_id)
        if scene_record is None:
            raise InternalError(f"the scene of job {job.id} is gone: send it again")
        self._is_far = scene_record.href is not None
        scene = open_scene(data_path(settings, scene_record), settings.limits, version=version_of(scene_record))
        assert self._devices is not None
        bundle, engine = self._devices.take(job.model, self._note, self._cancelled.is_set)
        self._insist(lambda: self._store.note_provider(job, engine.device, engine.provider))
        # An attempt of its own: a worker that lost the job and does not know it yet writes elsewhere.
        attempt = settings.job_folder(job.id) / f"attempt-{job.token}"
        if not self._insist(lambda: self._store.renew(job, settings.lease_s, job.cells_done, job.cells_total, None)):
            raise Cancelled
        for left_behind in settings.job_folder(job.id).glob("attempt-*"):  # by a worker that was killed
            rmtree(left_behind, ignore_errors=True)
        try:
            settings.strips_folder(job.id).mkdir(parents=True, exist_ok=True)
            mark = Mark(settings.job_folder(job.id))
        except OSError as error:
            raise unwritten(error) from error
        with mark:
            self._progress = Progress(job.cells_done, job.cells_total)
            summary = map_scene(
                replace(scene, name=job.scene_name), bundle, engine, attempt, MapOptions(**job.options),
                self._progress.report, self._cancelled, settings.strips_folder(job.id), job.id, mark.set,
            )  # fmt: skip
        flush_folder(attempt)
        self._insist(lambda: self._tell_notes(job))
        with suppress(ServiceError):  # a job may be over before the heart beats
            self._beat()
        if not self._insist(lambda: self._succeed(job, summary, attempt)):
            raise Cancelled
        drop_work(settings, job.id)
        log.info("successful", extra={"worker": self._name, "seconds": summary["seconds"]["total"]})

    def _succeed(self, job: JobRecord, summary: dict[str, Any], attempt: Path) -> bool:
        results = self._settings.results_folder(job.id)

        def publish() -> None:
            if attempt.is_dir():  # not yet: a full disk may have undone the record, and this is another try
                rmtree(results, ignore_errors=True)
                attempt.rename(results)
                flush(results.parent)

        return self._store.succeed(job, summary, self._settings.keep_results_s, publish)

    def _stop_work(self, job: JobRecord, error: Exception) -> None:
        """Work that did not come to its end: the job is released, left, or failed."""
        may_pass = isinstance(error, StoreBusy | CrewLost)
        if isinstance(error, PlaceUnreachable) and job.resumes < MOST_PLACE_TRIES and not self._cancelled.is_set():
            self._note(f"{error}; this is tried again")
            self._is_stopping.wait(PLACE_WAIT_S)
            may_pass = True
        if (self._is_stopping.is_set() and self._cancelled.is_set()) or may_pass:
            self._insist(lambda: self._tell_notes(job))
            self._insist(lambda: self._store.release(job))
            log.info("released", extra={"worker": self._name})
            return
        current = self._store.job(job.id)
        if current is None or current.token != job.token or (isinstance(error, Cancelled) and self._cancelled.is_set()):
            self._leave(job, current)
            return
        refusal = self._refusal(job, error)
        self._insist(lambda: self._tell_notes(job))
        log.warning("failed: %s", refusal, extra={"worker": self._name, "code": refusal.code})
        # The disk is freed first: the store may need the room to say that there was none.
        rmtree(self._settings.job_folder(job.id), ignore_errors=True)
        if self._insist(lambda: self._store.fail(job, refusal, self._settings.keep_results_s)):
            with suppress(ServiceError):  # the next start sweeps
                drop_job(self._settings, self._store, job)

    def _refusal(self, job: JobRecord, error: Exception) -> ServiceError:
        if isinstance(error, ServiceError):
            return error
        if isinstance(error, BundleRefused):
            return NotReady(str(error))
        if isinstance(error, MemoryError):
            return InferenceFailed(f"memory ran out: crop the scene, or report the job {job.id}")
        log.error("a bug", exc_info=error, extra={"worker": self._name})
        return InternalError(f"this is a fault of hyperscene: report the job {job.id}")

    def _leave(self, job: JobRecord, current: JobRecord | None) -> None:
        """A job that is not ours any more: dismissed, or another worker's, whose files are not touched."""
        rmtree(self._settings.job_folder(job.id) / f"attempt-{job.token}", ignore_errors=True)
        if current is None or current.status == "dismissed":
            rmtree(self._settings.job_folder(job.id), ignore_errors=True)
        log.info("left: %s", current.status if current else "expired", extra={"worker": self._name})

    def _insist(self, work: Callable[[], Any]) -> Any:
        return insist(work, self._is_stopping)

    def _tell(self, state: WorkerRecord) -> None:
        members = [] if self._devices is None else self._devices.members()
        self._state = replace(state, heartbeat=time.time(), members=members)
        self._store.beat(self._state)

    def _breathe_forever(self) -> None:
        """Show that the process is alive, on a file and not in the store, which may be held or on a full disk."""
        while True:
            with suppress(OSError):
                os.utime(self._settings.breath_file(self._name))
            time.sleep(BEAT_S)

    def _beat_forever(self) -> None:
        while True:
            try:
                self._beat()
            except Exception as error:  # a full disk, say: the next beat may get through
                log.warning("no heartbeat: %s", error, extra={"worker": self._name})
            self._look.wait(BEAT_S)
            self._look.clear()

    def _beat(self) -> None:
        job, progress = self._job, self._progress
        if job is not None:
            self._tell_notes(job)
            is_ours = self._store.renew(
                job, self._settings.lease_s, progress.done, progress.total, progress.seconds_left
            )
            if not is_ours and self._job is job:
                self._cancelled.set()
            self._end_if_stuck(job, progress)
            self._end_if_lingering(job)
        self._tell_trouble()
        if time.time() - self._state.heartbeat > min(4 * BEAT_S, self._settings.lease_s / 4):
            self._tell(self._state)

    def _end_if_stuck(self, job: JobRecord, progress: Progress) -> None:
        # A cluster looks after its own: a strip may be tried by several workers, one after the other.
        patience_s = self._settings.stall_s * (1 if self._device != CLUSTER else 1 + MOST_DEATHS)
        if self._devices is not None and self._devices.trouble is not None:
            progress.excuse()
        elif progress.quiet_s > patience_s:
            log.error("stuck for %.0f s: ending", progress.quiet_s, extra={"worker": self._name, "job_id": job.id})
            os._exit(STUCK)

    def _end_if_lingering(self, job: JobRecord) -> None:
        """A place that stalls cannot be left in any other way: the next worker takes what waits."""
        if not self._is_far or not self._cancelled.is_set() or self._is_stopping.is_set():
            return
        self._lingers_since = self._lingers_since or time.monotonic()
        if time.monotonic() - self._lingers_since > LINGER_S:
            log.warning("its place stalls: ending", extra={"worker": self._name, "job_id": job.id})
            os._exit(STUCK)

    def _note(self, text: str) -> None:
        """Remember what happened to the job at hand; by any thread."""
        self._notes.append(text)

    def _tell_notes(self, job: JobRecord) -> None:
        with self._telling:  # the heart's thread and the job's both do
            count = len(self._notes)
            if count:
                self._store.add_history(job, self._notes[:count])
                del self._notes[:count]

    def _tell_trouble(self) -> None:
        """A cluster may be lost, and come back: nobody is sent to a worker that cannot compute."""
        if self._devices is None or self._state.state == "starting":
            return
        trouble = self._devices.trouble
        if self._state.state == "ready" and trouble is not None:
            log.error("not ready: %s", trouble, extra={"worker": self._name})
            self._tell(replace(self._state, state="failed", reason=trouble))
        elif self._state.state == "failed" and trouble is None and self._job is not None:  # which it has begun
            log.info("ready again", extra={"worker": self._name})
            self._tell(replace(self._state, state="ready", reason=None))


def _obey(worker: Worker) -> None:
    """A byte on standard input wakes the worker; its end means that the server is gone, so the worker ends at once."""
    while os.read(STANDARD_INPUT, 4096):
        worker.wake()
    os._exit(0)  # finished strips lie on disk; the next server frees the job


def _read_orders() -> dict[str, Any]:
    """The first line of standard input; unbuffered, since a thread that waits in a buffer cannot be left behind."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(STANDARD_INPUT, 1)
        if not byte:  # the server died before it gave any
            sys.exit()
        line += byte
    orders: dict[str, Any] = json.loads(line)
    return orders


def main() -> None:
    """Work for the server whose settings stand in the first line of standard input."""
    orders = _read_orders()
    settings = Settings.model_validate(orders["settings"])
    logs.set_up_logs(settings.log_level)
    os.nice(5)  # the server's answers come first
    bundles = {name: Path(path) for name, path in orders["bundles"].items()}
    worker = Worker(settings, orders["name"], orders["device"], orders["threads"], bundles)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_obey, args=(worker,), name="hyperscene-orders", daemon=True).start()
    worker.run(orders["model"])


if __name__ == "__main__":
    main()
