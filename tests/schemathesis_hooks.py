"""schemathesis hooks that put ids of existing resources into requests, so that more than errors is tested."""

from __future__ import annotations

import json
import os
from itertools import count, cycle
from typing import Any

import schemathesis

REAL = json.loads(os.environ["HYPERSCENE_REAL"])  # existing values by path parameter, and a scene's file
calls = count()
layers = cycle(["classes", "scene", "confidence", "probability-1"])
results = cycle(["classes.tif", "confidence.tif", "results.zip", "summary.json"])

schemathesis.serializer.alias("image/tiff", "application/octet-stream")


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Every second request is about existing resources; DELETE gets resources of its own."""
    if case.method == "DELETE":
        _spare_what_is_read(case)
    if next(calls) % 2:
        return
    _use_existing_paths(case)
    if case.path.endswith("/pixel"):
        case.query = {"row": 1, "col": 2}
    elif case.query and {"layer", "bands"} & set(case.query):
        case.query = {"bands": "3,2,1"}
    if isinstance(case.body, dict) and isinstance(case.body.get("inputs"), dict):
        case.body["inputs"] = {"scene": {"href": f"/scenes/{REAL['to_read']['scene_id']}"}}
    elif case.media_type == "image/tiff":
        with open(REAL["file"], "rb") as file:  # noqa: PTH123
            case.body = file.read()


def _spare_what_is_read(case: schemathesis.Case) -> None:
    """schemathesis learns ids from responses, and would delete what later requests read."""
    for name in ("job_id", "scene_id"):
        if (case.path_parameters or {}).get(name) == REAL["to_read"][name]:
            case.path_parameters[name] = REAL["to_delete"]["job_id"]


def _use_existing_paths(case: schemathesis.Case) -> None:
    existing = REAL["to_delete"] if case.method == "DELETE" else REAL["to_read"]
    for name in case.path_parameters or {}:
        if name in existing and not (name == "name" and "/models/" not in case.path):
            case.path_parameters[name] = existing[name]
    if "layer" in (case.path_parameters or {}):
        case.path_parameters["layer"] = next(layers)
    if "/results/" in case.path:
        case.path_parameters["name"] = next(results)
