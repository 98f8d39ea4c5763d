"""JSON Schemas of published standards that our documents have to match.

OGC API - Processes 1.0 (OGC 18-062r2), and STAC 1.1: its core from pystac, and the fields of the extensions that we use
(MLM 1.4.0, classification 2.0.0, projection 2.0.0 and file 2.1.0), whose schemas no package has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker
from pystac.validation.local_validator import get_local_schema_cache
from referencing import Registry, Resource

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
BOOLEAN = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
NUMBER = {"type": "number"}
TIME = {"type": "string", "format": "date-time"}
URI = {"type": "string", "format": "uri"}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def listed(item: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, **more}


def named(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": item}


def fields(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*required], "properties": properties}


SCHEMA_FIELDS = {
    **dict.fromkeys(("title", "description", "format", "contentMediaType", "contentEncoding", "contentSchema"), STRING),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems"), BOOLEAN),
    **dict.fromkeys(("nullable", "readOnly", "writeOnly", "deprecated"), BOOLEAN),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), COUNT),
    **dict.fromkeys(("allOf", "oneOf", "anyOf"), listed(ref("schema"))),
    **dict.fromkeys(("not", "items"), ref("schema")),
    "maximum": NUMBER,
    "minimum": NUMBER,
    "multipleOf": {"type": "number", "exclusiveMinimum": 0},
    "pattern": {"type": "string", "format": "regex"},
    "required": listed(STRING, minItems=1, uniqueItems=True),
    "enum": listed({}, minItems=1),
    "type": {"enum": ["array", "boolean", "integer", "number", "object", "string"]},
    "properties": named(ref("schema")),
    "additionalProperties": {"oneOf": [ref("schema"), BOOLEAN]},
    "default": {},
    "example": {},
}

DESCRIPTION = {
    "title": STRING,
    "description": STRING,
    "keywords": listed(STRING),
    "metadata": listed(fields(title=STRING, role=STRING, href=STRING)),
    "additionalParameters": {"type": "object"},
}

SUMMARY = fields(
    "id",
    "version",
    id=STRING,
    version=STRING,
    jobControlOptions=listed({"enum": ["sync-execute", "async-execute", "dismiss"]}),
    outputTransmission=listed({"enum": ["value", "reference"]}),
    links=listed(ref("link")),
    **DESCRIPTION,
)

FORMAT = {"mediaType": STRING, "encoding": STRING, "schema": {"type": ["string", "object"]}}

DEFINITIONS: dict[str, dict[str, Any]] = {
    "link": fields("href", href=URI, rel=STRING, type=STRING, hreflang=STRING, title=STRING),
    "landingPage": fields("links", title=STRING, description=STRING, links=listed(ref("link"))),
    "confClasses": fields("conformsTo", conformsTo=listed(URI)),
    "schema": {
        "oneOf": [
            {"type": "object", "properties": SCHEMA_FIELDS, "additionalProperties": False},
            {**fields("$ref"), "properties": {"$ref": {"type": "string", "format": "uri-reference"}}},
        ]
    },
    "inputDescription": fields(
        "schema",
        schema=ref("schema"),
        minOccurs=INTEGER,
        maxOccurs={"oneOf": [INTEGER, {"enum": ["unbounded"]}]},
        **DESCRIPTION,
    ),
    "outputDescription": fields("schema", schema=ref("schema"), **DESCRIPTION),
    "processSummary": SUMMARY,
    "process": {
        "allOf": [SUMMARY, fields(inputs=named(ref("inputDescription")), outputs=named(ref("outputDescription")))]
    },
    "processList": fields("processes", "links", processes=listed(ref("processSummary")), links=listed(ref("link"))),
    "statusInfo": fields(
        "jobID",
        "status",
        "type",
        "processID",  # required by the class job-list
        jobID=STRING,
        processID=STRING,
        type={"enum": ["process"]},
        status={"enum": ["accepted", "running", "successful", "failed", "dismissed"]},
        message=STRING,
        created=TIME,
        started=TIME,
        finished=TIME,
        updated=TIME,
        progress={"type": "integer", "minimum": 0, "maximum": 100},
        links=listed(ref("link")),
    ),
    "jobList": fields("jobs", "links", jobs=listed(ref("statusInfo")), links=listed(ref("link"))),
    "exception": fields("type", type=URI, title=STRING, status=INTEGER, detail=STRING, instance=STRING),
    "plainValue": {"type": ["string", "number", "boolean", "array"]},
    "qualifiedValue": {**fields("value", value={}, **FORMAT), "not": {"required": ["href"]}},
    "bbox": fields("bbox", bbox=listed(NUMBER), crs=STRING),
    "inlineOrReference": {"oneOf": [ref("plainValue"), ref("qualifiedValue"), ref("bbox"), ref("link")]},
    "results": named(ref("inlineOrReference")),
    # References in requests may be relative; the service checks them.
    "input": {"oneOf": [ref("plainValue"), ref("qualifiedValue"), ref("bbox"), fields("href", href=STRING)]},
    "execute": fields(
        inputs=named({"anyOf": [ref("input"), listed(ref("input"))]}),
        outputs=named(fields(format=fields(**FORMAT), transmissionMode={"enum": ["value", "reference"]})),
        response={"enum": ["raw", "document"]},
        subscriber=fields("successUri", successUri=URI, inProgressUri=URI, failedUri=URI),
    ),
}

FORMATS = FormatChecker()


@FORMATS.checks("uri", raises=ValueError)
def is_absolute_uri(text: object) -> bool:
    """Whether it is an absolute URI; jsonschema's check needs another package."""
    return not isinstance(text, str) or (bool(urlsplit(text).scheme) and text.isascii() and " " not in text)


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = {"$defs": DEFINITIONS, **ref(name)}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FORMATS)


def require(name: str, document: Any) -> None:
    """Raise unless the document matches the standard's schema of that name."""
    _validator(name).validate(document)


# STAC

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
