"""Admission: what comes in is checked, put in its place and kept in the store, and then its sender hears of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any

import numpy as np

from model.spectra import BandMatch
from service.errors import (
    BandsMissing,
    NoSuchScene,
    NotReady,
    QueueFull,
    SceneIncomplete,
    SceneInUse,
    SceneTooLarge,
    SceneUnreadable,
    ServiceError,
    StorageFull,
    error_of,
    in_words,
)
from service.jobs.disk import drop_job, flush, flush_folder
from service.jobs.inspector import MOST_REFERRING, Inspector
from service.jobs.models import Models, ServedModel
from service.jobs.records import JobRecord, SceneRecord, new_id
from service.jobs.store import Store
from service.jobs.supervisor import Supervisor
from service.jobs.views import Views
from service.mapping.blend import BLENDS, Blend
from service.mapping.pipeline import STRIDES, TALLEST_STRIP_PX, MapOptions
from service.mapping.remote import address_of, allowed_path
from service.mapping.scenes import ENVI_SUFFIXES, FORMATS, TIFF_MAGIC
from service.mapping.strips import PROBABILITY_TYPES, ProbabilityType
from service.mapping.view import match_manifest
from service.settings import Settings

log = logging.getLogger("hyperscene.admission")

LONGEST_NAME = 255
HEADER_NAME = "scene.hdr"  # of every ENVI header that comes in
SHARED_STRIP_PX = 32  # strips that several machines share are short: there are some for everybody
# What a caller may choose from.
CHOICES: dict[str, tuple[Any, ...]] = {"stride_px": STRIDES, "blend": BLENDS, "probability_type": PROBABILITY_TYPES}
MATCHES = {
    "same": "the same bands",
    "resampled": "bands that can be resampled",
    "by count": "as many bands, matched by their order",
}


@dataclass(frozen=True)
class ReceivedFile:
    """A file of an upload, on disk under a name of ours."""

    path: Path
    name: str  # as the sender calls it
    start: bytes  # its first four bytes
    size_bytes: int


@dataclass(frozen=True)
class JobRequest:
    """What a caller may choose; None and 0 leave it to us."""

    model: str | None = None
    stride_px: int = 0
    blend: Blend = "angle"
    probability_type: ProbabilityType = "uint8"


class Admission:
    """The door: scenes and jobs come in here, and leave when they are dismissed or expire."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        models: Models,
        inspector: Inspector,
        supervisor: Supervisor,
        views: Views,
    ) -> None:
        self._settings = settings
        self._store = store
        self._models = models
        self._inspector = inspector
        self._supervisor = supervisor
        self._views = views
        self._uploads = 0
        self._job_uploads = 0
        self._was_ready = False
        self._referring = threading.BoundedSemaphore(MOST_REFERRING)

    # Before an upload is read

    @contextmanager
    def slot(self, *, is_job: bool) -> Generator[None, None, None]:
        """A place for an upload, and for the job it will be, so that others see that it is taken."""
        self._uploads += 1
        self._job_uploads += is_job
        try:
            yield
        finally:
            self._uploads -= 1
            self._job_uploads -= is_job

    def require_place(self, expected_bytes: int | None, *, is_job: bool) -> None:
        """Refuse an upload that has a slot before a byte of it is read."""
        if expected_bytes is not None and expected_bytes > self._settings.max_upload_bytes:
            raise self.too_many_bytes()
        self._require_room(expected_bytes or 0)
        if is_job:
            self.require_queue()
        if self._uploads > self._settings.max_uploads:
            raise self._come_back(f"{self._settings.max_uploads} uploads are under way, as many as this server takes")

    def require_queue(self) -> None:
        """A place in the queue, and a worker that will get to it."""
        self._require_workers()
        waiting = self._store.count_jobs().get("accepted", 0) + max(0, self._job_uploads - 1)
        if waiting >= self._settings.max_waiting:
            raise self._come_back(f"{waiting} jobs wait, as many as this server takes")

    def _require_room(self, needed_bytes: int) -> None:
        """Disk for an upload and what has to stay free."""
        free = disk_usage(self._settings.data).free
        if needed_bytes + self._settings.min_free_bytes > free:
            raise StorageFull(
                f"the upload needs {needed_bytes} bytes beside the {int(self._settings.min_free_bytes)} that stay "
                f"free, and {free} are free: try again later, or ask the operator to make room"
            )

    def too_many_bytes(self) -> SceneTooLarge:
        """The refusal of an upload that is too long."""
        return SceneTooLarge(
            f"the upload is longer than {int(self._settings.max_upload_bytes)} bytes, which this server accepts: "
            "crop the scene"
        )

    def _require_workers(self) -> None:
        workers = self._store.workers()
        self._was_ready = self._was_ready or any(worker.state == "ready" for worker in workers)
        broken = [worker for worker in workers if worker.state == "failed"]
        if broken and len(broken) == len(workers):
            raise NotReady(f"{broken[0].reason} (see /health)")
        if not self._was_ready:
            error = NotReady("the bundle is still being loaded: try again in some seconds, or see /health")
            error.headers = {"Retry-After": "3"}
            raise error

    def _come_back(self, why: str) -> QueueFull:
        seconds = self._store.mean_job_seconds() or 5.0
        after_s = min(600, max(1, round(seconds * self._settings.max_waiting / (4 * len(self._supervisor.slots)))))
        error = QueueFull(f"{why}: try again in {after_s} s")
        error.headers = {"Retry-After": str(after_s)}
        return error

    # Scenes

    def new_folder(self) -> Path:
        """An empty folder for an upload."""
        folder = self._settings.data / "incoming" / new_id()
        folder.mkdir(parents=True)
        return folder

    def take_in(self, folder: Path, files: list[ReceivedFile], owner: str, *, is_temporary: bool) -> SceneRecord:
        """A received scene in its place on disk, understood and safe from a power cut, but not in the store yet."""
        data = arrange(files)
        try:
            document = self._inspector.look_at_scene(data.path, self._settings.limits)
        except ServiceError as error:
            raise error_of(error.code, _in_senders_words(str(error), data, files)) from error
        flush_folder(folder)
        now, scene_id = time.time(), folder.name
        target = self._settings.scene_folder(scene_id)
        folder.rename(target)
        flush(target.parent)
        return SceneRecord(
            id=scene_id,
            owner=owner,
            name=clean_name(data.name),
            file=data.path.name,
            size_bytes=sum(file.size_bytes for file in files),
            created=now,
            expires=now + self._settings.keep_scenes_s,
            document=document,
            is_temporary=is_temporary,
        )

    def refer(self, href: str, owner: str, *, is_temporary: bool) -> SceneRecord:
        """A scene that is read in place, where it lies, understood but not in the store yet."""
        path = allowed_path(href, self._settings.hrefs)
        if not self._referring.acquire(blocking=False):  # a place that stalls holds up nobody else
            raise self._come_back(f"{MOST_REFERRING} scenes in other places are being looked at, as many as at a time")
        try:
            document = self._inspector.look_at_place(path, self._settings.limits)
        finally:
            self._referring.release()
        now = time.time()
        return SceneRecord(
            id=new_id(),
            owner=owner,
            name=clean_name(address_of(path)),
            file="",
            size_bytes=0,
            created=now,
            expires=now + self._settings.keep_scenes_s,
            document=document,
            is_temporary=is_temporary,
            href=href,
        )

    def keep_scene(self, scene: SceneRecord) -> SceneRecord:
        """Put a taken-in scene into the store."""
        with self._or_drop(scene):
            self._store.add_scene(scene)
        return scene

    def find_scene(self, scene_id: str, owner: str) -> SceneRecord:
        """A caller's scene."""
        scene = self._store.scene(scene_id, owner)
        if scene is None:
            raise NoSuchScene(
                f"there is no scene {scene_id[:100]!r}: it may have expired, since scenes are kept for "
                f"{in_words(self._settings.keep_scenes_s)}; send it again"
            )
        return scene

    def matches(self, scene: SceneRecord) -> dict[str, str]:
        """What each model says to the scene's bands."""
        words = {}
        for name, model in self._models.by_name.items():
            try:
                words[name] = MATCHES[match_model(scene, model).kind]
            except BandsMissing as error:
                words[name] = f"does not match: {error}"
        return words

    def delete_scene(self, scene: SceneRecord) -> None:
        """Forget a scene and free its disk."""
        if not self._store.remove_scene(scene.id):
            raise SceneInUse(f"a job still has to read the scene {scene.id}: wait for it, or dismiss it first")
        rmtree(self._settings.scene_folder(scene.id), ignore_errors=True)

    @contextmanager
    def _or_drop(self, scene: SceneRecord) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            rmtree(self._settings.scene_folder(scene.id), ignore_errors=True)
            raise

    # Jobs

    def check(self, scene: SceneRecord, request: JobRequest) -> tuple[ServedModel, MapOptions]:
        """Refuse what a worker would refuse, as far as it can be known from the header."""
        model = self._models.find(request.model)
        match_model(scene, model)
        options = MapOptions(request.stride_px, request.blend, request.probability_type, self._settings.strip_px)
        tallest_px = SHARED_STRIP_PX if self._settings.cluster else TALLEST_STRIP_PX
        return model, options.settled(model.manifest, scene.document["cols"], tallest_px)

    def submit(
        self,
        scene: SceneRecord,
        request: JobRequest,
        owner: str,
        key: str | None = None,
        request_id: str | None = None,
        *,
        execution: dict[str, Any] | None = None,
        is_new_scene: bool = False,
    ) -> JobRecord:
        """A job in the store, for a scene that lies there or comes with it."""
        with self._or_drop(scene) if is_new_scene else _nothing():
            model, options = self.check(scene, request)
            now = time.time()
            job = JobRecord(
                id=new_id(),
                owner=owner,
                scene_id=scene.id,
                scene_name=scene.name,
                model=model.name,
                options=asdict(options),
                status="accepted",
                created=now,
                updated=now,
                execution=execution or {},
                idempotency_key=key,
                request_id=request_id,
            )
            try:
                kept = self._store.add_job(job, self._settings.max_waiting, scene if is_new_scene else None)
            except QueueFull as error:
                raise self._come_back(str(error)) from error
        if kept.id != job.id and is_new_scene:  # the key made a job before, with a scene of its own
            rmtree(self._settings.scene_folder(scene.id), ignore_errors=True)
        log.info("accepted", extra={"job_id": kept.id})
        self._supervisor.wake()
        if kept.id == job.id:
            self._views.make_ahead(scene)
        return kept

    def dismiss(self, job: JobRecord) -> None:
        """Stop a job or drop its results, and free its disk; a worker that has it frees it once more when it stops."""
        self._store.dismiss(job.id, self._settings.keep_results_s)
        self._supervisor.wake()
        drop_job(self._settings, self._store, job)
        log.info("dismissed", extra={"job_id": job.id})

    def expire(self) -> None:
        """Drop what is past its time."""
        now = time.time()
        for job_id in self._store.expired_jobs(now):
            if job := self._store.job(job_id):
                drop_job(self._settings, self._store, job)
                self._store.remove_job(job_id)
        for scene_id in self._store.expired_scenes(now):
            if self._store.remove_scene(scene_id):
                rmtree(self._settings.scene_folder(scene_id), ignore_errors=True)


