"""Exception handlers that turn every error into an `application/problem+json` response."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hyperscene.errors import (
    InternalError,
    LabelsChanged,
    NoSuchJob,
    NotReady,
    PreconditionMissing,
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
from hyperscene.json_text import json_text
from hyperscene.service.api.documents import Problem, problem_of

log = logging.getLogger("hyperscene.api")

PROBLEM_TYPE = "application/problem+json"


class JsonResponse(JSONResponse):
    """A document; numbers that JSON does not have become null instead of an error."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json_text(content).encode()


def problem_response(problem: Problem, headers: Any = None) -> JsonResponse:
    """The response with a problem document."""
    return JsonResponse(problem.model_dump(), problem.status, headers, media_type=PROBLEM_TYPE)


def error_response(error: ServiceError) -> JsonResponse:
    """The response for an error."""
    headers = dict(error.headers)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="hyperscene"'
    return problem_response(problem_of(error), headers)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """A route's error responses for the OpenAPI document; every route has 401, 422, 500 and 503."""
    return {
        status: {"description": DESCRIPTIONS[status], "content": {PROBLEM_TYPE: _with_example(status)}}
        for status in sorted({401, 422, 500, 503, *statuses})
    }


def _with_example(status: int) -> dict[str, Any]:
    error_class = next(error_class for error_class in EXAMPLES if error_class.status == status)
    example = problem_of(error_class(DESCRIPTIONS[status])).model_dump()
    return {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}


# The example error of each status.
EXAMPLES = (
    UploadBroken, Unauthorized, NoSuchJob, UploadTooSlow, SceneInUse, SceneTooLarge, RequestUnusable, QueueFull,
    InternalError, NotReady, StorageFull, LabelsChanged, PreconditionMissing,
)  # fmt: skip


DESCRIPTIONS = {
    400: "The body does not match its headers, or is incomplete",
    401: "The API key is missing or wrong",
    404: "Not found, owned by another API key, expired, or not ready yet",
    408: "The body did not arrive in time",
    409: "Another job must finish first",
    412: "Changed meanwhile, by another request",
    413: "More bytes, pixels, bands or estimated time than the server accepts",
    422: "The scene or the request cannot be used; the detail says why and what to do",
    428: "The header If-Match is missing",
    429: "The queue is full; Retry-After says when to try again",
    500: "The network failed on this scene, or hyperscene has a bug",
    503: "Not ready, or shutting down; /health says why",
    507: "The disk is full",
}


def _allowed_methods(request: Request) -> list[str]:
    """The methods of a path. Each method is a separate route, so Starlette's own Allow header names only one."""
    return [
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(route.matches({**request.scope, "method": method})[0] == Match.FULL for route in request.app.routes)
    ]


def invalid_request(error: Mapping[str, Any]) -> RequestUnusable:
    """A pydantic validation error as one line."""
    where = ".".join(str(part)[:100] for part in error["loc"]) or "the request"
    return RequestUnusable(f"{where}: {error['msg']}; /api describes this request")


def add_exception_handlers(app: FastAPI) -> None:
    """Make the app respond to every error with a problem document."""

    @app.exception_handler(ServiceError)
    async def on_service_error(request: Request, error: ServiceError) -> JsonResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> JsonResponse:
        first = error.errors()[0]
        return error_response(invalid_request({**first, "loc": first["loc"][1:]}))

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> JsonResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        detail = {
            404: f"there is nothing at {request.url.path[:200]}: /api lists all paths",
            405: f"{request.url.path[:200]} does not support {request.method}: /api lists the methods of each path",
        }.get(error.status_code, str(error.detail))
        problem = Problem(
            type=f"urn:hyperscene:problem:{code}",
            title=code.replace("_", " ").capitalize(),
            status=error.status_code,
            detail=detail,
            code=code,
        )
        headers = dict(error.headers or {})
        if error.status_code == 405 and (methods := _allowed_methods(request)):  # mounted files set their own header
            headers["Allow"] = ", ".join(methods)
        return problem_response(problem, headers)


class UnexpectedErrors:
    """Responds to any other exception, inside the middleware that adds headers: Starlette's handler is outside."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            log.exception("unexpected error")
            if not has_started:  # otherwise uvicorn closes the connection, so that the body is seen to be cut off
                error = InternalError("this is a bug of hyperscene: report it with the X-Request-ID of this response")
                await error_response(error)(scope, receive, send)
