"""Jobs: status, results, events, dismissal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC
from datetime import datetime as DateTime  # `datetime` is a query parameter of OGC
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from hyperscene.errors import NoSuchResult, RequestUnusable
from hyperscene.json_text import json_text
from hyperscene.service.api import examples
from hyperscene.service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from hyperscene.service.api.documents import (
    ID_EXAMPLE,
    MEDIA_TYPES,
    OUTPUTS_OF,
    PROCESS_OF,
    ZIP_NAME,
    JobList,
    Link,
    StatusInfo,
    status_of,
)
from hyperscene.service.api.execution import RequestedOutputs, results_response
from hyperscene.service.api.job_watcher import ServerStopping
from hyperscene.service.api.problems import problems
from hyperscene.service.api.results import (
    BINARY,
    FILES,
    ZIP_TYPE,
    accepts_zip,
    file_response,
    require_results,
    zip_response,
)
from hyperscene.service.jobs.records import JobBounds, JobRecord

router = APIRouter(tags=["jobs"])

KEEP_ALIVE_S = 15.0  # interval of comments in an event stream without events
RECONNECT_MS = 1000
EVENT_STREAM = "text/event-stream"
PLAIN = {"text/plain": {"schema": {"type": "string"}}}

JobId = Annotated[str, Path(max_length=100, description="from POST /classify", examples=[ID_EXAMPLE])]
ResultName = Annotated[str, Path(max_length=100, json_schema_extra={"enum": [*MEDIA_TYPES, ZIP_NAME]})]
Status = Literal["accepted", "running", "successful", "failed", "dismissed"]


@dataclass(frozen=True)
class JobFilter:
    """Conditions of a list of jobs; `bounds` is None if no job can match."""

    statuses: list[Status]
    bounds: JobBounds | None


def job_filter(
    status: Annotated[list[Status] | None, Query(description="only jobs with these statuses")] = None,
    type: Annotated[list[str] | None, Query(description="only these types; every job has the type process")] = None,
    processID: Annotated[list[str] | None, Query(description="only jobs of these processes")] = None,  # noqa: N803
    datetime: Annotated[
        str | None, Query(description="only jobs created in this interval", examples=["2026-01-01T00:00:00Z/.."])
    ] = None,
    minDuration: Annotated[int | None, Query(ge=0, le=10**9, description="in seconds")] = None,  # noqa: N803
    maxDuration: Annotated[int | None, Query(ge=0, le=10**9, description="in seconds")] = None,  # noqa: N803
) -> JobFilter:
    """The query parameters that OGC defines for the list of jobs."""
    created_from, created_to = (None, None) if datetime is None else parse_interval(datetime)
    kinds = tuple(kind for kind, process in PROCESS_OF.items() if processID is None or process in processID)
    can_match = (type is None or "process" in type) and bool(kinds)
    bounds = JobBounds(created_from, created_to, minDuration, maxDuration, kinds) if can_match else None
    return JobFilter(status or [], bounds)


@router.get("/jobs", summary="List your jobs, newest first", response_model_exclude_none=True, responses=problems())
async def list_jobs(
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    conditions: Annotated[JobFilter, Depends(job_filter)],
    limit: Annotated[int, Query(ge=1, le=1000, description="jobs per page")] = 20,
    offset: Annotated[int, Query(ge=0, le=10**9, description="number of jobs to skip")] = 0,
) -> JobList:
    """A page of jobs with links to the next and the previous page.

    `datetime` is an RFC 3339 time, or two separated by /; `..` stands for an open start or end.
    """
    found = []
    if conditions.bounds is not None:
        found = await asyncio.to_thread(
            service.store.jobs, owner, conditions.statuses, limit + 1, offset, conditions.bounds
        )
    links = [_page_link(request, base, "self", limit, offset)]
    if len(found) > limit:
        links.append(_page_link(request, base, "next", limit, offset + limit))
    if offset:
        links.append(_page_link(request, base, "prev", limit, max(0, offset - limit)))
    return JobList(jobs=[status_of(job, base) for job in found[:limit]], links=links)


def _page_link(request: Request, base: str, rel: str, limit: int, offset: int) -> Link:
    """A link to a page of the same list."""
    others = [(name, value) for name, value in request.query_params.multi_items() if name not in ("limit", "offset")]
    query = urlencode([("limit", limit), ("offset", offset), *others])
    return Link(href=f"{base}/jobs?{query}", rel=rel, type="application/json")


def parse_interval(text: str) -> tuple[float | None, float | None]:
    """Start and end of an interval, in seconds since 1970; None for an open end."""
    start, slash, end = text.partition("/")
    try:
        earliest, latest = _timestamp(start), _timestamp(end) if slash else _timestamp(start)
    except (ValueError, OverflowError):
        earliest = latest = None
    if earliest is None and latest is None:
        raise RequestUnusable(
            f"datetime must be a time, or two times separated by / with .. for an open end, not {text[:100]!r}: "
            "write 2026-01-31T12:00:00Z/.."
        )
    # Times in responses are rounded to a microsecond.
    return earliest and earliest - 1e-6, latest and latest + 1e-6


def _timestamp(text: str) -> float | None:
    """Seconds since 1970; a time without a UTC offset is in UTC."""
    if text in ("", ".."):
        return None
    time = DateTime.fromisoformat(text.upper())
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


@router.get("/jobs/{job_id}", summary="Status of a job", response_model_exclude_none=True, responses=problems(404))
async def show_job(job_id: JobId, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> StatusInfo:
    """Status, progress in patches, estimated time left, and links."""
    return status_of(await service.job(job_id, owner), base)


@router.delete("/jobs/{job_id}", summary="Dismiss a job", response_model_exclude_none=True, responses=problems(404))
async def dismiss_job(job_id: JobId, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> StatusInfo:
    """Stop a running job within a second, or remove a finished job's results."""
    job = await service.job(job_id, owner)
    await asyncio.to_thread(service.admission.dismiss, job)
    return status_of(await service.job(job_id, owner), base)


