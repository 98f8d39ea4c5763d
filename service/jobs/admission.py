"""Admission: checks scenes and jobs that are submitted, moves them into the data folder and adds them to the store."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any, Literal

import numpy as np

from hyperscene.errors import (
    BandsMissing,
    NoSuchScene,
    NotReady,
    OwnQueueFull,
    QueueFull,
    SceneInUse,
    SceneTooLarge,
    ServiceError,
    StorageFull,
    error_from_code,
    format_duration,
)
from hyperscene.model.spectra import BandMatch
from hyperscene.service.jobs.adoption import expire_quarantine, write_new_records
from hyperscene.service.jobs.disk import drop_job, drop_scene, flush, flush_folder
from hyperscene.service.jobs.estimates import Estimates
from hyperscene.service.jobs.inspector import MAX_REMOTE, Inspector
from hyperscene.service.jobs.models import Models, ServedModel
from hyperscene.service.jobs.previews import Previews
from hyperscene.service.jobs.received_files import (
    ARCHIVES,
    PRODUCT_FOLDER,
    ReceivedFile,
    clean_name,
    name_scene_files,
    with_sent_names,
)
from hyperscene.service.jobs.records import JobRecord, Kind, SceneRecord, new_id
from hyperscene.service.jobs.store import Store, check_waiting
from hyperscene.service.jobs.supervisor import Supervisor
from hyperscene.service.mapping.band_view import fit_text, match_manifest
from hyperscene.service.mapping.blend import BLENDS, Blend
from hyperscene.service.mapping.options import MAX_STRIP_PX, STRIDES, MapOptions
from hyperscene.service.mapping.products.containers import ArchiveLimits
from hyperscene.service.mapping.products.masks import NONE as MASK_NONE
from hyperscene.service.mapping.products.masks import choose_kinds, parse_masks
from hyperscene.service.mapping.products.product import MASK_KINDS
from hyperscene.service.mapping.remote import address_of, allowed_path
from hyperscene.service.mapping.strips import PROBABILITY_TYPES, ProbabilityType
from hyperscene.service.settings import Settings

# Re-exported for the routes, which must not import the mapping layer.
__all__ = ["ALLOWED", "MASK_KINDS", "MASK_NONE", "Admission", "JobRequest", "match_model", "parse_masks"]

log = logging.getLogger("hyperscene.admission")

FORGOTTEN_S = 3600.0  # after its last heartbeat
UPLOAD_S = 5.0  # of an upload, before any was measured
LONGEST_RETRY_S = 86400
SHARED_STRIP_PX = 32  # strips for a cluster are short, so that every worker gets some
# The values of the options that a request may set.
ALLOWED: dict[str, tuple[Any, ...]] = {
    "stride_px": STRIDES,
    "blend": BLENDS,
    "probability_type": PROBABILITY_TYPES,
    "unknown": ("no", "yes"),
}
MATCHES = {
    "same": "the same bands",
    "resampled": "bands that can be resampled",
    "by count": "as many bands, matched by their order",
}


@dataclass(frozen=True)
class JobRequest:
    """The options of a job; None and 0 select the default."""

    model: str | None = None
    stride_px: int = 0
    blend: Blend = "angle"
    probability_type: ProbabilityType = "uint8"
    unknown: Literal["no", "yes"] = "no"
    masks: tuple[str, ...] | None = None  # kinds that make pixels invalid; None: the product's default


class Admission:
    """Adds scenes and jobs, and removes them when they are dismissed or expire."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        models: Models,
        inspector: Inspector,
        supervisor: Supervisor,
        previews: Previews,
    ) -> None:
        self._settings = settings
        self._store = store
        self._models = models
        self._inspector = inspector
        self._supervisor = supervisor
        self._previews = previews
        self._uploads: Counter[str] = Counter()  # by owner
        self._job_uploads: Counter[str] = Counter()
        self._remote_reads: Counter[str] = Counter()
        self._remote_lock = threading.Lock()
        self._upload_seconds: deque[float] = deque(maxlen=20)  # of the last uploads
        self._was_ready = False
        longest_s = min(settings.max_job_s, settings.max_owner_s)
        self._estimates = Estimates(store, supervisor.slots, longest_s)

    # Before an upload is read

    @contextmanager
    def upload_slot(self, owner: str, *, is_job: bool) -> Generator[None, None, None]:
        """Count an upload, and the job that it will become, against the limits."""
        self._uploads[owner] += 1
        self._job_uploads[owner] += is_job
        began = time.monotonic()
        try:
            yield
            self._upload_seconds.append(time.monotonic() - began)
        finally:
            self._uploads[owner] -= 1
            self._job_uploads[owner] -= is_job

    def require_capacity(self, expected_bytes: int | None, owner: str, *, is_job: bool, kind: Kind = "map") -> None:
        """Refuse an upload, which has its slot already, before its body is read."""
        if expected_bytes is not None and expected_bytes > self._settings.max_upload_bytes:
            raise self.too_many_bytes()
        self._require_disk(expected_bytes or 0)
        if is_job:
            self.require_queue_slot(owner, kind)
        settings = self._settings
        if self._uploads.total() > settings.max_uploads:
            raise self._uploads_full(f"{settings.max_uploads} uploads are in progress, which is the limit")
        if self._uploads[owner] > settings.uploads_per_key:
            raise self._uploads_full(
                f"{settings.uploads_per_key} uploads of your API key are in progress, which is its limit"
            )

    def require_queue_slot(self, owner: str, kind: Kind = "map") -> None:
        """Refuse a job if the queue, or the owner's share of it, is full, or if no worker maps."""
        if kind == "map":
            self._require_workers()
        uploads = self._job_uploads.copy()
        uploads[owner] = max(0, uploads[owner] - 1)  # without the one that is asked about
        try:
            waiting = self._store.count_waiting() + uploads
            check_waiting(waiting, owner, self._settings.max_waiting, self._settings.waiting_per_key)
        except QueueFull as error:
            raise self.queue_full(error, owner, kind) from error

    def _require_disk(self, needed_bytes: int) -> None:
        """Refuse an upload that does not fit on the disk."""
        free = disk_usage(self._settings.data).free
        if needed_bytes + self._settings.min_free_bytes > free:
            raise StorageFull(
                f"the upload needs {needed_bytes} bytes and {int(self._settings.min_free_bytes)} must stay free, but "
                f"{free} are free: try again later, or ask the operator to make room"
            )

    def too_many_bytes(self) -> SceneTooLarge:
        """The error for an upload that is too long."""
        return SceneTooLarge(
            f"the upload is longer than the {int(self._settings.max_upload_bytes)} bytes that this server accepts: "
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

    def wake(self) -> None:
        """Have every worker check the store now."""
        self._supervisor.wake()

    def queue_full(self, why: QueueFull, owner: str, kind: Kind = "map") -> QueueFull:
        """The refusal of a job, with the seconds until a job starts whose place it could take."""
        whose = owner if isinstance(why, OwnQueueFull) else None
        max_running_s = self._settings.max_running_s_per_key or None
        slots = len(self._supervisor.slots) if kind == "map" else max(1, len(self._supervisor.training_slots))
        return _try_again(str(why), self._store.seconds_until_start(whose, slots, max_running_s, kind))

    def _uploads_full(self, why: str) -> QueueFull:
        """The refusal of an upload, with the time in which one of those in progress ends."""
        seconds = sum(self._upload_seconds) / max(1, len(self._upload_seconds))
        return _try_again(why, (seconds or UPLOAD_S) / max(1, self._uploads.total()))

    # Scenes

    def new_folder(self) -> Path:
        """An empty folder for an upload."""
        folder = self._settings.data / "incoming" / new_id()
        folder.mkdir(parents=True)
        return folder

    def receive_scene(self, folder: Path, files: list[ReceivedFile], owner: str, *, is_temporary: bool) -> SceneRecord:
        """Inspect a received scene and move it into the data folder, flushed to disk; it is not in the store yet."""
        data = name_scene_files(files)
        sent, size_bytes = data, sum(file.size_bytes for file in files)
        try:
            if data.path.name in ARCHIVES.values():
                data, size_bytes = self._unpacked(data)
            document = self._inspector.inspect_scene(data.path, self._settings.limits)
        except ServiceError as error:
            raise error_from_code(error.code, with_sent_names(str(error), sent, files)) from error
        flush_folder(folder)
        now, scene_id = time.time(), folder.name
        target = self._settings.scene_folder(scene_id)
        folder.rename(target)
        flush(target.parent)
        return SceneRecord(
            id=scene_id,
            owner=owner,
            name=clean_name(data.name),
            file=str(data.path.relative_to(folder)),
            size_bytes=size_bytes,
            created=now,
            expires=now + self._settings.keep_scenes_s,
            document=document,
            is_temporary=is_temporary,
        )

    def _unpacked(self, archive: ReceivedFile) -> tuple[ReceivedFile, int]:
        """The folder of an archive's files instead of the archive, and their bytes."""
        settings, folder = self._settings, archive.path.with_name(PRODUCT_FOLDER)
        # What is unpacked is stored like an upload, and has its limit.
        most = min(int(settings.max_upload_bytes), int(settings.max_unpacked_bytes))
        limits = ArchiveLimits(unpacked_bytes=most, kept_bytes=int(settings.min_free_bytes))
        size_bytes = self._inspector.unpack(archive.path, folder, limits)
        archive.path.unlink()
        return replace(archive, path=folder), size_bytes

    def reference_scene(self, href: str, owner: str, *, is_temporary: bool) -> SceneRecord:
        """Inspect a scene that stays on another host; it is not in the store yet."""
        path = allowed_path(href, self._settings.hrefs, self._settings.href_networks)
        with self._remote_slot(owner):
            document = self._inspector.inspect_remote_scene(path, self._settings.limits)
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

    @contextmanager
    def _remote_slot(self, owner: str) -> Generator[None, None, None]:
        """A place to read a remote scene: a host that does not respond must not block others."""
        with self._remote_lock:
            if self._remote_reads.total() >= MAX_REMOTE:
                raise _try_again(f"{MAX_REMOTE} remote scenes are being read, which is the limit", UPLOAD_S)
            if self._remote_reads[owner] >= (most := self._settings.share_of_key(MAX_REMOTE)):
                raise _try_again(f"{most} remote scenes of your API key are being read, which is its limit", UPLOAD_S)
            self._remote_reads[owner] += 1
        try:
            yield
        finally:
            with self._remote_lock:
                self._remote_reads[owner] -= 1

    def store_scene(self, scene: SceneRecord) -> SceneRecord:
        """Add a received scene to the store."""
        with self.removed_on_error(scene):
            self._store.add_scene(scene, lambda: write_new_records(self._settings, scene))
        return scene

    def find_scene(self, scene_id: str, owner: str) -> SceneRecord:
        """A caller's scene."""
        scene = self._store.scene(scene_id, owner)
        if scene is None:
            raise NoSuchScene(
                f"there is no scene {scene_id[:100]!r}: it may have expired, since scenes are kept for "
                f"{format_duration(self._settings.keep_scenes_s)}; send it again"
            )
        return scene

    def matches(self, scene: SceneRecord) -> dict[str, str]:
        """How the scene's bands match each model."""
        found = {}
        for model in self._models.visible(scene.owner):
            name = model.name
            try:
                match = match_model(scene, model)
                found[name] = MATCHES[match.kind] + fit_text(match, model.manifest)
            except BandsMissing as error:
                found[name] = f"does not match: {error}"
        return found

    def delete_scene(self, scene: SceneRecord) -> None:
        """Remove a scene and its files."""
        if not drop_scene(self._settings, self._store, scene.id):
            raise SceneInUse(f"a job still has to read the scene {scene.id}: wait for it, or dismiss it first")

    @contextmanager
    def removed_on_error(self, scene: SceneRecord) -> Generator[None, None, None]:
        """Remove the files of a scene that is not in the store if the block fails."""
        try:
            yield
        except BaseException:
            rmtree(self._settings.scene_folder(scene.id), ignore_errors=True)
            raise

    # Jobs

    def check(self, scene: SceneRecord, request: JobRequest) -> tuple[ServedModel, MapOptions]:
        """Refuse what a worker would refuse, as far as the header tells."""
        model = self._models.find(request.model, scene.owner)
        match_model(scene, model)
        options = MapOptions(
            request.stride_px,
            request.blend,
            request.probability_type,
            self._settings.strip_px,
            unknown=request.unknown == "yes",
        )
        tallest_px = SHARED_STRIP_PX if self._settings.cluster else MAX_STRIP_PX
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
        """Add a job for a scene that is in the store, or that is added with it."""
        with self.removed_on_error(scene) if is_new_scene else nullcontext():
            model, options = self.check(scene, request)
            masks = chosen_masks(scene, request.masks)
            estimated_s = self._estimates.seconds(scene, model, options)
            now = time.time()
            job = JobRecord(
                id=new_id(),
                owner=owner,
                scene_id=scene.id,
                scene_name=scene.name,
                model=model.name,
                model_version=None if model.record is None else model.version,
                options=asdict(options) | masks,
                status="accepted",
                created=now,
                updated=now,
                execution=execution or {},
                idempotency_key=key,
                request_id=request_id,
                estimated_s=estimated_s,
            )
            try:
                new = [scene] if is_new_scene else []
                kept = self._store.add_job(
                    job,
                    self._settings.max_waiting,
                    scene if is_new_scene else None,
                    max_of_owner=self._settings.waiting_per_key,
                    max_owner_s=self._settings.max_owner_s,
                    publish=partial(write_new_records, self._settings, *new, job),
                )
            except QueueFull as error:
                raise self.queue_full(error, owner) from error
        if kept.id != job.id and is_new_scene:  # the key was used before, for a job with its own scene
            rmtree(self._settings.scene_folder(scene.id), ignore_errors=True)
        log.info("accepted", extra={"job_id": kept.id})
        self._supervisor.wake()
        if kept.id == job.id:
            try:
                self._previews.make_early(scene)
            except Exception:  # the job is accepted
                log.exception("no preview", extra={"job_id": kept.id})
        return kept

    def dismiss(self, job: JobRecord) -> None:
        """Stop a job or drop its results, and remove its files; its worker removes what it still writes."""
        self._store.dismiss(job.id, self._settings.keep_results_s)
        self._supervisor.wake()
        drop_job(self._settings, self._store, job)
        log.info("dismissed", extra={"job_id": job.id})

    def expire(self) -> None:
        """Remove expired jobs and scenes."""
        now = time.time()
        for job_id in self._store.expired_jobs(now):
            if job := self._store.job(job_id):
                drop_job(self._settings, self._store, job)
                self._store.remove_job(job_id)
        for scene_id in self._store.expired_scenes(now):
            drop_scene(self._settings, self._store, scene_id)
        for worker in self._store.training_workers():  # one beside this server that ended without a word
            if now - worker.heartbeat > FORGOTTEN_S:
                self._store.remove_worker(worker.name)
        expire_quarantine(self._settings)


def _try_again(why: str, seconds: float) -> QueueFull:
    after_s = min(LONGEST_RETRY_S, max(1, math.ceil(seconds)))
    error = QueueFull(f"{why}: try again in {after_s} s")
    error.headers = {"Retry-After": str(after_s)}
    return error


def chosen_masks(scene: SceneRecord, kinds: tuple[str, ...] | None) -> dict[str, Any]:
    """The option of a job that says which masks of the scene's product are used; none for a scene without masks."""
    available = scene.document.get("available_masks", [])
    chosen = choose_kinds(available, kinds)
    return {"mask": [*chosen]} if available else {}


def match_model(scene: SceneRecord, model: ServedModel) -> BandMatch:
    """How the scene's good bands become the model's; raises if they cannot."""
    nm = scene.document["wavelengths_nm"]
    return match_manifest(None if nm is None else np.array(nm), scene.document["bands"], model.manifest)
