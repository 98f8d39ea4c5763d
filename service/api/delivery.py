"""How results are handed over: what a caller wanted, at once or when the job is done."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from service.api.context import Service
from service.api.documents import MEDIA_TYPES, OUTPUTS, ZIP_NAME, result_links
from service.api.results import (
    ZIP_TYPE,
    file_response,
    multipart_response,
    multipart_type,
    require_results,
    zip_response,
)
from service.api.watch import Stopping
from service.errors import NoSuchJob, NotReady, ServiceError
from service.jobs.records import JobRecord

# Larger outputs are given by reference even where a value was asked for: base64 of them would fill the memory.
INLINE_BYTES = 16 << 20
CLIENT_IS_GONE = 499  # for the log: nobody reads it

Make = Callable[[JobRecord], Awaitable[Response]]


@dataclass(frozen=True)
class Wanted:
    """What an execution asked for: outputs, each by value, by reference or as suits us, raw or in a document."""

    outputs: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(OUTPUTS))
    response: str = "document"

    @property
    def raw_output(self) -> str | None:
        """The one output that is wanted as it is."""
        name, mode = next(iter(self.outputs.items()))
        return name if self.response == "raw" and len(self.outputs) == 1 and mode != "reference" else None

    @property
    def has_parts(self) -> bool:
        """Whether several outputs are wanted as they are."""
        return self.response == "raw" and len(self.outputs) > 1 and "value" in self.outputs.values()

    def media_type(self, job: JobRecord) -> str | None:
        """Of the answer; None where it has no body."""
        if self.response == "document":
            return "application/json"
        if self.raw_output:
            return OUTPUTS[self.raw_output][1]
        return multipart_type(job) if self.has_parts else None


async def deliver(service: Service, job: JobRecord, wanted: Wanted, base: str) -> Response:
    """The results of a finished job as they were wanted."""
    links = {name: link for name, link in result_links(job, base).items() if name in wanted.outputs}
    if wanted.response == "document":
        return JSONResponse(await asyncio.to_thread(_with_values, service, job, wanted, links))
    if wanted.raw_output:
        return file_response(service, job, OUTPUTS[wanted.raw_output][0])
    if wanted.has_parts:
        return multipart_response(service, job, wanted.outputs)
    response = Response(status_code=204)
    for name, link in links.items():
        response.headers.append("Link", f'<{link["href"]}>; rel="{name}"; type="{link["type"]}"')
    return response


def _with_values(service: Service, job: JobRecord, wanted: Wanted, links: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The results document: references, and values where they were asked for by name."""
    document: dict[str, Any] = dict(links)
    for name, mode in wanted.outputs.items():
        file, media_type, _ = OUTPUTS[name]
        path = service.settings.results_folder(job.id) / file
        try:
            if mode != "value" or path.stat().st_size > INLINE_BYTES:
                continue
            content = path.read_bytes()
        except OSError as error:
            raise NoSuchJob(f"the results of job {job.id} were removed: send the scene again") from error
        if media_type.endswith("json"):
            document[name] = {"value": json.loads(content), "mediaType": media_type}
        else:
            text = base64.b64encode(content).decode("ascii")
            document[name] = {"value": text, "mediaType": media_type, "encoding": "base64"}
    return document


async def finished_or_gone(service: Service, job: JobRecord, within_s: float, receive: Receive) -> JobRecord | None:
    """The job when it is finished, or as it is after `within_s`; None where the caller went away."""
    finished = asyncio.ensure_future(service.watch.finished(job, within_s))
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({finished, gone}, return_when=asyncio.FIRST_COMPLETED)
        return finished.result() if finished.done() else None
    finally:
        finished.cancel()
        gone.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class WaitingResponse(Response):
    """Headers now, with the job's address; the body when the job is done.

    The status cannot be changed any more, so where the job fails the body is cut off, and the job's address says why.
    """

    def __init__(
        self, service: Service, job: JobRecord, media_type: str, make: Make, headers: Mapping[str, str]
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
            job = await finished_or_gone(self._service, self._job, math.inf, receive)
        except Stopping:
            return
        if job is None or job.status != "successful":
            return

        async def send_body(message: Any) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        # Without the caller's headers: a range of the file was not promised.
        ready = await self._make(job)
        await ready({**scope, "method": "GET", "headers": []}, receive, send_body)


async def answer_when_done(
    service: Service, job: JobRecord, address: str, request: Request, media_type: str | None, make: Make
) -> Response:
    """An answer for a caller who waits. Bad news within the first seconds keeps its status; then the headers are sent,
    so that whatever cuts the connection later, the caller knows the job's address. Without a media type the answer has
    no body, so its headers come last."""
    headers = {"Location": address, "Link": f'<{address}>; rel="monitor"'}
    within_s = service.settings.headers_after_s if media_type else math.inf
    try:
        found = await finished_or_gone(service, job, within_s, request.receive)
        if found is None:
            return Response(status_code=CLIENT_IS_GONE)
        if not found.is_finished and media_type:
            return WaitingResponse(service, found, media_type, make, headers)
        require_results(service, found, address)
        response = await make(found)
    except Stopping:
        stopping = NotReady(f"the server shuts down; the job goes on after its next start: ask {address} then")
        stopping.headers = headers | {"Retry-After": "10"}
        raise stopping from None
    except ServiceError as error:
        error.headers = headers
        raise
    response.headers["Location"] = address
    response.headers.append("Link", headers["Link"])
    return response


async def answer_file(service: Service, job: JobRecord, name: str, address: str, request: Request) -> Response:
    """A file of the results, or all of them, for a caller who waits."""

    async def make(done: JobRecord) -> Response:
        return zip_response(service, done) if name == ZIP_NAME else file_response(service, done, name)

    media_type = ZIP_TYPE if name == ZIP_NAME else MEDIA_TYPES[name]
    return await answer_when_done(service, job, address, request, media_type, make)
