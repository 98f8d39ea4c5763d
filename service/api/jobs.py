"""Jobs: status, results, events, dismissal."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC
from datetime import datetime as Moment  # OGC has a parameter of the other name
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.api import examples
from service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from service.api.delivery import Wanted, deliver
from service.api.documents import (
    ID_EXAMPLE,
    MEDIA_TYPES,
    PROCESS_ID,
    ZIP_NAME,
    JobList,
    Link,
    StatusInfo,
    status_of,
)
from service.api.problems import problems
from service.api.results import BINARY, FILES, ZIP_TYPE, accepts_zip, file_response, require_results, zip_response
from service.api.watch import Stopping
from service.errors import NoSuchResult, RequestUnusable
from service.jobs.records import JobBounds, JobRecord

router = APIRouter(tags=["jobs"])

QUIET_S = 15.0  # after so much silence an event stream says that it is still there
RECONNECT_MS = 1000
EVENT_STREAM = "text/event-stream"
PLAIN = {"text/plain": {"schema": {"type": "string"}}}

JobId = Annotated[str, Path(max_length=100, description="from POST /classify", examples=[ID_EXAMPLE])]
ResultName = Annotated[str, Path(max_length=100, json_schema_extra={"enum": [*MEDIA_TYPES, ZIP_NAME]})]
Status = Literal["accepted", "running", "successful", "failed", "dismissed"]


@router.get("/jobs", summary="Your jobs, the newest first", response_model_exclude_none=True, responses=problems())
async def list_jobs(
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="jobs a page")] = 20,
    offset: Annotated[int, Query(ge=0, le=10**9, description="jobs to leave out from the start")] = 0,
    status: Annotated[list[Status] | None, Query(description="only these")] = None,
    type: Annotated[list[str] | None, Query(description="only these; all are of the type process")] = None,
    processID: Annotated[list[str] | None, Query(description="only of these processes")] = None,  # noqa: N803
    datetime: Annotated[str | None, Query(description="made then", examples=["2026-01-01T00:00:00Z/.."])] = None,
    minDuration: Annotated[int | None, Query(ge=0, le=10**9, description="seconds of work")] = None,  # noqa: N803
    maxDuration: Annotated[int | None, Query(ge=0, le=10**9, description="seconds of work")] = None,  # noqa: N803
) -> JobList:
    """A page of jobs; follow the links `next` and `prev`.

    `datetime` is a moment of RFC 3339, or two with / between, of which one may be `..`, for an open end.
    """
    created_from, created_to = (None, None) if datetime is None else interval(datetime)
    found = []
    if (type is None or "process" in type) and (processID is None or PROCESS_ID in processID):
        bounds = JobBounds(created_from, created_to, minDuration, maxDuration)
        found = await asyncio.to_thread(service.store.jobs, owner, status or [], limit + 1, offset, bounds)
    links = [_page(request, base, "self", limit, offset)]
    if len(found) > limit:
        links.append(_page(request, base, "next", limit, offset + limit))
    if offset:
        links.append(_page(request, base, "prev", limit, max(0, offset - limit)))
    return JobList(jobs=[status_of(job, base) for job in found[:limit]], links=links)


def _page(request: Request, base: str, rel: str, limit: int, offset: int) -> Link:
    """Another page of what was asked for."""
    asked = [(name, value) for name, value in request.query_params.multi_items() if name not in ("limit", "offset")]
    query = urlencode([("limit", limit), ("offset", offset), *asked])
    return Link(href=f"{base}/jobs?{query}", rel=rel, type="application/json")


def interval(text: str) -> tuple[float | None, float | None]:
    """The moments between which, in seconds since 1970; None at an open end."""
    start, slash, end = text.partition("/")
    try:
        began, ended = _moment(start), _moment(end) if slash else _moment(start)
    except (ValueError, OverflowError):
        began = ended = None
    if began is None and ended is None:
        raise RequestUnusable(
            f"datetime must be a moment, or two with / between and .. for an open end, not {text[:100]!r}: "
            "write 2026-01-31T12:00:00Z/.."
        )
    # What is shown of a moment is rounded to a microsecond.
    return began and began - 1e-6, ended and ended + 1e-6


def _moment(text: str) -> float | None:
    """Seconds since 1970; a moment without an offset is in UTC."""
    if text in ("", ".."):
        return None
    moment = Moment.fromisoformat(text.upper())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@router.get("/jobs/{job_id}", summary="A job", response_model_exclude_none=True, responses=problems(404))
async def show_job(job_id: JobId, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> StatusInfo:
    """Status, progress in patches, the time left, and links."""
    return status_of(await service.job(job_id, owner), base)


@router.delete("/jobs/{job_id}", summary="Dismiss a job", response_model_exclude_none=True, responses=problems(404))
async def dismiss_job(job_id: JobId, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> StatusInfo:
    """Stop it within a second, or drop its results; the disk is freed."""
    job = await service.job(job_id, owner)
    await asyncio.to_thread(service.admission.dismiss, job)
    return status_of(await service.job(job_id, owner), base)


@router.get(
    "/jobs/{job_id}/results",
    summary="Where the results are",
    responses={
        200: {
            "description": "Every output by reference; with Accept: application/zip all of them",
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
    """OGC's results document."""
    job = await service.job(job_id, owner)
    require_results(service, job, f"{base}/jobs/{job.id}")
    if accepts_zip(request):
        return zip_response(service, job)
    wanted = Wanted(**job.execution) if job.execution else Wanted()
    # Raw outputs are for one at a time here; several are linked to.
    return await deliver(service, job, wanted if wanted.raw_output else replace(wanted, response="document"), base)