def match_model(scene: SceneRecord, model: ServedModel) -> BandMatch:
    """How the scene's good bands become the model's, or the refusal."""
    nm = scene.document["wavelengths_nm"]
    return match_manifest(None if nm is None else np.array(nm), scene.document["bands"], model.manifest)


def arrange(files: list[ReceivedFile]) -> ReceivedFile:
    """Give the files of a scene the names that GDAL looks for; answers the data file. Sidecars are refused."""
    for file in files:
        if file.size_bytes == 0:
            raise SceneUnreadable(f"{clean_name(file.name)} is empty: send {FORMATS}")
    tiffs = [file for file in files if file.start in TIFF_MAGIC]
    headers = [file for file in files if file.start == b"ENVI"]
    others = [file for file in files if file not in tiffs and file not in headers]
    if len(files) == 1 and tiffs:
        return _renamed(tiffs[0], "scene.tif")
    if len(files) == 1 and headers:
        raise SceneIncomplete(f"{clean_name(headers[0].name)} is an ENVI header without its data: send both as `scene`")
    if len(files) == 1 and Path(others[0].name).suffix.lower() in ENVI_SUFFIXES:
        raise SceneIncomplete(f"{clean_name(others[0].name)} is ENVI data without its header: send both as `scene`")
    if len(files) == 2 and len(headers) == 1 and len(others) == 1:
        _renamed(headers[0], HEADER_NAME)
        return _renamed(others[0], "scene.img")
    names = ", ".join(clean_name(file.name) for file in files[:4]) or "nothing"
    raise SceneUnreadable(
        f"a scene is one GeoTIFF, or ENVI data and its header, by their content and with nothing beside; found {names}"
    )


def _in_senders_words(text: str, data: ReceivedFile, files: list[ReceivedFile]) -> str:
    """A refusal with the names that the sender knows the files by."""
    for file in files:
        name = HEADER_NAME if file.start == b"ENVI" else data.path.name
        text = text.replace(name, clean_name(file.name))
    return text


def _renamed(file: ReceivedFile, name: str) -> ReceivedFile:
    path = file.path.with_name(name)
    file.path.rename(path)
    return ReceivedFile(path, file.name, file.start, file.size_bytes)


def clean_name(name: str) -> str:
    """A sender's name for a file, fit to be shown: no folders, nothing unprintable, not too long."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(letter for letter in last if letter.isprintable())
    return shown[:LONGEST_NAME].strip() or "scene"


@contextmanager
def _nothing() -> Generator[None, None, None]:
    yield
