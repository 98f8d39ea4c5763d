"""POST /classify: upload a scene, get its map."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from hyperscene.errors import RequestUnusable
from hyperscene.service import logs
from hyperscene.service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from hyperscene.service.api.documents import ZIP_NAME, StatusInfo, status_of
from hyperscene.service.api.execution import file_response_when_finished
from hyperscene.service.api.problems import JsonResponse, problems
from hyperscene.service.api.results import ZIP_TYPE, accepts_zip
from hyperscene.service.api.uploads import MAX_FILES, content_length, receive_form, upload_folder
from hyperscene.service.jobs.admission import ALLOWED, JobRequest, parse_masks
from hyperscene.service.jobs.records import JobRecord

router = APIRouter(tags=["maps"])

MAX_MASK_LENGTH = 200

OPTION_SCHEMAS: dict[str, dict[str, Any]] = {
    "model": {
        "type": "string",
        "description": "a name from /models, the latest version of it, or name@version; default: the default model",
        "example": "demo",
    },
    "stride_px": {
        "type": "integer",
        "enum": [*ALLOWED["stride_px"]],
        "description": "pixels between patch centres; a larger stride means fewer patches and less time. At most half "
        "a patch, or a whole patch for token bundles. Default 4, or 8 for token bundles",
        "example": 4,
    },
    "blend": {
        "type": "string",
        "enum": [*ALLOWED["blend"]],
        "default": "angle",
        "description": "how overlapping patches are weighted; none requires stride 1",
    },
    "probability_type": {
        "type": "string",
        "enum": [*ALLOWED["probability_type"]],
        "default": "uint8",
        "description": "sample type of the stored probabilities; uint8 has steps of 1/254",
    },
    "unknown": {
        "type": "string",
        "enum": [*ALLOWED["unknown"]],
        "default": "no",
        "description": "whether pixels outside the model's area of applicability get the class unknown",
    },
    "mask": {
        "type": "string",
        "description": "masks of a product that make pixels invalid, such as cloud,shadow,cirrus, or none; GET "
        "/scenes/{id} lists those of a scene. Default: cloud and shadow, where the product has them",
        "example": "cloud,shadow",
    },
}
REQUEST_BODY: dict[str, Any] = {
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
                            "maxItems": MAX_FILES,
                            "items": {"type": "string", "format": "binary"},
                            "description": "one GeoTIFF, ENVI data and its header, or a product: a zip, a tar.gz, an "
                            ".h5, .he5 or .nc file, or its image with METADATA.XML and its other files",
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
    "Location": {"description": "URL of the job", "schema": {"type": "string", "format": "uri"}},
}


def prefers(request: Request, preference: str) -> bool:
    """Whether the request's Prefer header has the preference."""
    preferences = {part.split(";")[0].strip().lower() for part in request.headers.get("prefer", "").split(",")}
    return preference in preferences


def parse_options(fields: dict[str, Any]) -> JobRequest:
    """The options of a form or of OGC's inputs; unknown names and values are refused."""
    for name in fields:
        if name not in OPTION_SCHEMAS:
            known = ", ".join(["scene", *OPTION_SCHEMAS])
            raise RequestUnusable(f"there is no option {name[:100]!r}; the options are {known}")
    for name in ("blend", "probability_type", "unknown"):
        choices = ALLOWED[name]
        if name in fields and fields[name] not in choices:
            raise RequestUnusable(f"{name} must be one of {', '.join(choices)}, not {str(fields[name])[:100]!r}")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestUnusable("model must be a name from /models")
    chosen = {name: fields[name] for name in ("blend", "probability_type", "unknown") if name in fields}
    return JobRequest(model or None, _stride(fields.get("stride_px")), **chosen, masks=_masks(fields.get("mask")))


def _masks(value: Any) -> tuple[str, ...] | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise RequestUnusable("mask must be text, such as cloud,shadow or none")
    return parse_masks(value[:MAX_MASK_LENGTH])


def _stride(value: Any) -> int:
    if value is None or value == "":
        return 0
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text[:9]) not in ALLOWED["stride_px"]:
        raise RequestUnusable(
            f"stride_px must be one of {', '.join(map(str, ALLOWED['stride_px']))}, not {text[:100]!r}"
        )
    return int(text)


def created_response(job: JobRecord, base: str) -> JsonResponse:
    """The response to an asynchronous request: 201 and the job."""
    headers = {"Location": f"{base}/jobs/{job.id}", "Preference-Applied": "respond-async"}
    return JsonResponse(status_of(job, base).model_dump(mode="json", exclude_none=True), 201, headers)


async def job_of_key(service: Service, owner: str, key: str | None) -> JobRecord | None:
    """The job that was created with an idempotency key."""
    return await asyncio.to_thread(service.store.job_by_key, owner, key) if key else None


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="a repeated key returns the job that it created, without reading the upload",
    ),
]
Prefer = Annotated[str | None, Header(description="respond-async: return 201 and the job at once")]
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
    openapi_extra=REQUEST_BODY,
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
    """Upload one GeoTIFF, ENVI data and header, or a product, and get the class map.

    The job's URL is in `Location`. Closing the connection does not stop the job.
    """
    job = await job_of_key(service, owner, key)
    if job is None:
        job = await _submit(request, service, owner, key)
    if prefers(request, "respond-async"):
        return created_response(job, base)
    name = ZIP_NAME if accepts_zip(request) else "classes.tif"
    return await file_response_when_finished(service, job, name, f"{base}/jobs/{job.id}", request)


async def _submit(request: Request, service: Service, owner: str, key: str | None) -> JobRecord:
    admission = service.admission
    with admission.upload_slot(owner, is_job=True):
        await asyncio.to_thread(admission.require_capacity, content_length(request), owner, is_job=True)
        async with upload_folder(service) as folder:
            upload = await receive_form(request, service, folder)
            job_request = parse_options(upload.fields)
            request_id = logs.request_id.get()

            def store_and_submit() -> JobRecord:
                service.models.find(job_request.model, owner)
                scene = admission.receive_scene(folder, upload.files, owner, is_temporary=True)
                return admission.submit(scene, job_request, owner, key, request_id, is_new_scene=True)

            return await asyncio.to_thread(store_and_submit)
