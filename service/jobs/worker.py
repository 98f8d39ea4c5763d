"""A worker process: maps jobs on one device, one at a time, and may be killed at any moment."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any

from hyperscene.errors import (
    InferenceFailed,
    InternalError,
    NoSuchModel,
    NotReady,
    ServiceError,
    SourceUnreachable,
    StorageFull,
    write_error,
)
from hyperscene.model.bundle import BundleRefused
from hyperscene.service import logs
from hyperscene.service.jobs.adoption import write_record
from hyperscene.service.jobs.database import StoreBusy, retry_write
from hyperscene.service.jobs.devices import CLUSTER, WorkerDevice, open_device
from hyperscene.service.jobs.disk import data_path, drop_job, drop_work, flush, flush_folder, version_of
from hyperscene.service.jobs.in_flight import OPENING, InFlight
from hyperscene.service.jobs.job_progress import JobProgress
from hyperscene.service.jobs.records import JobRecord, Kind, WorkerRecord
from hyperscene.service.jobs.store import MAX_CRASHES, Store
from hyperscene.service.mapping.classify import MapProgress, RunControl, WorkersLost
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.prefetch import Cancelled, Stop
from hyperscene.service.mapping.products.product import CubeImage, ReadOptions
from hyperscene.service.mapping.scenes import Scene, open_pixels, open_scene
from hyperscene.service.settings import Settings

log = logging.getLogger("hyperscene.worker")

IDLE_S = 1.0  # between checks of the queue; the server wakes a worker when a job is submitted
BEAT_S = 0.5
RETRY_S = 10.0  # between attempts to open a device that is not available
STANDARD_INPUT = 0
STUCK = 3  # exit code of a worker that hangs
# That a cancelled job may take to end; it takes a fraction of a second, unless a library or a remote host hangs.
CANCEL_S, REMOTE_CANCEL_S = 8.0, 3.0
MAX_SOURCE_TRIES, SOURCE_WAIT_S = 4, 5.0  # for a remote host that does not respond


class Worker:
    """Claims jobs, maps them, and records their progress twice a second."""

    kind: Kind = "map"  # of the jobs that it claims

    def __init__(self, settings: Settings, name: str, device: str, threads: int, bundles: dict[str, Path]) -> None:
        self._settings = settings
        self._name = name
        self._device = device
        self._threads = threads
        self._bundles = bundles
        self._store = Store(settings.database)
        self._compute: WorkerDevice | None = None
        self._events: list[str] = []  # of the current job, not in the store yet
        self._events_lock = threading.Lock()
        self._state = WorkerRecord(name, device, os.getpid(), "starting", None, None, time.time())
        self._is_stopping = threading.Event()
        self._is_woken = threading.Event()
        self._beat_now = threading.Event()  # to check whether the current job is still ours
        self._job: JobRecord | None = None
        self._progress = JobProgress(MapProgress())
        self._cancelled = threading.Event()
        self._is_remote = False  # the job's scene is read from another host
        self._cancelled_since: float | None = None  # while a cancelled job has not ended

    def wake(self) -> None:
        """Check the store now: a job was submitted or dismissed."""
        self._is_woken.set()
        self._beat_now.set()

    def stop(self) -> None:
        """Release the current job, which keeps its finished strips, and end."""
        self._is_stopping.set()
        self._cancelled.set()
        self.wake()

    def run(self, default_model: str) -> None:
        """Work until `stop`."""
        threading.Thread(target=self._beat_loop, name="hyperscene-heartbeat", daemon=True).start()
        threading.Thread(target=self._touch_loop, name="hyperscene-alive", daemon=True).start()
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
        self._store.remove_worker(self._name)

    def _is_ready(self, model: str) -> bool:
        """Whether the device runs the bundle and passes its check; the reason why not is stored for /health."""
        try:
            if self._compute is None:
                self._compute = open_device(self._settings, self._device, self._threads, self._bundles)
            device, provider, left_out = self._compute.check(model)
        except (ServiceError, BundleRefused) as error:
            if self._state.reason != str(error):
                level = logging.INFO if self._state.state == "starting" and self._device == CLUSTER else logging.ERROR
                log.log(level, "not ready: %s", error, extra={"worker": self._name, "device": self._device})
            failed = replace(self._state, state="failed", reason=str(error))
            self._retry_write(lambda: self._save_state(failed))
            return False
        ready = replace(self._state, state="ready", provider=provider, device=device, reason=None, left_out=left_out)
        for reason in left_out:
            log.warning("%s", reason, extra={"worker": self._name})
        self._retry_write(lambda: self._save_state(ready))
        log.info("ready on %s", provider, extra={"worker": self._name, "device": device})
        return True

    def _claim(self) -> JobRecord | None:
        if disk_usage(self._settings.data).free < self._settings.min_free_bytes:
            return None  # jobs wait until there is room
        try:
            most_s = self._settings.max_running_s_per_key or None
            return self._store.claim(self._name, self._settings.lease_s, most_s, self.kind)
        except (StorageFull, StoreBusy):
            return None

    def _work_on(self, job: JobRecord) -> None:
        log.info("started" if job.resumes == 0 else "resumed", extra={"worker": self._name})
        self._cancelled.clear()
        self._is_remote, self._cancelled_since = False, None
        self._progress = self._new_progress(job)
        self._events = []
        self._job = job
        if self._is_stopping.is_set():
            self._cancelled.set()
        try:
            self._map(job)
        except Exception as error:
            self._stop_work(job, error)
        finally:
            self._job = None

    def _new_progress(self, job: JobRecord) -> JobProgress:
        return JobProgress(job.progress)

    def _map(self, job: JobRecord) -> None:
        try:
            self._work_folder(job).mkdir(parents=True, exist_ok=True)
            in_flight = InFlight(self._settings.job_folder(job.id), job.token)
        except OSError as error:
            raise write_error(error) from error
        with in_flight:
            self._map_from(job, in_flight)

    def _work_folder(self, job: JobRecord) -> Path:
        """What an interrupted job is resumed from."""
        return self._settings.strips_folder(job.id)

    def _map_from(self, job: JobRecord, in_flight: InFlight) -> None:
        settings = self._settings
        scene_record = self._store.scene(job.scene_id)
        if scene_record is None:
            raise InternalError(f"the scene of job {job.id} is gone: send it again")
        self._is_remote = scene_record.href is not None
        in_flight.record([OPENING])
        path, stop = data_path(settings, scene_record), Stop(self._cancelled)
        # Cubes that have to be rewritten are written here; the folder goes with the attempt.
        work = settings.job_folder(job.id) / f"attempt-{job.token}-work"
        options = {name: value for name, value in job.options.items() if name != "mask"}
        read = ReadOptions(None if (masks := job.options.get("mask")) is None else tuple(masks))
        version = version_of(scene_record)
        scene = open_scene(path, settings.limits, version=version, options=read, work=work, stop=stop)
        assert self._compute is not None
        if self._device == CLUSTER:
            in_flight.record([])  # waiting for a cluster may take long, and crashes nothing
        bundle, engine = self._compute.open_model(self._bundle_key(job), self._note, self._cancelled.is_set)
        self._retry_write(lambda: self._store.set_provider(job, engine.device, engine.provider))
        # One folder per lease: a worker that has lost the job and does not know it yet writes elsewhere.
        attempt = settings.job_folder(job.id) / f"attempt-{job.token}"
        if not self._retry_write(lambda: self._store.renew(job, settings.lease_s, job.progress, None)):
            raise Cancelled
        for leftover in settings.job_folder(job.id).glob("attempt-*"):  # of a worker that was killed
            rmtree(leftover, ignore_errors=True)
        self._progress = JobProgress(job.progress)
        strips = settings.strips_folder(job.id)
        control = RunControl(self._progress.report, self._cancelled, strips, in_flight.record)
        self._rewrite(scene, work, stop)
        named = replace(scene, name=job.scene_name)
        summary = map_scene(named, bundle, engine, attempt, MapOptions(**options), control, job.id)
        flush_folder(attempt)
        self._retry_write(lambda: self._store_events(job))
        with suppress(ServiceError):  # a short job may end before its first heartbeat
            self._beat()
        if not self._retry_write(lambda: self._succeed(job, summary, attempt)):
            raise Cancelled
        drop_work(settings, job.id)
        log.info("successful", extra={"worker": self._name, "seconds": summary["seconds"]["total"]})

    def _bundle_key(self, job: JobRecord) -> str:
        """The name of the job's bundle for the device: a model of the operator, or the id of an owner's."""
        if job.model_version is None:
            return job.model
        model = self._store.model(job.owner, job.model, job.model_version)
        if model is None:
            raise NoSuchModel(
                f"version {job.model_version} of the model {job.model} was deleted after this job was submitted: "
                "submit it again with another one"
            )
        self._bundles[model.id] = self._settings.bundle_of(model.id)
        return model.id

    def _rewrite(self, scene: Scene, work: Path, stop: Stop) -> None:
        """Rewrite a product's cubes that cannot be read by rows, before they are mapped; others are opened only."""
        if not isinstance(scene.image, CubeImage):
            return

        def report(done: int, total: int) -> None:
            stop.raise_if_cancelled()
            self._progress.pause()

        try:
            work.mkdir()
        except OSError as error:
            raise write_error(error) from error
        with open_pixels(scene, report):
            pass

    def _succeed(self, job: JobRecord, summary: dict[str, Any], attempt: Path) -> bool:
        return self._store.succeed(
            job, summary, self._settings.keep_results_s, lambda finished: self._publish(finished, attempt)
        )

    def _publish(self, finished: JobRecord, attempt: Path) -> None:
        """Give the results their place, flushed to disk."""
        results = self._settings.results_folder(finished.id)
        if attempt.is_dir():  # not published yet; a full disk may have rolled back an earlier try
            rmtree(results, ignore_errors=True)
            attempt.rename(results)
        write_record(results.parent, finished)
        for folder in (results.parent, results.parent.parent):  # the names of the results, and of the job
            flush(folder)

    def _stop_work(self, job: JobRecord, error: Exception) -> None:
        """Release, leave or fail a job that was not finished."""
        may_pass = isinstance(error, StoreBusy | WorkersLost)
        if isinstance(error, SourceUnreachable) and job.resumes < MAX_SOURCE_TRIES and not self._cancelled.is_set():
            self._note(f"{error}; the job is tried again")
            self._is_stopping.wait(SOURCE_WAIT_S)
            may_pass = True
        if (self._is_stopping.is_set() and self._cancelled.is_set()) or may_pass:
            self._retry_write(lambda: self._store_events(job))
            self._retry_write(lambda: self._store.release(job))
            log.info("released", extra={"worker": self._name})
            return
        current = self._store.job(job.id)
        if current is None or current.token != job.token or (isinstance(error, Cancelled) and self._cancelled.is_set()):
            self._leave(job, current)
            return
        refusal = self._refusal(job, error)
        self._retry_write(lambda: self._store_events(job))
        log.warning("failed: %s", refusal, extra={"worker": self._name, "code": refusal.code})
        # The disk is freed first: the store may need the room to record that it was full.
        rmtree(self._settings.job_folder(job.id), ignore_errors=True)
        if self._retry_write(lambda: self._store.fail(job, refusal, self._settings.keep_results_s)):
            with suppress(ServiceError):  # the next start removes it
                drop_job(self._settings, self._store, job)

    def _refusal(self, job: JobRecord, error: Exception) -> ServiceError:
        if isinstance(error, ServiceError):
            return error
        if isinstance(error, BundleRefused):
            return NotReady(str(error))
        if isinstance(error, MemoryError):
            return InferenceFailed(f"the worker ran out of memory: crop the scene, or report the job {job.id}")
        log.error("unexpected error", exc_info=error, extra={"worker": self._name})
        return InternalError(f"this is a fault of hyperscene: report the job {job.id}")

    def _leave(self, job: JobRecord, current: JobRecord | None) -> None:
        """Remove our files of a job that was dismissed, or that another worker has now."""
        for path in self._settings.job_folder(job.id).glob(f"attempt-{job.token}*"):
            rmtree(path, ignore_errors=True)
        if current is None or current.status == "dismissed":
            rmtree(self._settings.job_folder(job.id), ignore_errors=True)
        log.info("left: %s", current.status if current else "expired", extra={"worker": self._name})

    def _retry_write(self, work: Callable[[], Any]) -> Any:
        return retry_write(work, self._is_stopping)

    def _save_state(self, state: WorkerRecord) -> None:
        members = [] if self._compute is None else self._compute.cluster_workers()
        self._state = replace(state, heartbeat=time.time(), members=members)
        self._store.save_worker(self._state)

    def _touch_loop(self) -> None:
        """Touch the heartbeat file; it works while the store is locked or its disk is full."""
        while True:
            with suppress(OSError):
                os.utime(self._settings.heartbeat_file(self._name))
            time.sleep(BEAT_S)

    def _beat_loop(self) -> None:
        while True:
            try:
                self._beat()
            except Exception as error:  # for instance a full disk: the next heartbeat may succeed
                log.warning("no heartbeat: %s", error, extra={"worker": self._name})
            self._beat_now.wait(BEAT_S)
            self._beat_now.clear()

    def _beat(self) -> None:
        job, progress = self._job, self._progress
        if job is not None:
            self._store_events(job)
            is_ours = self._store.renew(job, self._settings.lease_s, progress.reached, progress.seconds_left)
            if not is_ours and self._job is job:
                self._cancelled.set()
            self._end_if_stuck(job, progress)
            self._end_if_not_cancelled(job)
        self._update_outage()
        if time.time() - self._state.heartbeat > min(4 * BEAT_S, self._settings.lease_s / 4):
            self._save_state(self._state)

    @property
    def _patience(self) -> int:
        # A cluster restarts its workers itself: a strip may be tried by several of them, one after the other.
        return 1 if self._device != CLUSTER else 1 + MAX_CRASHES["worker"]

    def _end_if_stuck(self, job: JobRecord, progress: JobProgress) -> None:
        patience_s = self._settings.stall_s * self._patience
        if self._compute is not None and self._compute.outage is not None:
            progress.pause()
        elif progress.stalled_s > patience_s:
            log.error("stuck for %.0f s: ending", progress.stalled_s, extra={"worker": self._name, "job_id": job.id})
            os._exit(STUCK)

    def _end_if_not_cancelled(self, job: JobRecord) -> None:
        """End the process: reading from a host that does not respond cannot be cancelled in another way."""
        if not self._cancelled.is_set() or self._is_stopping.is_set():
            return
        self._cancelled_since = self._cancelled_since or time.monotonic()
        if time.monotonic() - self._cancelled_since > (REMOTE_CANCEL_S if self._is_remote else CANCEL_S):
            what = "the scene's host does not respond" if self._is_remote else "a dismissed job cannot be cancelled"
            log.warning("%s: ending", what, extra={"worker": self._name, "job_id": job.id})
            os._exit(STUCK)

    def _note(self, text: str) -> None:
        """Add to the current job's events; called by any thread."""
        self._events.append(text)

    def _store_events(self, job: JobRecord) -> None:
        with self._events_lock:  # called by the heartbeat's thread and the job's
            count = len(self._events)
            if count:
                self._store.add_events(job, self._events[:count])
                del self._events[:count]

    def _update_outage(self) -> None:
        """Update the state when a cluster is lost or comes back: a worker that cannot compute is not ready."""
        if self._compute is None or self._state.state == "starting":
            return
        outage = self._compute.outage
        if self._state.state == "ready" and outage is not None:
            log.error("not ready: %s", outage, extra={"worker": self._name})
            self._save_state(replace(self._state, state="failed", reason=outage))
        elif self._state.state == "failed" and outage is None and self._job is not None:  # a job that it has started
            log.info("ready again", extra={"worker": self._name})
            self._save_state(replace(self._state, state="ready", reason=None))


def read_wakes(worker: Worker) -> None:
    """Each byte on standard input wakes the worker; at its end the server is gone, and the process exits."""
    while os.read(STANDARD_INPUT, 4096):
        worker.wake()
    os._exit(0)  # finished strips are on disk; the next server releases the job


def read_start_message() -> dict[str, Any]:
    """The first line of standard input, unbuffered: a thread blocked in a buffered read cannot be abandoned at exit."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(STANDARD_INPUT, 1)
        if not byte:  # the server died before it sent the line
            sys.exit()
        line += byte
    start: dict[str, Any] = json.loads(line)
    return start


def main() -> None:
    """Work for the server, whose settings are the first line of standard input."""
    start = read_start_message()
    settings = Settings.model_validate(start["settings"])
    logs.set_up_logs(settings.log_level)
    os.nice(5)  # the server's responses come first
    bundles = {name: Path(path) for name, path in start["bundles"].items()}
    worker = Worker(settings, start["name"], start["device"], start["threads"], bundles)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=read_wakes, args=(worker,), name="hyperscene-wake", daemon=True).start()
    worker.run(start["model"])


if __name__ == "__main__":
    main()
