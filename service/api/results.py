"""Responses with result files: one file with ranges, all as a zip, several as multipart/related."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from fastapi import Request, Response
from fastapi.responses import FileResponse, StreamingResponse

from hyperscene.errors import NoSuchJob, NoSuchResult, ResultNotReady
from hyperscene.service.api import examples
from hyperscene.service.api.context import Service, cache_headers, is_not_modified
from hyperscene.service.api.documents import MAYBE_MISSING, MEDIA_TYPES, OUTPUTS_OF, ZIP_NAME, job_error
from hyperscene.service.jobs.records import JobRecord

ZIP_TYPE = "application/zip"
READ_BYTES = 1 << 20
OPTIONAL_FILES = {each[output][0] for each in OUTPUTS_OF.values() for output in MAYBE_MISSING & each.keys()}
WHY_MISSING = {
    "mask.tif": "its scene is no product with masks",
    "applicability.tif": "its model carries no statistics of what it learnt from",
    "network.png": "its maps could not be drawn",
    "propagation.png": "its recipe propagates no labels",
}
BINARY = {"schema": {"type": "string", "format": "binary"}}
FILES: dict[str, Any] = {  # the results by media type, for the OpenAPI document
    media_type: (
        {"schema": {"type": "object"}, "example": examples.FILES[media_type]}
        if media_type in examples.FILES
        else BINARY
    )
    for media_type in sorted({*MEDIA_TYPES.values()})
}


def results_removed(job: JobRecord) -> NoSuchJob:
    """The error for a finished job without result files."""
    return NoSuchJob(f"the results of job {job.id} were removed: send the scene again")


def require_results(service: Service, job: JobRecord, job_url: str) -> None:
    """Raise unless the job has results, with OGC's exception type for each case."""
    if job.status == "failed":
        raise job_error(job)
    if job.status == "dismissed":
        raise NoSuchJob(f"the job {job.id} was dismissed and its results were removed: send the scene again")
    if job.status != "successful":
        error = ResultNotReady(f"the job {job.id} is {job.status}: {job_url} shows its progress")
        error.headers = {"Retry-After": "2"}
        raise error
    if not service.settings.results_folder(job.id).is_dir():
        raise results_removed(job)


def accepts_zip(request: Request) -> bool:
    """Whether the client accepts a zip with all results."""
    return ZIP_TYPE in request.headers.get("accept", "").lower()


def file_response(service: Service, job: JobRecord, name: str, request: Request | None = None) -> Response:
    """One result file of a finished job. It never changes, so the ETag is made from its name."""
    etag = f'"{job.id}-{name}"'
    headers = cache_headers(etag)
    if request is not None and is_not_modified(request, etag):
        return Response(status_code=304, headers=headers)
    path = service.settings.results_folder(job.id) / name
    try:
        found = path.stat()
    except OSError as error:
        if name in OPTIONAL_FILES and path.parent.is_dir():
            raise NoSuchResult(f"the result of job {job.id} has no {name}: {WHY_MISSING[name]}") from error
        raise results_removed(job) from error
    if request is not None and request.method == "HEAD":  # Range applies to GET only
        headers |= {"Content-Length": str(found.st_size), "Accept-Ranges": "bytes"}
        return Response(headers=headers, media_type=MEDIA_TYPES[name])
    return FileResponse(path, media_type=MEDIA_TYPES[name], headers=headers, stat_result=found)


def zip_response(service: Service, job: JobRecord, request: Request | None = None) -> Response:
    """All result files in one zip, created while it is sent."""
    headers = {"Content-Disposition": f'attachment; filename="{ZIP_NAME}"'}
    is_head = request is not None and request.method == "HEAD"
    chunks = iter(()) if is_head else zip_files(open_results(service, job, OUTPUTS_OF[job.kind]), OUTPUTS_OF[job.kind])
    return StreamingResponse(chunks, media_type=ZIP_TYPE, headers=headers)


def multipart_response(service: Service, job: JobRecord, outputs: Iterable[str]) -> Response:
    """Several outputs by value, one part each, read while they are sent."""
    boundary = boundary_of(job)
    files = open_results(service, job, outputs)

    def chunks() -> Iterator[bytes]:
        for output, file in files.items():
            media_type = OUTPUTS_OF[job.kind][output][1]
            yield f"--{boundary}\r\nContent-Type: {media_type}\r\nContent-ID: {output}\r\n\r\n".encode()
            with file:
                while data := file.read(READ_BYTES):
                    yield data
            yield b"\r\n"
        yield f"--{boundary}--\r\n".encode()

    return StreamingResponse(chunks(), media_type=multipart_type(job))


def boundary_of(job: JobRecord) -> str:
    """The boundary between parts; the random job id makes sure that no file contains it."""
    return f"part-{job.id}"


def multipart_type(job: JobRecord) -> str:
    """The media type of several outputs by value."""
    return f"multipart/related; boundary={boundary_of(job)}"


class _Pipe:
    """A write-only file for zipfile, whose content is taken out piece by piece."""

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


def made_outputs(service: Service, job: JobRecord, outputs: Iterable[str]) -> list[str]:
    """The outputs without those that this job's map does not have."""
    folder, every = service.settings.results_folder(job.id), OUTPUTS_OF[job.kind]
    return [name for name in outputs if name not in MAYBE_MISSING or (folder / every[name][0]).is_file()]


def open_results(service: Service, job: JobRecord, outputs: Iterable[str]) -> dict[str, BinaryIO]:
    """Open result files: a response stays complete even if the job is dismissed while it is sent."""
    folder = service.settings.results_folder(job.id)
    try:
        made = made_outputs(service, job, outputs)
        return {output: (folder / OUTPUTS_OF[job.kind][output][0]).open("rb") for output in made}
    except OSError as error:
        raise results_removed(job) from error


def zip_files(files: dict[str, BinaryIO], outputs: Mapping[str, tuple[str, str, str]]) -> Iterator[bytes]:
    """The files as a zip, in chunks; uncompressed, because the rasters are compressed already."""
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for output, file in files.items():
            entry = zipfile.ZipInfo(outputs[output][0], time.gmtime(os.fstat(file.fileno()).st_mtime)[:6])
            entry.external_attr = 0o644 << 16
            with file, archive.open(entry, "w", force_zip64=True) as target:
                while data := file.read(READ_BYTES):
                    target.write(data)
                    yield pipe.take()
    yield pipe.take()
