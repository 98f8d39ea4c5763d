"""Training over HTTP: a scene and labels in, a job that ends with a model out."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from hyperscene.errors import RequestUnusable
from hyperscene.service import logs
from hyperscene.service.api import examples
from hyperscene.service.api.classify import JOB_HEADERS, IdempotencyKey, created_response, job_of_key
from hyperscene.service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from hyperscene.service.api.documents import LabelFileDocument, StatusInfo
from hyperscene.service.api.problems import problems
from hyperscene.service.api.scenes import BINARY, SceneId
from hyperscene.service.api.uploads import MAX_FILES, Upload, content_length, receive_form, upload_folder
from hyperscene.service.jobs.admission import parse_masks
from hyperscene.service.jobs.received_files import ReceivedFile
from hyperscene.service.jobs.records import JobRecord, SceneRecord
from hyperscene.service.jobs.training_admission import (
    LARGEST_SEED,
    MAX_EPOCHS,
    PRECISIONS,
    RECIPES,
    TrainingRequest,
)

router = APIRouter(tags=["models"])

MAX_TEXT = 1000
LABELS_TEXT = (
    "a GeoPackage, GeoJSON, FlatGeobuf, zipped Shapefile, CSV of coordinates, or a GeoTIFF on the scene's grid"
)
OPTION_SCHEMAS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "maxLength": 100, "description": "of the model", "example": "reed"},
    "class_field": {
        "type": "string",
        "description": "the field of the label file with the classes; default: one that seems to hold them",
        "example": "crop",
    },
    "recipe": {"type": "string", "enum": [*RECIPES], "default": "strong"},
    "epochs": {"type": "integer", "minimum": 1, "maximum": MAX_EPOCHS, "description": "default: the recipe's"},
    "seed": {"type": "integer", "minimum": 0, "maximum": LARGEST_SEED, "default": 0},
    "precision": {"type": "string", "enum": [*PRECISIONS], "default": "auto", "description": "of training steps"},
    "wavelengths": {"type": "string", "description": "in nm, a number for each band, for a scene without them"},
    "mask": {"type": "string", "description": "masks of a product, such as cloud,shadow, or none"},
    "description": {"type": "string", "maxLength": MAX_TEXT, "description": "what users of the model should know"},
}
LABELS_PART = {**BINARY, "description": LABELS_TEXT}
TRAIN_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "labels"],
                    "additionalProperties": False,
                    "properties": {
                        "scene": {"type": "array", "maxItems": MAX_FILES, "items": BINARY},
                        "scene_id": {"type": "string", "description": "of an uploaded scene, instead of `scene`"},
                        "labels": LABELS_PART,
                        **OPTION_SCHEMAS,
                    },
                },
                "example": {"scene_id": examples.ID, "labels": "(the bytes of fields.gpkg)", "name": "reed"},
            }
        },
    }
}
DESCRIBE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["labels"],
                    "additionalProperties": False,
                    "properties": {"labels": LABELS_PART, "class_field": OPTION_SCHEMAS["class_field"]},
                },
                "example": {"labels": "(the bytes of fields.gpkg)", "class_field": "crop"},
            }
        },
    }
}


def parse_training(fields: Mapping[str, Any]) -> TrainingRequest:
    """The options of a form or of OGC's inputs; unknown names and values are refused."""
    for name in fields:
        if name not in OPTION_SCHEMAS:
            known = ", ".join(["scene", "scene_id", "labels", *OPTION_SCHEMAS])
            raise RequestUnusable(f"there is no option {name[:100]!r}; the options are {known}")
    for name in ("recipe", "precision"):
        choices = OPTION_SCHEMAS[name]["enum"]
        if name in fields and fields[name] not in choices:
            raise RequestUnusable(f"{name} must be one of {', '.join(choices)}, not {str(fields[name])[:100]!r}")
    texts = {name: _text(name, fields[name]) for name in ("name", "class_field", "description") if name in fields}
    if not texts.get("name"):
        raise RequestUnusable("name must be given: the name of the model that is trained")
    seed = _number("seed", fields.get("seed"), 0, LARGEST_SEED)
    masks = fields.get("mask")
    return TrainingRequest(
        name=texts["name"],
        class_field=texts.get("class_field") or None,
        recipe=fields.get("recipe", "strong"),
        epochs=_number("epochs", fields.get("epochs"), 1, MAX_EPOCHS),
        seed=seed or 0,
        precision=fields.get("precision", "auto"),
        masks=parse_masks(_text("mask", masks)) if masks else None,
        wavelengths=_wavelengths(fields["wavelengths"]) if fields.get("wavelengths") else None,
        description=texts.get("description") or None,
    )


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise RequestUnusable(f"{name} must be text of up to {MAX_TEXT} characters")
    return value.strip()


def _number(name: str, value: Any, least: int, most: int) -> int | None:
    if value is None or value == "":
        return None
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and least <= int(text[:12]) <= most):
        raise RequestUnusable(f"{name} must be a whole number from {least} to {most}, not {text[:100]!r}")
    return int(text)