@router.get(
    "/jobs/{job_id}/results",
    summary="Links to the results",
    responses={
        200: {
            "description": "Every output by reference; with Accept: application/zip all files",
            "content": {
                "application/json": {"schema": {"type": "object"}, "example": examples.RESULTS},
                ZIP_TYPE: BINARY,
            },
        },
        **problems(404, 413, 507),
    },
)
async def show_results(
    job_id: JobId, request: Request, service: ServiceDep, owner: OwnerDep, base: BaseDep
) -> Response:
    """The results document of OGC API - Processes."""
    job = await service.job(job_id, owner)
    require_results(service, job, f"{base}/jobs/{job.id}")
    if accepts_zip(request):
        return zip_response(service, job)
    requested = RequestedOutputs(**(job.execution or {"outputs": dict.fromkeys(OUTPUTS_OF[job.kind])}))
    if not requested.raw_output:  # several outputs: always a document
        requested = replace(requested, response="document")
    return await results_response(service, job, requested, base)


FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file", "content": {**FILES, ZIP_TYPE: BINARY}},
    206: {
        "description": "The requested range of the file",
        "content": dict.fromkeys([*FILES, "multipart/byteranges"], BINARY),
    },
    304: {"description": "The cached copy is current (If-None-Match)"},
    400: {"description": "The Range header cannot be parsed", "content": PLAIN},
    416: {"description": "The range is outside of the file", "content": PLAIN},
    **problems(404, 413, 507),
}


@router.head(
    "/jobs/{job_id}/results/{name}",
    summary="Size and ETag of a result file",
    response_class=Response,
    responses=FILE_RESPONSES,
)
@router.get("/jobs/{job_id}/results/{name}", summary="A result file", response_class=Response, responses=FILE_RESPONSES)
async def read_result(
    job_id: JobId, name: ResultName, request: Request, service: ServiceDep, owner: OwnerDep, base: BaseDep
) -> Response:
    """Supports ETag, Range and HEAD, so that GDAL's /vsicurl/ and browsers can read parts of the COGs."""
    job = await service.job(job_id, owner)
    require_results(service, job, f"{base}/jobs/{job.id}")
    if name == ZIP_NAME:
        return zip_response(service, job, request)
    names = [file for file, _, _ in OUTPUTS_OF[job.kind].values()]
    if name not in names:
        raise NoSuchResult(f"there is no result {name!r}; the results are {', '.join([*names, ZIP_NAME])}")
    return file_response(service, job, name, request)


@router.get(
    "/jobs/{job_id}/events",
    summary="Progress as server-sent events",
    response_class=Response,
    responses={
        200: {
            "description": "An event `status` with the job's document after every change, until the job is finished",
            "content": {EVENT_STREAM: {"example": examples.EVENT}},  # OpenAPI 3.0 has no schemas for streams
        },
        204: {"description": "The job is finished and its last event was received: do not reconnect"},
        **problems(404),
    },
)
async def watch_job(
    job_id: JobId,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    last_event_id: Annotated[str | None, Header(description="id of the last event received")] = None,
) -> Response:
    """Each event's id is the job's version, so a client that reconnects with Last-Event-ID gets each event once."""
    job = await service.job(job_id, owner)
    seen = int(last_event_id) if last_event_id and re.fullmatch("[0-9]{1,18}", last_event_id) else 0
    if job.is_finished and job.version <= seen:
        return Response(status_code=204)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # no buffering in proxies
    return StreamingResponse(_events(service, job, base, seen), media_type=EVENT_STREAM, headers=headers)


async def _events(service: Service, job: JobRecord, base: str, seen: int) -> AsyncIterator[str]:
    yield f"retry: {RECONNECT_MS}\n\n"
    if job.version > seen:
        yield _event(job, base)
    try:
        async for changed in service.job_watcher.changes(job, KEEP_ALIVE_S):
            yield _event(changed, base) if changed else ": keep-alive\n\n"
    except ServerStopping:
        return


def _event(job: JobRecord, base: str) -> str:
    document: dict[str, Any] = status_of(job, base).model_dump(mode="json", exclude_none=True)
    return f"id: {job.version}\nevent: status\ndata: {json_text(document)}\n\n"
