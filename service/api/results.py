"""Results over HTTP: files with ranges, all of them as one zip, and the answer to a caller who waits."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api import examples
from service.api.context import Service
from service.api.documents import MEDIA_TYPES, ZIP_NAME, job_error
from service.api.watch import Stopping
from service.errors import NoSuchJob, NotReady, ResultNotReady, ServiceError
from service.jobs.records import JobRecord

ZIP_TYPE = "application/zip"
READ_BYTES = 1 << 20
BINARY = {"schema": {"type": "string", "format": "binary"}}
FILES: dict[str, Any] = {  # every result by its media type, for the OpenAPI document
    media_type: (
        {"schema": {"type": "object"}, "example": examples.FILES[media_type]}
        if media_type in examples.FILES
        else BINARY
    )
    for media_type in sorted({*MEDIA_TYPES.values()})
}


def require_results(job: JobRecord, address: str) -> None:
    """Refuse unless the job was successful, with what OGC has for each case."""
    if job.status == "failed":
        raise job_error(job)
    if job.status == "dismissed":
        raise NoSuchJob(f"the job {job.id} was dismissed and its results are gone: send the scene again")
    if job.status != "successful":
        error = ResultNotReady(f"the job {job.id} is {job.status}: ask {address} how far it is")
        error.headers = {"Retry-After": "2"}
        raise error


def accepts_zip(request: Request) -> bool:
    """Whether the caller would rather have all results."""
    return ZIP_TYPE in request.headers.get("accept", "").lower()


def file_response(service: Service, job: JobRecord, name: str, request: Request | None = None) -> Response:
    """One file of a finished job; it never changes, so its tag is its name."""
    etag = f'"{job.id}-{name}"'
    # Cached copies are the caller's own: a shared cache must not hand them to another key.
    headers = {"ETag": etag, "Cache-Control": "private, max-age=31536000, immutable"}
    if request is not None and _has_tag(request.headers.get("if-none-match", ""), etag):
        return Response(status_code=304, headers=headers)
    path = service.settings.results_folder(job.id) / name
    if not path.is_file():
        raise NoSuchJob(f"the results of job {job.id} were removed: send the scene again")
    return FileResponse(path, media_type=MEDIA_TYPES[name], headers=headers)


def _has_tag(wanted: str, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in wanted.split(",")}
    return etag in tags or "*" in tags


def zip_response(service: Service, job: JobRecord) -> Response:
    """Every file in one zip, made while it is sent."""
    headers = {"Content-Disposition": f'attachment; filename="{ZIP_NAME}"'}
    return StreamingResponse(zip_folder(service.settings.results_folder(job.id)), media_type=ZIP_TYPE, headers=headers)


class _Pipe:
    """What zipfile writes into: handed on at once, since nothing ever seeks back."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def flush(self) -> None:
        return None

    def take(self) -> bytes:
        data, self._written = bytes(self._written), bytearray()
        return data


def zip_folder(folder: Path) -> Iterator[bytes]:
    """The folder's files as a zip, a piece at a time; stored, since the rasters are packed already."""
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for path in sorted(folder.iterdir()):
            entry = zipfile.ZipInfo.from_file(path, path.name)
            with path.open("rb") as file, archive.open(entry, "w", force_zip64=True) as target:
                while data := file.read(READ_BYTES):
                    target.write(data)
                    yield pipe.take()
    yield pipe.take()


Make = Callable[[JobRecord], Awaitable[Response]]


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
            job = await self._service.watch.finished(self._job, math.inf)
        except Stopping:
            return
        if job.status != "successful":
            return

        async def send_body(message: Any) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        # Without the caller's headers: a range of the file was not promised.
        ready = await self._make(job)
        await ready({**scope, "method": "GET", "headers": []}, receive, send_body)


async def answer_when_done(
    service: Service, job: JobRecord, address: str, media_type: str | None, make: Make
) -> Response:
    """An answer for a caller who waits. Bad news within the first seconds keeps its status; then the headers are sent,
    so that whatever cuts the connection later, the caller knows the job's address. Without a media type the answer has
    no body, so its headers come last."""
    headers = {"Location": address, "Link": f'<{address}>; rel="monitor"'}
    try:
        job = await service.watch.finished(job, service.settings.headers_after_s if media_type else math.inf)
        if not job.is_finished and media_type:
            return WaitingResponse(service, job, media_type, make, headers)
        require_results(job, address)
        response = await make(job)
    except Stopping:
        stopping = NotReady(f"the server shuts down; the job goes on after its next start: ask {address} then")
        stopping.headers = headers
        raise stopping from None
    except ServiceError as error:
        error.headers = headers
        raise
    response.headers["Location"] = address
    response.headers.append("Link", headers["Link"])
    return response


async def answer_file(service: Service, job: JobRecord, name: str, address: str) -> Response:
    """A file of the results, or all of them, for a caller who waits."""

    async def make(done: JobRecord) -> Response:
        return zip_response(service, done) if name == ZIP_NAME else file_response(service, done, name)

    media_type = ZIP_TYPE if name == ZIP_NAME else MEDIA_TYPES[name]
    return await answer_when_done(service, job, address, media_type, make)
