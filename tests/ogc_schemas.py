"""JSON Schemas of the documents of OGC API - Processes 1.0 (OGC 18-062r2)."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator, FormatChecker

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
