"""Results over HTTP: files with ranges, all of them as one zip, some of them as parts."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from fastapi import Request, Response
from fastapi.responses import FileResponse, StreamingResponse

from service.api import examples
from service.api.caching import is_kept, kept_headers
from service.api.context import Service
from service.api.documents import MEDIA_TYPES, OUTPUTS, ZIP_NAME, job_error
from service.errors import NoSuchJob, ResultNotReady
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


def require_results(service: Service, job: JobRecord, address: str) -> None:
    """Refuse unless the job's results are there, with what OGC has for each case."""
    if job.status == "failed":
        raise job_error(job)
    if job.status == "dismissed":
        raise NoSuchJob(f"the job {job.id} was dismissed and its results are gone: send the scene again")
    if job.status != "successful":
        error = ResultNotReady(f"the job {job.id} is {job.status}: ask {address} how far it is")
        error.headers = {"Retry-After": "2"}
        raise error
    if not service.settings.results_folder(job.id).is_dir():
        raise NoSuchJob(f"the results of job {job.id} were removed: send the scene again")


def accepts_zip(request: Request) -> bool:
    """Whether the caller would rather have all results."""
    return ZIP_TYPE in request.headers.get("accept", "").lower()


def file_response(service: Service, job: JobRecord, name: str, request: Request | None = None) -> Response:
    """One file of a finished job; it never changes, so its tag is its name."""
    etag = f'"{job.id}-{name}"'
    headers = kept_headers(etag)
    if request is not None and is_kept(request, etag):
        return Response(status_code=304, headers=headers)
    path = service.settings.results_folder(job.id) / name
    try:
        found = path.stat()
    except OSError as error:
        raise NoSuchJob(f"the results of job {job.id} were removed: send the scene again") from error
    if request is not None and request.method == "HEAD":  # a range is for GET alone
        headers |= {"Content-Length": str(found.st_size), "Accept-Ranges": "bytes"}
        return Response(headers=headers, media_type=MEDIA_TYPES[name])
    return FileResponse(path, media_type=MEDIA_TYPES[name], headers=headers, stat_result=found)


def zip_response(service: Service, job: JobRecord, request: Request | None = None) -> Response:
    """Every file in one zip, made while it is sent."""
    headers = {"Content-Disposition": f'attachment; filename="{ZIP_NAME}"'}
    is_head = request is not None and request.method == "HEAD"
    pieces = iter(()) if is_head else zip_files(open_results(service, job, OUTPUTS))
    return StreamingResponse(pieces, media_type=ZIP_TYPE, headers=headers)


def multipart_response(service: Service, job: JobRecord, outputs: Iterable[str]) -> Response:
    """Several outputs by value: a part each, read while they are sent."""
    boundary = boundary_of(job)
    files = open_results(service, job, outputs)

    def pieces() -> Iterator[bytes]:
        for output, file in files.items():
            media_type = OUTPUTS[output][1]
            yield f"--{boundary}\r\nContent-Type: {media_type}\r\nContent-ID: {output}\r\n\r\n".encode()
            with file:
                while data := file.read(READ_BYTES):
                    yield data
            yield b"\r\n"
        yield f"--{boundary}--\r\n".encode()

    return StreamingResponse(pieces(), media_type=multipart_type(job))


def boundary_of(job: JobRecord) -> str:
    """What stands between parts: nobody could have put it into a file."""
    return f"part-{job.id}"


def multipart_type(job: JobRecord) -> str:
    """The media type of several outputs by value."""
    return f"multipart/related; boundary={boundary_of(job)}"


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


def open_results(service: Service, job: JobRecord, outputs: Iterable[str]) -> dict[str, BinaryIO]:
    """Files of a finished job, open: a job that is dismissed meanwhile is still sent whole."""
    folder = service.settings.results_folder(job.id)
    try:
        return {output: (folder / OUTPUTS[output][0]).open("rb") for output in outputs}
    except OSError as error:
        raise NoSuchJob(f"the results of job {job.id} were removed: send the scene again") from error


def zip_files(files: dict[str, BinaryIO]) -> Iterator[bytes]:
    """Results as a zip, a piece at a time; stored, since the rasters are packed already."""
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for output, file in files.items():
            entry = zipfile.ZipInfo(OUTPUTS[output][0], time.gmtime(os.fstat(file.fileno()).st_mtime)[:6])
            entry.external_attr = 0o644 << 16
            with file, archive.open(entry, "w", force_zip64=True) as target:
                while data := file.read(READ_BYTES):
                    target.write(data)
                    yield pipe.take()
    yield pipe.take()
