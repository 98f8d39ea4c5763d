"""POST /classify: a scene in, its map out."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse

from service import logs
from service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from service.api.delivery import answer_file
from service.api.documents import ZIP_NAME, StatusInfo, status_of
from service.api.problems import problems
from service.api.results import ZIP_TYPE, accepts_zip
from service.api.uploads import content_length, incoming, receive_form
from service.errors import RequestUnusable
from service.jobs.admission import CHOICES, JobRequest
from service.jobs.records import JobRecord

router = APIRouter(tags=["maps"])

OPTION_SCHEMAS: dict[str, dict[str, Any]] = {
    "model": {"type": "string", "description": "a name from /models; the default model without it", "example": "demo"},
    "stride_px": {
        "type": "integer",
        "enum": [*CHOICES["stride_px"]],
        "description": "pixels between patch centres: fewer patches, less time; at most half a patch, or a whole one "
        "for token bundles; 4 without it, 8 for token bundles",
        "example": 4,
    },
    "blend": {
        "type": "string",
        "enum": [*CHOICES["blend"]],
        "default": "angle",
        "description": "how patches over a pixel are weighed; none needs stride 1",
    },
    "probability_type": {
        "type": "string",
        "enum": [*CHOICES["probability_type"]],
        "default": "uint8",
        "description": "how probabilities are stored; uint8 has steps of 1/254",
    },
}
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["scene"],
                    "additionalProperties": False,
                    "properties": {
                        "scene": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": 2,
                            "items": {"type": "string", "format": "binary"},
                            "description": "one GeoTIFF, or ENVI data and its header",
                        },
                        **OPTION_SCHEMAS,
                    },
                },
                "encoding": {"scene": {"contentType": "image/tiff, application/octet-stream"}},
                "example": {"scene": ["(the bytes of scene.tif)"], "stride_px": 4, "blend": "angle"},
            }
        },
    }
}
JOB_HEADERS = {
    "Location": {"description": "the job's address", "schema": {"type": "string", "format": "uri"}},
}


def prefers(request: Request, preference: str) -> bool:
    """Whether the caller asks for it in Prefer."""
    given = {part.split(";")[0].strip().lower() for part in request.headers.get("prefer", "").split(",")}
    return preference in given


def job_request(fields: dict[str, Any]) -> JobRequest:
    """The options of a form or of OGC's inputs; a misspelt one is refused."""
    for name in fields:
        if name not in OPTION_SCHEMAS:
            known = ", ".join(["scene", *OPTION_SCHEMAS])
            raise RequestUnusable(f"there is no option {name[:100]!r} here; known are {known}")
    for name in ("blend", "probability_type"):
        choices = CHOICES[name]
        if name in fields and fields[name] not in choices:
            raise RequestUnusable(f"{name} must be one of {', '.join(choices)}, not {str(fields[name])[:100]!r}")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestUnusable("model must be a name from /models")
    return JobRequest(model or None, _stride(fields.get("stride_px")), **{
        name: fields[name] for name in ("blend", "probability_type") if name in fields
    })  # fmt: skip


def _stride(given: Any) -> int:
    if given is None or given == "":
        return 0
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdigit()) or int(text[:9]) not in CHOICES["stride_px"]:
        raise RequestUnusable(
            f"stride_px must be one of {', '.join(map(str, CHOICES['stride_px']))}, not {text[:100]!r}"
        )
    return int(text)


def created(job: JobRecord, base: str) -> JSONResponse:
    """The answer to a caller who does not wait."""
    headers = {"Location": f"{base}/jobs/{job.id}", "Preference-Applied": "respond-async"}
    return JSONResponse(status_of(job, base).model_dump(mode="json", exclude_none=True), 201, headers)


async def earlier_job(service: Service, owner: str, key: str | None) -> JobRecord | None:
    """The job that an idempotency key made."""
    return await asyncio.to_thread(service.store.job_by_key, owner, key) if key else None


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="the same key again answers the job that it made, without reading the upload",
    ),
]
Prefer = Annotated[str | None, Header(description="respond-async: answer 201 and the job at once")]
Accept = Annotated[str | None, Header(description="application/zip: all results instead of the class map")]


@router.post(
    "/classify",
    summary="Map a scene",
    response_class=Response,
    responses={
        200: {
            "description": "The class map, or all results as a zip",
            "content": {
                "image/tiff": {"schema": {"type": "string", "format": "binary"}},
                ZIP_TYPE: {"schema": {"type": "string", "format": "binary"}},
            },
            "headers": JOB_HEADERS,
        },
        201: {"description": "The job (Prefer: respond-async)", "model": StatusInfo, "headers": JOB_HEADERS},
        **problems(400, 404, 408, 413, 429, 507),
    },
    openapi_extra=FORM,
)
async def classify(
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    key: IdempotencyKey = None,
    prefer: Prefer = None,
    accept: Accept = None,
) -> Response:
    """Send one GeoTIFF, or ENVI data and header, and get the class map.

    The job's address is in `Location`. A caller that goes away does not stop the job.
    """
    job = await earlier_job(service, owner, key)
    if job is None:
        job = await _submit(request, service, owner, key)
    if prefers(request, "respond-async"):
        return created(job, base)
    name = ZIP_NAME if accepts_zip(request) else "classes.tif"
    return await answer_file(service, job, name, f"{base}/jobs/{job.id}", request)


async def _submit(request: Request, service: Service, owner: str, key: str | None) -> JobRecord:
    admission = service.admission
    with admission.slot(is_job=True):
        await asyncio.to_thread(admission.require_place, content_length(request), is_job=True)
        async with incoming(service) as folder:
            upload = await receive_form(request, service, folder)
            asked = job_request(upload.fields)
            request_id = logs.request_id.get()
            return await asyncio.to_thread(_take, service, folder, upload.files, asked, owner, key, request_id)


def _take(
    service: Service, folder: Any, files: Any, asked: JobRequest, owner: str, key: str | None, request_id: str | None
) -> JobRecord:
    service.models.find(asked.model)
    scene = service.admission.take_in(folder, files, owner, is_temporary=True)
    return service.admission.submit(scene, asked, owner, key, request_id, is_new_scene=True)