def _wavelengths(value: Any) -> str:
    """One number a line, as the reader of wavelengths expects."""
    words = [str(each) for each in value] if isinstance(value, list) else str(value).replace(",", " ").split()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = [math.nan]
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise RequestUnusable("wavelengths must be numbers above 0 in nm, separated by commas")
    return "\n".join(f"{number:g}" for number in numbers)


@router.post(
    "/models",
    summary="Train a model",
    status_code=201,
    response_class=Response,
    responses={
        201: {"description": "The job", "model": StatusInfo, "headers": JOB_HEADERS},
        **problems(400, 404, 408, 409, 413, 429, 507),
    },
    openapi_extra=TRAIN_BODY,
)
async def train_model(
    request: Request, service: ServiceDep, owner: OwnerDep, base: BaseDep, key: IdempotencyKey = None
) -> Response:
    """Send a scene, or the id of one, and a label file. The job ends with the next version of the model `name`.

    The labels are checked against the scene before the job is accepted.
    """
    job = await job_of_key(service, owner, key)
    if job is None:
        job = await _submit_form(request, service, owner, key)
    elif job.kind != "train":
        raise RequestUnusable("this Idempotency-Key created a map: use another key")
    return created_response(job, base)


async def _submit_form(request: Request, service: Service, owner: str, key: str | None) -> JobRecord:
    admission, training = service.admission, service.training
    await asyncio.to_thread(training.require_worker)
    with admission.upload_slot(owner, is_job=True):
        await asyncio.to_thread(admission.require_capacity, content_length(request), owner, is_job=True, kind="train")
        async with upload_folder(service) as folder, upload_folder(service) as labels_folder:
            upload = await receive_form(request, service, folder, labels_folder)
            return await asyncio.to_thread(_submit, service, folder, upload, owner, key, logs.request_id.get())


def _submit(
    service: Service, folder: Path, upload: Upload, owner: str, key: str | None, request_id: str | None
) -> JobRecord:
    fields = dict(upload.fields)
    scene_id = fields.pop("scene_id", "")
    wanted, labels = parse_training(fields), _only_labels(upload)
    service.model_admission.require_name(wanted.name)
    if bool(scene_id) == bool(upload.files):
        raise RequestUnusable("send either the files of a scene as `scene`, or the id of an uploaded one as `scene_id`")
    if scene_id:
        scene = service.admission.find_scene(scene_id, owner)
    else:
        scene = service.admission.receive_scene(folder, upload.files, owner, is_temporary=True)
    return service.training.submit(scene, labels, wanted, owner, key, request_id, is_new_scene=not scene_id)


def _only_labels(upload: Upload) -> ReceivedFile:
    if len(upload.labels) != 1:
        raise RequestUnusable(f"send one label file in the field `labels`, not {len(upload.labels)}: {LABELS_TEXT}")
    return upload.labels[0]


def submit_inline(
    service: Service,
    scene: SceneRecord,
    geojson: Any,
    wanted: TrainingRequest,
    owner: str,
    key: str | None,
    request_id: str | None,
) -> JobRecord:
    """A training with labels that are part of an execute request."""
    folder = service.admission.new_folder()
    try:
        content = json.dumps(geojson).encode()
        path = folder / "part0"
        path.write_bytes(content)
        file = ReceivedFile(path, "labels.geojson", content[:4], len(content))
        return service.training.submit(scene, file, wanted, owner, key, request_id)
    finally:
        for left in folder.glob("*"):
            left.unlink()
        folder.rmdir()


@router.post(
    "/scenes/{scene_id}/label-file",
    summary="Describe a label file for a scene",
    responses=problems(400, 404, 408, 413, 429, 507),
    openapi_extra=DESCRIBE_BODY,
    tags=["scenes"],
)
async def describe_labels(
    scene_id: SceneId, request: Request, service: ServiceDep, owner: OwnerDep
) -> LabelFileDocument:
    """Fields of a label file, and its classes with their pixels on the scene's grid; nothing is kept.

    Without `class_field`, a field that seems to hold the classes is taken; if there is none, there are no classes.
    """
    scene = await asyncio.to_thread(service.admission.find_scene, scene_id, owner)
    admission = service.admission
    with admission.upload_slot(owner, is_job=False):
        await asyncio.to_thread(admission.require_capacity, content_length(request), owner, is_job=False)
        async with upload_folder(service) as folder, upload_folder(service) as labels_folder:
            upload = await receive_form(request, service, folder, labels_folder)
            unknown = set(upload.fields) - {"class_field"}
            if unknown or upload.files:
                raise RequestUnusable("send the label file as `labels`, and maybe its `class_field`, and nothing else")
            class_field = upload.fields.get("class_field") or None
            file = _only_labels(upload)
            found = await asyncio.to_thread(service.training.describe, scene, file, class_field)
    return LabelFileDocument(**{name: value for name, value in found.items() if name != "file"})
