"""What schemathesis is told about the server it asks: things that are there, so that it meets more than refusals."""

from __future__ import annotations

import json
import os
from itertools import count, cycle
from typing import Any

import schemathesis

REAL = json.loads(os.environ["HYPERSCENE_REAL"])  # what is there for which path parameter, and a scene's file
calls = count()
layers = cycle(["classes", "scene", "confidence", "probability-1"])

schemathesis.serializer.alias("image/tiff", "application/octet-stream")


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Every second call is about things that are there; what is deleted is there for that."""
    if next(calls) % 2:
        return
    there = REAL["to_delete"] if case.method == "DELETE" else REAL["to_ask"]
    for name in case.path_parameters or {}:
        if name in there and not (name == "name" and "/models/" not in case.path):
            case.path_parameters[name] = there[name]
    if "layer" in (case.path_parameters or {}):
        case.path_parameters["layer"] = next(layers)
    if case.path.endswith("/pixel"):
        case.query = {"row": 1, "col": 2}
    elif case.query and {"layer", "bands"} & set(case.query):
        case.query = {"bands": "3,2,1"}
    if isinstance(case.body, dict) and isinstance(case.body.get("inputs"), dict):
        case.body["inputs"] = {"scene": {"href": f"/scenes/{REAL['to_ask']['scene_id']}"}}
    elif case.media_type == "image/tiff":
        with open(REAL["file"], "rb") as file:  # noqa: PTH123
            case.body = file.read()
