"""Refusals over HTTP: one handler turns every error into `application/problem+json`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from service.api.documents import Problem, problem_of
from service.errors import (
    InternalError,
    NoSuchJob,
    NotReady,
    QueueFull,
    RequestUnusable,
    SceneInUse,
    SceneTooLarge,
    ServiceError,
    StorageFull,
    Unauthorized,
    UploadBroken,
    UploadTooSlow,
)

log = logging.getLogger("hyperscene.api")

PROBLEM_TYPE = "application/problem+json"


def problem_response(problem: Problem, headers: Any = None) -> JSONResponse:
    """A problem as an answer."""
    return JSONResponse(problem.model_dump(), problem.status, headers, media_type=PROBLEM_TYPE)


def refuse(error: ServiceError) -> JSONResponse:
    """A refusal as an answer."""
    headers = dict(error.headers)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="hyperscene"'
    return problem_response(problem_of(error), headers)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a call may refuse with, for the OpenAPI document; 401, 422 and 503 may come from any."""
    return {
        status: {"description": DESCRIPTIONS[status], "content": {PROBLEM_TYPE: _shown(status)}}
        for status in sorted({401, 422, 500, 503, *statuses})
    }


def _shown(status: int) -> dict[str, Any]:
    kind = next(kind for kind in EXAMPLES if kind.status == status)
    example = problem_of(kind(DESCRIPTIONS[status])).model_dump()
    return {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}


# The refusal that is shown for each status.
EXAMPLES = (
    UploadBroken, Unauthorized, NoSuchJob, UploadTooSlow, SceneInUse, SceneTooLarge, RequestUnusable, QueueFull,
    InternalError, NotReady, StorageFull,
)  # fmt: skip


DESCRIPTIONS = {
    400: "The body is not what its headers say, or stops half-way",
    401: "No API key, or a wrong one",
    404: "No such thing, not the caller's, expired, or not ready yet",
    405: "The address does not know this method",
    406: "The answer cannot be given in an accepted form",
    408: "The body did not arrive in time",
    409: "Something else has to end first",
    413: "Bytes, pixels or bands above the setting",
    416: "A range outside of the file",
    422: "The scene or the request cannot be used as it is; the detail says why and what to do",
    429: "As many jobs wait as the setting allows; Retry-After says when to come back",
    500: "The network failed on this scene, or a fault of hyperscene",
    503: "Not ready yet, or shutting down; /health says why",
    507: "The disk is full",
}


def _methods(request: Request) -> list[str]:
    """What an address knows; its calls are routes of their own, and each would name itself alone."""
    return [
        method
        for method in ("DELETE", "GET", "HEAD", "POST")
        if any(route.matches({**request.scope, "method": method})[0] == Match.FULL for route in request.app.routes)
    ]


def unusable(fault: Mapping[str, Any]) -> RequestUnusable:
    """What pydantic found wrong, in one line."""
    where = ".".join(str(part)[:100] for part in fault["loc"]) or "the request"
    return RequestUnusable(f"{where}: {fault['msg']}; see /api for what this call takes")


def add_handlers(app: FastAPI) -> None:
    """Have every error answered as a problem document."""

    @app.exception_handler(ServiceError)
    async def on_refusal(request: Request, error: ServiceError) -> JSONResponse:
        return refuse(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return refuse(unusable({**first, "loc": first["loc"][1:]}))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        detail = {
            404: f"there is nothing at {request.url.path[:200]}: see /api for every call",
            405: f"{request.url.path[:200]} does not know {request.method}: see /api for what it does",
        }.get(error.status_code, str(error.detail))
        problem = Problem(
            type=f"urn:hyperscene:problem:{code}",
            title=code.replace("_", " ").capitalize(),
            status=error.status_code,
            detail=detail,
            code=code,
        )
        headers = dict(error.headers or {})
        if error.status_code == 405 and (methods := _methods(request)):  # a folder of files knows its own
            headers["Allow"] = ", ".join(methods)
        return problem_response(problem, headers)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> JSONResponse:
        log.error("a bug", exc_info=error)
        return refuse(InternalError("this is a fault of hyperscene: report the X-Request-ID of this answer"))
