"""A training worker: trains one model after the other, each in a process of its own that can be killed at any moment.

It runs as a process of the server, or beside it (`hyperscene train-worker`) on the same data folder: claims, leases and
heartbeats are the same. This process does not import torch.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any

from hyperscene.child_process import module_command
from hyperscene.errors import InternalError, ServiceError, error_from_code
from hyperscene.service import logs
from hyperscene.service.jobs.disk import data_path, drop_job, drop_work, flush_folder
from hyperscene.service.jobs.in_flight import OPENING, InFlight
from hyperscene.service.jobs.job_progress import JobProgress
from hyperscene.service.jobs.model_admission import BUNDLE, MODEL_FILES, REPORT, publish_model
from hyperscene.service.jobs.records import TRAINING, JobRecord, Kind, ModelRecord, new_id
from hyperscene.service.jobs.worker import Worker, read_start_message, read_wakes
from hyperscene.service.mapping.classify import MapProgress
from hyperscene.service.mapping.prefetch import Cancelled
from hyperscene.service.settings import Settings, child_environment

log = logging.getLogger("hyperscene.worker")

TRAINER = "hyperscene.service.jobs.trainer"
# What a training imports; torch itself is imported in the trainer only.
PACKAGES = ("torch", "onnx", "onnxscript", "sklearn", "scipy", "pyogrio", "shapely", "onnxruntime")
PARTS = 1000  # of a training, as progress
POLL_S = 0.1
PATIENCE = 4  # times the stall time: label propagation on a large scene reports nothing for minutes
EXIT_S = 5.0


class TrainerCrashed(Exception):
    """The process of a training ended without a result."""


class TrainingProgress(JobProgress):
    """How far a training is, in parts of its expected time."""

    def __init__(self, earlier: MapProgress) -> None:
        super().__init__(earlier)
        self._left_s: float | None = None

    def advance(self, share: float, left_s: float | None) -> None:
        """A share of the training is done; a resumed one never shows less than before."""
        self.report(MapProgress(max(self.reached.cells_done, int(share * (PARTS - 1))), PARTS))
        self._left_s = left_s

    @property
    def seconds_left(self) -> float | None:
        """By the duration of the epochs so far."""
        return self._left_s


class TrainWorker(Worker):
    """Claims trainings and runs each in a child process."""

    kind: Kind = "train"

    def _is_ready(self, default_model: str) -> bool:
        missing = [package for package in PACKAGES if find_spec(package) is None]
        if missing:
            reason = f"training needs the package {missing[0]}: pip install 'hyperscene[train,cpu]'"
            if self._state.reason != reason:
                log.error("not ready: %s", reason, extra={"worker": self._name})
            self._retry_write(lambda: self._save_state(replace(self._state, state="failed", reason=reason)))
            return False
        self._retry_write(lambda: self._save_state(replace(self._state, state="ready", provider="torch", reason=None)))
        log.info("ready to train", extra={"worker": self._name})
        return True

    @property
    def _patience(self) -> int:
        return PATIENCE

    def _new_progress(self, job: JobRecord) -> JobProgress:
        return TrainingProgress(job.progress)

    def _work_folder(self, job: JobRecord) -> Path:
        return self._settings.training_folder(job.id)

    def _map_from(self, job: JobRecord, in_flight: InFlight) -> None:
        settings = self._settings
        in_flight.record([OPENING])
        if not self._retry_write(lambda: self._store.renew(job, settings.lease_s, job.progress, None)):
            raise Cancelled
        for leftover in settings.job_folder(job.id).glob("attempt-*"):  # of a worker that was killed
            rmtree(leftover, ignore_errors=True)
        self._retry_write(lambda: self._store.set_provider(job, TRAINING, "torch"))
        seconds = self._train(job, in_flight)
        attempt = settings.job_folder(job.id) / f"attempt-{job.token}"
        attempt.mkdir()
        for name in MODEL_FILES:
            with suppress(FileNotFoundError):
                (settings.training_folder(job.id) / name).rename(attempt / name)
        self._retry_write(lambda: self._store_events(job))
        if not self._retry_write(lambda: self._succeed_training(job, seconds, attempt)):
            raise Cancelled
        drop_work(settings, job.id)
        log.info("successful", extra={"worker": self._name, "seconds": round(sum(seconds.values()), 1)})

    def _train(self, job: JobRecord, in_flight: InFlight) -> dict[str, float]:
        """Run the trainer to its end; gives the seconds of each stage."""
        progress, epoch = self._progress, OPENING
        assert isinstance(progress, TrainingProgress)
        for message in self._messages(self._request(job)):
            if "code" in message:
                raise error_from_code(message["code"], self._with_sent_name(job, message["detail"]))
            if "note" in message:
                log.info("%s", message["note"], extra={"worker": self._name})
            if "stage" in message:
                self._retry_write(partial(self._store.set_stage, job, str(message["stage"])))
            if "epoch" in message:
                epoch = int(message["epoch"])
            in_flight.record([epoch])
            if "share" in message:
                progress.advance(float(message["share"]), message.get("left_s"))
            if "done" in message:
                return {str(name): float(spent_s) for name, spent_s in message["done"].items()}
        self._count_crash(job, epoch)
        raise TrainerCrashed

    def _request(self, job: JobRecord) -> dict[str, Any]:
        settings, options = self._settings, job.options
        scene = self._store.scene(job.scene_id)
        if scene is None:
            raise InternalError(f"the scene of job {job.id} is gone: send it again")
        labels = settings.labels_folder(job.id)
        mask = options.get("mask")
        return {
            "scene": str(data_path(settings, scene)),
            "labels": str(labels / options["label_file"]),
            "class_field": options["class_field"],
            "wavelengths": str(labels / "wavelengths.txt") if options.get("wavelengths") else None,
            "mask": None if mask is None else ",".join(mask) or "none",
            "folder": str(settings.training_folder(job.id)),
            "precision": options["precision"],
            "options": {
                "name": job.model,
                "scene_name": job.scene_name,
                "labels_name": options["labels"],
                "description": options.get("description"),
                **{name: options[name] for name in ("recipe", "epochs", "seed")},
            },
            "report": {"model": job.model, "job": job.id, "scene": job.scene_name, "labels": options["labels"]},
        }

    def _messages(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The trainer's messages until it ends; it is killed when the job is cancelled."""
        child = subprocess.Popen(
            module_command(TRAINER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(),
            start_new_session=True,
        )  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps(request).encode() + b"\n")
                child.stdin.flush()
            pipe, read = child.stdout.fileno(), b""
            while not self._cancelled.is_set():
                ready, _, _ = select.select([pipe], [], [], POLL_S)
                part = os.read(pipe, 1 << 16) if ready else None
                if part == b"":
                    return
                *lines, read = (read + (part or b"")).split(b"\n")
                yield from map(json.loads, lines)
            raise Cancelled
        finally:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()

    def _with_sent_name(self, job: JobRecord, text: str) -> str:
        return text.replace(job.options["label_file"], job.options["labels"])

    def _count_crash(self, job: JobRecord, epoch: int) -> None:
        """Release the job, to go on from its checkpoint; it fails after several crashes in the same epoch."""
        log.error("the trainer ended without a result", extra={"worker": self._name})
        positions = {job.token or "": frozenset([epoch])}
        failed = self._retry_write(
            lambda: self._store.release_after_worker_crash(self._name, positions, self._settings.keep_results_s)
        )
        self._retry_write(lambda: self._save_state(self._state))  # which the crash of a worker removes
        for each in failed or []:
            drop_job(self._settings, self._store, each)

    def _stop_work(self, job: JobRecord, error: Exception) -> None:
        if isinstance(error, TrainerCrashed):
            self._is_stopping.wait(1.0)
            return
        super()._stop_work(job, error)

    def _refusal(self, job: JobRecord, error: Exception) -> ServiceError:
        if isinstance(error, MemoryError):
            return error_from_code("training_failed", "the worker ran out of memory: crop the scene")
        return super()._refusal(job, error)

    def _succeed_training(self, job: JobRecord, seconds: dict[str, float], attempt: Path) -> bool:
        model = self._model(job, attempt)

        def publish(finished: JobRecord, made: ModelRecord) -> None:
            source = attempt if attempt.is_dir() else self._settings.results_folder(job.id)
            report = json.loads((source / REPORT).read_text()) | {"version": made.version}
            (source / REPORT).write_text(json.dumps(report))
            flush_folder(source)
            publish_model(self._settings, source, made)
            self._publish(finished, attempt)

        return self._store.succeed_training(job, model, seconds, self._settings.keep_results_s, publish)

    def _model(self, job: JobRecord, attempt: Path) -> ModelRecord:
        from hyperscene.model.bundle import read_bundle

        bundle = read_bundle(attempt / BUNDLE)
        return ModelRecord(
            id=new_id(),
            owner=job.owner,
            name=job.model,
            version=0,  # the store numbers it
            created=time.time(),
            size_bytes=len(bundle.content),
            sha256=bundle.sha256,
            manifest=bundle.manifest.model_dump(mode="json"),
            job_id=job.id,
        )


def run_beside_server(settings: Settings) -> None:
    """Train for the server of a data folder, in this process, until SIGTERM or Ctrl-C."""
    # Its form tells the server that this worker does not end with it.
    worker = TrainWorker(settings, f"train@{socket.gethostname()}-{os.getpid()}", TRAINING, 0, {})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    worker.run("")


def main() -> None:
    """Train for the server, whose settings are the first line of standard input."""
    start = read_start_message()
    settings = Settings.model_validate(start["settings"])
    logs.set_up_logs(settings.log_level)
    os.nice(5)  # the server's responses come first
    worker = TrainWorker(settings, start["name"], TRAINING, 0, {})
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=read_wakes, args=(worker,), name="hyperscene-wake", daemon=True).start()
    worker.run("")


if __name__ == "__main__":
    main()