FILE_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file", "content": {**FILES, ZIP_TYPE: BINARY}},
    206: {
        "description": "A part of the file, for Range",
        "content": dict.fromkeys([*FILES, "multipart/byteranges"], BINARY),
    },
    304: {"description": "The caller has it already (If-None-Match)"},
    400: {"description": "A range that cannot be understood", "content": PLAIN},
    416: {"description": "A range outside of the file", "content": PLAIN},
    **problems(404, 413, 507),
}


@router.head(
    "/jobs/{job_id}/results/{name}",
    summary="Length and tag of a file of the results",
    response_class=Response,
    responses=FILE_ANSWERS,
)
@router.get(
    "/jobs/{job_id}/results/{name}", summary="A file of the results", response_class=Response, responses=FILE_ANSWERS
)
async def read_result(
    job_id: JobId, name: ResultName, request: Request, service: ServiceDep, owner: OwnerDep, base: BaseDep
) -> Response:
    """With ETag, Range and HEAD, so that GDAL's /vsicurl/ and browsers read the COGs in place."""
    job = await service.job(job_id, owner)
    require_results(service, job, f"{base}/jobs/{job.id}")
    if name == ZIP_NAME:
        return zip_response(service, job, request)
    if name not in MEDIA_TYPES:
        raise NoSuchResult(f"there is no result {name!r}; there are {', '.join([*MEDIA_TYPES, ZIP_NAME])}")
    return file_response(service, job, name, request)


@router.get(
    "/jobs/{job_id}/events",
    summary="Progress as server-sent events",
    response_class=Response,
    responses={
        200: {
            "description": "An event `status` with the job's document after every change, until it is finished",
            "content": {EVENT_STREAM: {"example": examples.EVENT}},  # 3.0 has no schemas for streams
        },
        204: {"description": "The job is finished and the caller has seen that: do not reconnect"},
        **problems(404),
    },
)
async def watch_job(
    job_id: JobId,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    last_event_id: Annotated[str | None, Header(description="the last event that was seen")] = None,
) -> Response:
    """Each event's id is the job's version: a reader that reconnects with Last-Event-ID misses nothing and sees
    nothing twice."""
    job = await service.job(job_id, owner)
    seen = int(last_event_id) if last_event_id and re.fullmatch("[0-9]{1,18}", last_event_id) else 0
    if job.is_finished and job.version <= seen:
        return Response(status_code=204)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy must not hold events back
    return StreamingResponse(_events(service, job, base, seen), media_type=EVENT_STREAM, headers=headers)


async def _events(service: Service, job: JobRecord, base: str, seen: int) -> AsyncIterator[str]:
    yield f"retry: {RECONNECT_MS}\n\n"
    if job.version > seen:
        yield _event(job, base)
    try:
        async for changed in service.watch.changes(job, QUIET_S):
            yield _event(changed, base) if changed else ": still here\n\n"
    except Stopping:
        return


def _event(job: JobRecord, base: str) -> str:
    document: dict[str, Any] = status_of(job, base).model_dump(mode="json", exclude_none=True)
    return f"id: {job.version}\nevent: status\ndata: {json.dumps(document)}\n\n"
