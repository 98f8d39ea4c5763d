"""The OpenAPI document in version 3.0, which OGC's conformance class requires; FastAPI writes 3.1."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

VERSION = "3.0.3"


def install_openapi(app: FastAPI, *, requires_keys: bool) -> None:
    """Make the app generate OpenAPI 3.0; API keys appear only if the server requires them."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
                openapi_version=VERSION,
            )
            app.openapi_schema = to_3_0(document if requires_keys else without_keys(document))
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def without_keys(document: dict[str, Any]) -> dict[str, Any]:
    """The document without its security schemes."""
    document["components"].pop("securitySchemes", None)
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
    return document


def to_3_0(node: Any) -> Any:
    """The document converted to 3.0: `nullable` for null, `enum` for `const`, `example` for `examples`."""
    if isinstance(node, list):
        return [to_3_0(item) for item in node]
    if not isinstance(node, dict):
        return node
    new = {key: to_3_0(value) for key, value in node.items()}
    _make_nullable(new)
    if "const" in new and "type" in new:
        new["enum"] = [new.pop("const")]
    examples = new.get("examples")
    if isinstance(examples, list):  # of a schema; those of a media type are a mapping
        del new["examples"]
        new.setdefault("example", examples[0])
    if new.pop("contentMediaType", None) == "application/octet-stream":
        new["format"] = "binary"
    return new


def _make_nullable(schema: dict[str, Any]) -> None:
    """Replace an alternative of null by `nullable`; a single other one is merged, unless it is a reference."""
    for keyword in ("anyOf", "oneOf"):
        schemas = schema.get(keyword)
        if isinstance(schemas, list) and {"type": "null"} in schemas:
            rest = [each for each in schemas if each != {"type": "null"}]
            del schema[keyword]
            if len(rest) == 1:
                schema |= {"allOf": rest} if "$ref" in rest[0] else rest[0]
            else:
                schema[keyword] = rest
            schema["nullable"] = True
