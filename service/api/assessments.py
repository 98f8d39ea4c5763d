"""Accuracy and areas over HTTP: samples, answers of interpreters, reports, and the comparison of two maps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from hyperscene.service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from hyperscene.service.api.jobs import JobId
from hyperscene.service.api.problems import JsonResponse, problems
from hyperscene.service.api.results import require_results
from hyperscene.service.jobs.assessments import sample_options
from hyperscene.service.jobs.records import JobRecord

router = APIRouter(tags=["assessment"])

HTML = "text/html"
NO_STORE = {"Cache-Control": "no-store", "Vary": "Accept, X-API-Key, Authorization"}
INTERVAL = {"value": 0.91, "standard_error": 0.02, "low": 0.862, "high": 0.943, "half_width_wald": 0.039}
SAMPLE_EXAMPLE = {
    "points": [{"number": 1, "row": 17, "col": 40, "lon": 13.4, "lat": 52.5}],
    "classes": [{"name": "water", "color": "#2b6cb0"}],
    "cannot_tell": "cannot tell",
    "options": {"total": 200, "target_se": 0.015, "per_class": 50, "expected_accuracy": 0.85, "seed": 0},
    "interpreters": [{"name": "anna", "answered": 12}],
}
ANSWERS_EXAMPLE = {"interpreter": "anna", "answers": {"1": "water"}}
PROGRESS_EXAMPLE = {"interpreter": "anna", "answered": 13, "points": 200}
ACCURACY_EXAMPLE = {"estimator": {"name": "stratified"}, "overall_accuracy": INTERVAL, "classes": [], "notes": []}
REPORT_EXAMPLE = {"title": "Map of scene.tif", "areas_are": "pixel counts, not an area estimate", "classes": []}
COMPARISON_EXAMPLE = {"changed_pixels": 120, "compared_pixels": 4000, "changed_share": 0.03, "warnings": []}

Interpreter = Annotated[str, Path(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$", examples=["anna"])]
PointNumber = Annotated[int, Path(ge=1, le=100_000, examples=[1])]
OtherJobId = Annotated[str, Path(max_length=100, description="the other map's job", examples=["0" * 32])]


class SampleRequest(BaseModel):
    """How large a sample is; absent values have the defaults of `hyperscene assess sample`."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"total": 200, "per_class": 20, "seed": 1}})

    total: int | None = Field(None, ge=1, le=5000, description="number of points; default: by target_se")
    target_se: float | None = Field(None, ge=0.001, le=0.4, description="standard error of overall accuracy to reach")
    per_class: int | None = Field(None, ge=2, le=5000, description="points per class at least")
    expected_accuracy: float | None = Field(None, ge=0.01, le=0.99, description="what overall accuracy may be")
    seed: int | None = Field(None, ge=0, le=2**31 - 1, description="another seed draws other points")


class AnswerRequest(BaseModel):
    """The true class of a point, "cannot tell", or null to take an answer back."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"label": "water"}})

    label: str | None = Field(max_length=1000)


def answered(example: dict[str, Any], *statuses: int, has_page: bool = False, success: int = 200) -> dict[Any, Any]:
    """Responses of a route for the OpenAPI document."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}, "example": example}}
    if has_page:
        content[HTML] = {"schema": {"type": "string"}}
    return {success: {"description": "The document", "content": content}, **problems(404, *statuses)}


async def _finished(service: Service, job_id: str, owner: str, base: str) -> JobRecord:
    job = await service.job(job_id, owner)
    require_results(service, job, f"{base}/jobs/{job.id}")
    return job


@router.post(
    "/jobs/{job_id}/sample",
    summary="Draw a stratified random sample of a map",
    status_code=201,
    response_class=JsonResponse,
    responses=answered(SAMPLE_EXAMPLE, 400, 408, 413, 507, success=201),
)
async def draw_sample(
    job_id: JobId, wanted: SampleRequest, service: ServiceDep, owner: OwnerDep, base: BaseDep
) -> Response:
    """Replaces an earlier sample as long as that has no answers."""
    job = await _finished(service, job_id, owner, base)
    options = sample_options(wanted.model_dump(exclude_none=True))
    return _document(await asyncio.to_thread(service.assessments.draw, job, options), 201)


