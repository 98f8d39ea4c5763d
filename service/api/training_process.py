"""The OGC process train-model, and the inputs that both processes have in common."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from hyperscene.errors import RequestUnusable
from hyperscene.service.api.context import Service
from hyperscene.service.api.documents import OGC_RELATIONS, TRAIN_PROCESS_ID, Link
from hyperscene.service.api.training import OPTION_SCHEMAS, parse_training, submit_inline
from hyperscene.service.jobs.records import JobRecord

MAX_LABELS_BYTES = 16 << 20  # of an execute request with its labels
INPUTS: dict[str, Any] = {
    "scene": {
        "title": "The scene",
        "description": 'By reference: {"href": "/scenes/{id}"}, from POST /scenes.',
        "minOccurs": 1,
        "maxOccurs": 1,
        "schema": {"type": "string", "contentMediaType": "image/tiff", "contentEncoding": "binary"},
    },
    "labels": {
        "title": "The labels",
        "description": "A FeatureCollection of GeoJSON by value. POST /models takes other formats.",
        "minOccurs": 1,
        "maxOccurs": 1,
        "schema": {"type": "object", "contentMediaType": "application/geo+json"},
    },
    **{
        name: {
            "title": name.replace("_", " ").capitalize(),
            "description": schema.get("description", ""),
            "minOccurs": int(name == "name"),
            "maxOccurs": 1,
            "schema": {key: value for key, value in schema.items() if key not in ("description", "example")},
        }
        for name, schema in OPTION_SCHEMAS.items()
    },
}


def summary(base: str) -> dict[str, Any]:
    """The process in the list of processes."""
    url = f"{base}/processes/{TRAIN_PROCESS_ID}"
    return {
        "id": TRAIN_PROCESS_ID,
        "version": version("hyperscene"),
        "title": "Train a model on a scene",
        "description": "Learns classes from labels in a scene: a bundle for mapping, and a report of its accuracy.",
        "keywords": ["hyperspectral", "classification", "training"],
        "jobControlOptions": ["async-execute", "dismiss"],
        "outputTransmission": ["reference"],
        "links": [
            Link(href=url, rel="self", type="application/json", title="the description"),
            Link(href=f"{url}/execution", rel=f"{OGC_RELATIONS}execute", title="run it (POST)"),
        ],
    }


def submit(
    service: Service, given: dict[str, Any], base: str, owner: str, key: str | None, request_id: str | None
) -> JobRecord:
    """The job of an execute request."""
    inputs = {name: value_of(value) for name, value in given.items() if name not in ("scene", "labels")}
    wanted, scene_id = parse_training(inputs), scene_id_of(href_of(given.get("scene")), base)
    labels = value_of(given.get("labels"))
    if scene_id is None:
        raise RequestUnusable('the input scene must be a reference to an uploaded scene: {"href": "/scenes/ID"}')
    if not isinstance(labels, dict):
        raise RequestUnusable("the input labels must be a FeatureCollection of GeoJSON, by value")
    job = service.store.job_by_key(owner, key) if key else None
    if job is None:
        service.training.require_worker()
        service.admission.require_queue_slot(owner, "train")
        scene = service.admission.find_scene(scene_id, owner)
        job = submit_inline(service, scene, labels, wanted, owner, key, request_id)
    if (job.kind, job.scene_id, job.model) != ("train", scene_id, wanted.name):
        raise RequestUnusable("this Idempotency-Key created a job with other inputs: use another key")
    return job


def value_of(given: Any) -> Any:
    """An input's value: plain, or qualified as {"value": ...}."""
    return given["value"] if isinstance(given, dict) and "value" in given else given


def href_of(given: Any) -> str:
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    href = given.get("href") if isinstance(given, dict) else given
    if not isinstance(href, str):
        raise RequestUnusable('the input scene must be a reference to an uploaded scene: {"href": "/scenes/ID"}')
    return href


def scene_id_of(href: str, base: str) -> str | None:
    """The id in a reference to an uploaded scene; None for other URLs."""
    own = urlsplit(base)
    host = rf"(?i:https?://{re.escape(own.netloc)})"
    found = re.fullmatch(rf"(?:{host})?(?:{re.escape(own.path)})?/scenes/([0-9A-Za-z_-]{{1,100}})", href)
    return found[1] if found else None
