"""Responses to execute requests: the requested outputs, sent at once or when the job is finished."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from hyperscene.errors import NotReady, ServiceError
from hyperscene.service.api.context import CLIENT_CLOSED_REQUEST, Service, until_disconnected
from hyperscene.service.api.documents import ALL_OUTPUTS, MEDIA_TYPES, OUTPUTS_OF, ZIP_NAME, result_links
from hyperscene.service.api.job_watcher import ServerStopping
from hyperscene.service.api.problems import JsonResponse
from hyperscene.service.api.results import (
    ZIP_TYPE,
    file_response,
    made_outputs,
    multipart_response,
    multipart_type,
    require_results,
    results_removed,
    zip_response,
)
from hyperscene.service.jobs.records import JobRecord

# Larger outputs are sent by reference even if their value was requested: as base64 they would fill the memory.
MAX_INLINE_BYTES = 16 << 20

MakeResponse = Callable[[JobRecord], Awaitable[Response]]


@dataclass(frozen=True)
class RequestedOutputs:
    """The outputs of an execute request, each by value, by reference or by default, raw or in a document."""

    outputs: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(ALL_OUTPUTS))
    response: str = "document"

    @property
    def raw_output(self) -> str | None:
        """The output, if the response is one output itself."""
        name, mode = next(iter(self.outputs.items()))
        return name if self.response == "raw" and len(self.outputs) == 1 and mode != "reference" else None

    @property
    def has_parts(self) -> bool:
        """Whether the response is several outputs as multipart/related."""
        return self.response == "raw" and len(self.outputs) > 1 and "value" in self.outputs.values()

    def media_type(self, job: JobRecord) -> str | None:
        """The response's media type; None if it has no body."""
        if self.response == "document":
            return "application/json"
        if self.raw_output:
            return ALL_OUTPUTS[self.raw_output][1]
        return multipart_type(job) if self.has_parts else None


async def results_response(service: Service, job: JobRecord, requested: RequestedOutputs, base: str) -> Response:
    """The requested outputs of a finished job."""
    names = await asyncio.to_thread(made_outputs, service, job, requested.outputs)
    links = {name: link for name, link in result_links(job, base).items() if name in names}
    if requested.response == "document":
        return JsonResponse(await asyncio.to_thread(_results_document, service, job, requested, links))
    if requested.raw_output:
        return file_response(service, job, OUTPUTS_OF[job.kind][requested.raw_output][0])
    if requested.has_parts:
        return multipart_response(service, job, requested.outputs)
    response = Response(status_code=204)
    for name, link in links.items():
        response.headers.append("Link", f'<{link["href"]}>; rel="{name}"; type="{link["type"]}"')
    return response


def _results_document(
    service: Service, job: JobRecord, requested: RequestedOutputs, links: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """OGC's results document: links, and the values of outputs requested by value."""
    document: dict[str, Any] = dict(links)
    for name, mode in requested.outputs.items():
        if name not in links:
            continue
        file, media_type, _ = OUTPUTS_OF[job.kind][name]
        path = service.settings.results_folder(job.id) / file
        try:
            if mode != "value" or path.stat().st_size > MAX_INLINE_BYTES:
                continue
            content = path.read_bytes()
        except OSError as error:
            raise results_removed(job) from error
        if media_type.endswith("json"):
            document[name] = {"value": json.loads(content), "mediaType": media_type}
        else:
            text = base64.b64encode(content).decode("ascii")
            document[name] = {"value": text, "mediaType": media_type, "encoding": "base64"}
    return document


async def finished_or_disconnected(
    service: Service, job: JobRecord, timeout_s: float, receive: Receive
) -> JobRecord | None:
    """The job when it is finished, or as it is after the timeout; None if the client disconnects first."""
    finished = asyncio.ensure_future(service.job_watcher.finished(job, timeout_s))
    disconnected = asyncio.ensure_future(until_disconnected(receive))
    try:
        await asyncio.wait({finished, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        return finished.result() if finished.done() else None
    finally:
        finished.cancel()
        disconnected.cancel()


class DeferredResponse(Response):
    """Sends the headers, with the job's URL, now and the body when the job is finished.

    The status is sent before the outcome is known. If the job fails, the body is cut off; the job's URL has the reason.
    """

    def __init__(
        self, service: Service, job: JobRecord, media_type: str, make: MakeResponse, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers=dict(headers), media_type=media_type)
        del self.headers["content-length"]
        self._service = service
        self._job = job
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        try:
            job = await finished_or_disconnected(self._service, self._job, math.inf, receive)
        except ServerStopping:
            return
        if job is None or job.status != "successful":
            return

        async def send_body(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        # Without the request's headers: status 200 has been sent, so a Range must not apply.
        response = await self._make(job)
        await response({**scope, "method": "GET", "headers": []}, receive, send_body)


async def response_when_finished(
    service: Service, job: JobRecord, job_url: str, request: Request, media_type: str | None, make: MakeResponse
) -> Response:
    """The response to a synchronous request.

    An error within `headers_after_s` has its own status. After that the headers are sent, so that the client knows the
    job's URL even if the connection breaks. A response without a media type has no body: its headers are sent at the
    end.
    """
    headers = {"Location": job_url, "Link": f'<{job_url}>; rel="monitor"'}
    timeout_s = service.settings.headers_after_s if media_type else math.inf
    try:
        current = await finished_or_disconnected(service, job, timeout_s, request.receive)
        if current is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        if not current.is_finished and media_type:
            return DeferredResponse(service, current, media_type, make, headers)
        require_results(service, current, job_url)
        response = await make(current)
    except ServerStopping:
        stopping = NotReady(
            f"the server is shutting down; the job continues after its next start: request {job_url} then"
        )
        stopping.headers = headers | {"Retry-After": "10"}
        raise stopping from None
    except ServiceError as error:
        error.headers = headers
        raise
    response.headers["Location"] = job_url
    response.headers.append("Link", headers["Link"])
    return response


async def file_response_when_finished(
    service: Service, job: JobRecord, name: str, job_url: str, request: Request
) -> Response:
    """One result file, or all as a zip, when the job is finished."""

    async def make(finished: JobRecord) -> Response:
        return zip_response(service, finished) if name == ZIP_NAME else file_response(service, finished, name)

    media_type = ZIP_TYPE if name == ZIP_NAME else MEDIA_TYPES[name]
    return await response_when_finished(service, job, job_url, request, media_type, make)