@router.get(
    "/jobs/{job_id}/sample",
    summary="Points of a map's sample, and the progress of its interpreters",
    response_class=JsonResponse,
    responses=answered(SAMPLE_EXAMPLE, 413, 507),
)
async def show_sample(job_id: JobId, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> Response:
    """Does not say which class the map has at the points."""
    job = await _finished(service, job_id, owner, base)
    return _document(await asyncio.to_thread(service.assessments.sample, job))


@router.get(
    "/jobs/{job_id}/sample/answers/{interpreter}",
    summary="An interpreter's answers",
    response_class=JsonResponse,
    responses=answered(ANSWERS_EXAMPLE, 413, 507),
)
async def show_answers(
    job_id: JobId, interpreter: Interpreter, service: ServiceDep, owner: OwnerDep, base: BaseDep
) -> Response:
    """By the number of the point; empty for a new interpreter."""
    job = await _finished(service, job_id, owner, base)
    return _document(await asyncio.to_thread(service.assessments.answers, job, interpreter))


@router.put(
    "/jobs/{job_id}/sample/answers/{interpreter}/{number}",
    summary="Answer a point of the sample",
    response_class=JsonResponse,
    responses=answered(PROGRESS_EXAMPLE, 400, 408, 413, 507),
)
async def answer_point(  # path, body and dependencies of one route
    job_id: JobId, interpreter: Interpreter, number: PointNumber, answer: AnswerRequest, service: ServiceDep,
    owner: OwnerDep, base: BaseDep,
) -> Response:  # fmt: skip
    """The answer is on disk when the response is sent; a second answer replaces the first."""
    job = await _finished(service, job_id, owner, base)
    return _document(await asyncio.to_thread(service.assessments.answer, job, interpreter, number, answer.label))


@router.get(
    "/jobs/{job_id}/accuracy",
    summary="Accuracy and areas from the answers",
    response_class=JsonResponse,
    responses=answered(ACCURACY_EXAMPLE, 413, 507, has_page=True),
)
async def show_accuracy(
    job_id: JobId,
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    interpreter: Annotated[str | None, Query(max_length=40, description="default: who answered most")] = None,
) -> Response:
    """With 95 % intervals; with `Accept: text/html` the page that `hyperscene assess report` writes."""
    job = await _finished(service, job_id, owner, base)

    def make() -> tuple[dict[str, Any], str]:
        return service.assessments.accuracy_report(job, interpreter)

    return await _report(request, make, "accuracy.html")


@router.get(
    "/jobs/{job_id}/report",
    summary="The report of a map",
    response_class=JsonResponse,
    responses=answered(REPORT_EXAMPLE, 413, 507, has_page=True),
)
async def show_report(job_id: JobId, request: Request, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> Response:
    """With `Accept: text/html` the page to print and sign that `hyperscene report` writes."""
    job = await _finished(service, job_id, owner, base)
    return await _report(request, lambda: service.assessments.report(job), "report.html")


@router.get(
    "/jobs/{job_id}/comparison/{other_id}",
    summary="What changed between two maps of the same place",
    response_class=JsonResponse,
    responses=answered(COMPARISON_EXAMPLE, 413, 507, has_page=True),
)
async def compare(
    job_id: JobId, other_id: OtherJobId, request: Request, service: ServiceDep, owner: OwnerDep, base: BaseDep
) -> Response:
    """Transitions in pixels and hectares, and a warning of shifted maps; with `Accept: text/html` as a page."""
    first, second = [await _finished(service, each, owner, base) for each in (job_id, other_id)]
    return await _report(request, lambda: service.assessments.compare(first, second), "changes.html")


async def _report(request: Request, make: Callable[[], tuple[dict[str, Any], str]], name: str) -> Response:
    """A report as JSON, or as a page to save: its style stands inside, which the policy for our own pages forbids."""
    document, page = await asyncio.to_thread(make)
    if HTML in request.headers.get("accept", "").lower():
        headers = NO_STORE | {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(page, media_type=HTML, headers=headers)
    return _document(document)


def _document(document: dict[str, Any], status: int = 200) -> Response:
    return JsonResponse(document, status, headers=NO_STORE)
