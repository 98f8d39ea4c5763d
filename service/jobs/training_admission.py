"""Admission of trainings: checks labels against their scene, keeps them with the job, and adds it to the store."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperscene.errors import LabelsUnusable, QueueFull, RequestUnusable, TrainingUnavailable
from hyperscene.service.jobs.admission import Admission, chosen_masks
from hyperscene.service.jobs.adoption import write_record
from hyperscene.service.jobs.disk import data_path, flush_folder
from hyperscene.service.jobs.label_inspector import LabelInspector
from hyperscene.service.jobs.model_admission import ModelAdmission
from hyperscene.service.jobs.received_files import ReceivedFile, clean_name
from hyperscene.service.jobs.records import JobRecord, SceneRecord, new_id
from hyperscene.service.jobs.store import Store
from hyperscene.service.settings import Settings, has_torch

log = logging.getLogger("hyperscene.admission")

RECIPES = ("strong", "paper")
PRECISIONS = ("auto", "float32", "bfloat16")
MAX_EPOCHS, LARGEST_SEED = 1_000, 2**31 - 1


@dataclass(frozen=True)
class TrainingRequest:
    """The options of a training; None selects the default."""

    name: str  # of the model
    class_field: str | None = None
    recipe: str = "strong"
    epochs: int | None = None
    seed: int = 0
    precision: str = "auto"
    masks: tuple[str, ...] | None = None
    wavelengths: str | None = None  # in nm, a number for each band
    description: str | None = None


class TrainingAdmission:
    """Adds trainings to the store, where the workers that train claim them."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        admission: Admission,
        models: ModelAdmission,
        labels: LabelInspector,
        training_slots: int,
    ) -> None:
        self._settings = settings
        self._store = store
        self._admission = admission
        self._models = models
        self._labels = labels
        self._slots = training_slots

    def require_worker(self) -> None:
        """Refuse a training that no worker will take."""
        now = time.time()
        workers = [worker for worker in self._store.training_workers() if now - worker.heartbeat < self._patience_s]
        if any(worker.state != "failed" for worker in workers) or (self._slots and not workers):
            return
        if workers:
            raise TrainingUnavailable(f"{workers[0].reason} (see /health)")
        why = "it was started with --train-workers 0" if has_torch() else "torch is not installed here"
        raise TrainingUnavailable(
            f"this server does not train: {why}, and no training worker shares its data folder; ask its operator for "
            "pip install 'hyperscene[train,cpu]', or for a worker from the image hyperscene:train "
            "(docker compose --profile train up)"
        )

    def is_available(self) -> bool:
        """Whether a worker trains."""
        try:
            self.require_worker()
        except TrainingUnavailable:
            return False
        return True

    @property
    def _patience_s(self) -> float:
        return max(60.0, 4 * self._settings.lease_s)

    def describe(self, scene: SceneRecord, file: ReceivedFile, class_field: str | None) -> dict[str, Any]:
        """What a label file contains, and its classes on the scene's grid."""
        if scene.href is not None:
            raise RequestUnusable(
                "models are trained on scenes that are stored here, and this one is read from its URL: upload it"
            )
        found = self._labels.describe(file, data_path(self._settings, scene), class_field, self._settings.limits)
        return {"name": clean_name(file.name), **found}

    def submit(
        self,
        scene: SceneRecord,
        file: ReceivedFile,
        request: TrainingRequest,
        owner: str,
        key: str | None = None,
        request_id: str | None = None,
        *,
        is_new_scene: bool = False,
    ) -> JobRecord:
        """Add a training on a scene that is in the store, or that is added with it; refused, it leaves nothing."""
        with self._admission.removed_on_error(scene) if is_new_scene else nullcontext():
            job = self._checked(scene, file, request, owner, key, request_id)
            kept = self._add(job, scene, file.path.parent, request.wavelengths, is_new_scene)
        if kept.id != job.id and is_new_scene:  # the key was used before, for a job with its own scene
            shutil.rmtree(self._settings.scene_folder(scene.id), ignore_errors=True)
        return kept

    def _checked(
        self,
        scene: SceneRecord,
        file: ReceivedFile,
        request: TrainingRequest,
        owner: str,
        key: str | None,
        request_id: str | None,
    ) -> JobRecord:
        """The job of a training that is possible, as far as the header of the scene and the labels tell."""
        self._models.require_name(request.name)
        masks = chosen_masks(scene, request.masks)
        _require_wavelengths(request, scene)
        described = self.describe(scene, file, request.class_field)
        if not described["classes"]:
            fields = ", ".join(field["name"] for field in described["fields"]) or "none"
            raise LabelsUnusable(
                f"class_field must name the field of {described['name']} with the classes; its fields are {fields}"
            )
        now = time.time()
        return JobRecord(
            id=new_id(),
            owner=owner,
            scene_id=scene.id,
            scene_name=scene.name,
            model=request.name,
            options=_options(request, described) | masks,
            status="accepted",
            created=now,
            updated=now,
            idempotency_key=key,
            request_id=request_id,
            kind="train",
        )

    def _add(
        self, job: JobRecord, scene: SceneRecord, received: Path, wavelengths: str | None, is_new_scene: bool
    ) -> JobRecord:
        settings, folder = self._settings, self._settings.job_folder(job.id)

        def publish() -> None:
            """The labels, in the job's folder, before the job can be claimed."""
            labels = settings.labels_folder(job.id)
            labels.mkdir(parents=True, exist_ok=True)
            for path in received.glob("labels.*"):
                shutil.copyfile(path, labels / path.name)
            if wavelengths is not None:
                (labels / "wavelengths.txt").write_text(wavelengths)
            if is_new_scene:
                write_record(settings.scene_folder(scene.id), scene)
            write_record(folder, job)
            flush_folder(folder)

        try:
            kept = self._store.add_job(
                job,
                settings.max_waiting,
                scene if is_new_scene else None,
                max_of_owner=settings.waiting_per_key,
                max_owner_s=settings.max_owner_s,
                publish=publish,
            )
        except QueueFull as error:
            raise self._admission.queue_full(error, job.owner, "train") from error
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        log.info("accepted", extra={"job_id": kept.id})
        self._admission.wake()
        return kept


def _options(request: TrainingRequest, described: dict[str, Any]) -> dict[str, Any]:
    """The options as the job keeps them, with what the labels contain."""
    return {
        "recipe": request.recipe,
        "epochs": request.epochs,
        "seed": request.seed,
        "precision": request.precision,
        "class_field": described["class_field"],
        "labels": described["name"],
        "label_file": described["file"],
        "label_pixels": described["pixels"],
        "classes": [{name: entry[name] for name in ("name", "color", "pixels")} for entry in described["classes"]],
        **({"wavelengths": True} if request.wavelengths is not None else {}),
        **({"description": request.description} if request.description else {}),
    }


def _require_wavelengths(request: TrainingRequest, scene: SceneRecord) -> None:
    if request.wavelengths is None:
        return
    count, bands = len(request.wavelengths.split("\n")), scene.document["bands"] + scene.document["bad_bands"]
    if count not in (bands, scene.document["bands"]):
        raise RequestUnusable(f"wavelengths has {count} numbers for {bands} bands: send one for each")
