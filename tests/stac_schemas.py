"""STAC 1.1 as JSON Schemas: the core from pystac, and the fields of the extensions that our documents use.

No package has the extensions' schemas, so their fields are written here: MLM 1.4.0, classification 2.0.0,
projection 2.0.0 and file 2.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft7Validator
from pystac.validation.local_validator import get_local_schema_cache
from referencing import Registry, Resource

from tests.ogc_schemas import BOOLEAN, INTEGER, NUMBER, STRING, fields, listed

ITEM_SCHEMA = "https://schemas.stacspec.org/v1.1.0/item-spec/json-schema/item.json"
EXTENSIONS = {
    prefix: f"https://stac-extensions.github.io/{path}/schema.json"
    for prefix, path in {
        "mlm": "mlm/v1.4.0",
        "classification": "classification/v2.0.0",
        "proj": "projection/v2.0.0",
        "file": "file/v2.1.0",
    }.items()
}
OWN_PREFIX = "hyperscene"

TEXT = {"type": "string", "minLength": 1}
TASKS = listed({"enum": ["classification", "scene-classification", "segmentation", "semantic-segmentation"]})
TENSOR = fields(
    "shape",
    "dim_order",
    "data_type",
    shape=listed({"type": "integer", "minimum": -1}, minItems=1),
    dim_order=listed({"type": "string", "pattern": "^[a-z-_]+$"}, minItems=1, uniqueItems=True),
    data_type={"enum": ["uint8", "uint16", "int64", "float16", "float32", "float64"]},
)
CLASSES = listed(
    fields(
        "value",
        "name",
        value=INTEGER,
        name={"type": "string", "pattern": "^[0-9A-Za-z_-]+$"},
        title=STRING,
        description=STRING,
        color_hint={"type": "string", "pattern": "^[0-9A-Fa-f]{6}$"},
    ),
    minItems=1,
    uniqueItems=True,
)
SCALING = fields("type", "mean", "stddev", type={"const": "z-score"}, mean=NUMBER, stddev=NUMBER)
MLM_INPUT = fields(
    "name", "bands", "input", name=TEXT, bands=listed(TEXT), input=TENSOR, description=TEXT,
    value_scaling=listed(SCALING, minItems=1),
)  # fmt: skip
MLM_OUTPUT = fields("name", "tasks", "result", name=TEXT, tasks=TASKS, result=TENSOR, **{
    # MLM 1.4.0 refers to classification 1.1.0, whose classes need a description.
    "classification:classes": {"allOf": [CLASSES, listed({"required": ["description"]})]},
})  # fmt: skip

FIELDS: dict[str, dict[str, Any]] = {
    "mlm:name": {"type": "string", "pattern": r"^[a-zA-Z][a-zA-Z0-9_.\-\s]+[a-zA-Z0-9]$"},
    "mlm:architecture": TEXT,
    "mlm:framework": TEXT,
    "mlm:tasks": TASKS,
    "mlm:accelerator_constrained": BOOLEAN,
    "mlm:input": listed(MLM_INPUT),
    "mlm:output": listed(MLM_OUTPUT),
    "mlm:hyperparameters": {"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^[0-9a-zA-Z_.-]+$"}},
    "mlm:artifact_type": TEXT,
    "classification:classes": CLASSES,
    "proj:code": {"type": ["string", "null"]},
    "proj:wkt2": {"type": ["string", "null"]},
    "proj:shape": listed(INTEGER, minItems=2, maxItems=2),
    "proj:transform": listed(NUMBER, minItems=6, maxItems=6),
    "file:checksum": {"type": "string", "pattern": "^[a-f0-9]+$"},
}
HAS_MODEL_ROLE = {"required": ["roles"], "properties": {"roles": {"contains": {"const": "mlm:model"}}}}
MLM_ITEM = fields(
    "properties",
    "assets",
    properties={
        **fields(*(f"mlm:{name}" for name in ("name", "architecture", "tasks", "input", "output"))),
        "not": {"required": ["mlm:artifact_type"]},
        # An input that names bands needs their description: here, the bands of STAC 1.1.
        "if": {"properties": {"mlm:input": {"contains": {"properties": {"bands": {"minItems": 1}}}}}},
        "then": fields("bands", bands=listed({"type": "object"}, minItems=1)),
    },
    assets={
        "type": "object",
        "additionalProperties": {
            "if": HAS_MODEL_ROLE,
            "then": {"required": ["mlm:artifact_type"]},
            "else": {"not": {"required": ["mlm:artifact_type"]}},
        },
        "not": {"additionalProperties": {"not": HAS_MODEL_ROLE}},  # at least one asset is the model
    },
)


@cache
def _item_validator() -> Draft7Validator:
    """pystac's copy of the published schemas, which refer to each other by URL."""
    schemas = get_local_schema_cache()
    registry = Registry().with_resources((url, Resource.from_contents(schema)) for url, schema in schemas.items())
    return Draft7Validator(schemas[ITEM_SCHEMA], registry=registry)


def _prefixed(node: Any) -> Iterator[tuple[str, Any]]:
    """Every field with an extension's prefix, wherever it is."""
    if isinstance(node, list):
        for element in node:
            yield from _prefixed(element)
    elif isinstance(node, dict):
        for name, value in node.items():
            if ":" in name and not name.startswith(f"{OWN_PREFIX}:"):
                yield name, value
            if not name.startswith(f"{OWN_PREFIX}:"):
                yield from _prefixed(value)


def require_item(document: dict[str, Any]) -> None:
    """Raise unless the document is a STAC Item that declares the extensions it uses, and only these."""
    _item_validator().validate(document)
    used = set()
    for name, value in _prefixed(document):
        used.add(EXTENSIONS[name.partition(":")[0]])
        Draft7Validator(FIELDS[name]).validate(value)
    if EXTENSIONS["mlm"] in used:
        Draft7Validator(MLM_ITEM).validate(document)
    assert set(document["stac_extensions"]) == used
