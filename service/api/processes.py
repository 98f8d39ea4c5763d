"""OGC API - Processes 1.0: landing page, conformance, the one process, its execution."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service import logs
from service.api import examples
from service.api.classify import (
    JOB_HEADERS,
    OPTION_SCHEMAS,
    Accept,
    IdempotencyKey,
    Prefer,
    created,
    job_request,
    prefers,
)
from service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from service.api.delivery import Wanted, answer_when_done, deliver
from service.api.documents import (
    ID_EXAMPLE,
    OGC_RELATIONS,
    OUTPUTS,
    PROCESS_ID,
    Conformance,
    LandingPage,
    Link,
    ProcessDescription,
    ProcessList,
    ProcessSummary,
    StatusInfo,
)
from service.api.problems import problems, unusable
from service.api.results import BINARY, FILES
from service.api.uploads import read_json
from service.errors import NoSuchProcess, RequestUnusable
from service.jobs.admission import JobRequest
from service.jobs.records import JobRecord

router = APIRouter(tags=["OGC API - Processes"])

CLASSES = "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/"
CONFORMS_TO = [
    *(CLASSES + name for name in ("core", "ogc-process-description", "json", "oas30", "job-list", "dismiss")),
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/json",
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/oas30",
]
OPENAPI_TYPE = "application/vnd.oai.openapi+json;version=3.0"
TITLE = "Map a hyperspectral scene"
WORDS = "Classifies every pixel of a scene: a class map, the probability of each class, the confidence, and areas."

ProcessId = Annotated[str, Path(max_length=100, examples=[PROCESS_ID])]


class Output(BaseModel):
    """How one output is wanted."""

    model_config = ConfigDict(extra="ignore")

    transmissionMode: Literal["value", "reference"] | None = None  # noqa: N815


class Execution(BaseModel):
    """What to run, as OGC has it."""

    model_config = ConfigDict(extra="ignore")

    inputs: dict[str, Any]
    outputs: dict[str, Output] | None = None
    response: Literal["raw", "document"] = "raw"


BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {
                    "inputs": {
                        "type": "object",
                        "description": "`scene` with the href of an uploaded scene, or of a COG in a place that "
                        "this server reads, and the options",
                    },
                    "outputs": {
                        "type": "object",
                        "description": "those wanted; all without it",
                        "additionalProperties": {
                            "type": "object",
                            "properties": {"transmissionMode": {"type": "string", "enum": ["value", "reference"]}},
                        },
                    },
                    "response": {"type": "string", "enum": ["raw", "document"], "default": "raw"},
                },
            },
            "example": {
                "inputs": {"scene": {"href": f"/scenes/{ID_EXAMPLE}"}, "stride_px": 4},
                "outputs": {"classes": {}},
                "response": "document",
            },
        }
    },
}


@router.get("/", summary="The landing page", responses=problems(), response_model_exclude_none=True)
async def landing(base: BaseDep, owner: OwnerDep, response: Response) -> LandingPage:
    """Where everything is; a browser gets the page instead."""
    response.headers["Vary"] = "Accept"
    json_type = "application/json"
    return LandingPage(
        title="hyperscene",
        description="Maps whole hyperspectral scenes: send a GeoTIFF or ENVI cube, get a georeferenced class map.",
        links=[
            Link(href=f"{base}/", rel="self", type=json_type, title="this document"),
            Link(href=f"{base}/", rel="alternate", type="text/html", title="the page, for browsers"),
            Link(href=f"{base}/api", rel="service-desc", type=OPENAPI_TYPE, title="the API"),
            Link(href=f"{base}/conformance", rel=f"{OGC_RELATIONS}conformance", type=json_type, title="conformance"),
            Link(href=f"{base}/conformance", rel="conformance", type=json_type, title="conformance"),
            Link(href=f"{base}/processes", rel=f"{OGC_RELATIONS}processes", type=json_type, title="the processes"),
            Link(href=f"{base}/jobs", rel=f"{OGC_RELATIONS}job-list", type=json_type, title="your jobs"),
            Link(href=f"{base}/models", rel="related", type=json_type, title="the models"),
            Link(href=f"{base}/health", rel="status", type=json_type, title="how the service is"),
        ],
    )


@router.get("/conformance", summary="What is conformed to", responses=problems())
async def conformance(owner: OwnerDep) -> Conformance:
    """The classes of OGC API - Processes and Common."""
    return Conformance(conformsTo=CONFORMS_TO)


@router.get("/processes", summary="The processes", responses=problems(), response_model_exclude_none=True)
async def list_processes(
    base: BaseDep, owner: OwnerDep, limit: Annotated[int, Field(ge=1, le=1000)] = 100
) -> ProcessList:
    """There is one: classify-scene."""
    here = Link(href=f"{base}/processes", rel="self", type="application/json")
    return ProcessList(processes=[ProcessSummary(**_summary(base))], links=[here])


@router.get("/processes/{process_id}", summary="A process", responses=problems(404), response_model_exclude_none=True)
async def describe_process(
    process_id: ProcessId, base: BaseDep, owner: OwnerDep, service: ServiceDep
) -> ProcessDescription:
    """Its inputs and outputs, as JSON schema."""
    _require_process(process_id)
    return ProcessDescription(**_summary(base), inputs=_inputs(service), outputs=_outputs())


def _require_process(process_id: str) -> None:
    if process_id != PROCESS_ID:
        raise NoSuchProcess(f"there is no process {process_id[:100]!r}; this server has {PROCESS_ID}")


def _summary(base: str) -> dict[str, Any]:
    here = f"{base}/processes/{PROCESS_ID}"
    return {
        "id": PROCESS_ID,
        "version": version("hyperscene"),
        "title": TITLE,
        "description": WORDS,
        "keywords": ["hyperspectral", "classification", "land cover"],
        "jobControlOptions": ["sync-execute", "async-execute", "dismiss"],
        "outputTransmission": ["value", "reference"],
        "links": [
            Link(href=here, rel="self", type="application/json", title="the description"),
            Link(href=f"{here}/execution", rel=f"{OGC_RELATIONS}execute", title="run it (POST)"),
        ],
    }


def _inputs(service: Service) -> dict[str, Any]:
    scene = {
        "title": "The scene",
        "description": 'By reference: {"href": "/scenes/{id}"}, from POST /scenes; or the https:// or s3:// address of '
        "a COG, where this server may read it in place.",
        "minOccurs": 1,
        "maxOccurs": 1,
        "schema": {"type": "string", "contentMediaType": "image/tiff", "contentEncoding": "binary"},
    }
    options = {
        name: {
            "title": name.replace("_", " ").capitalize(),
            "description": schema["description"],
            "minOccurs": 0,
            "maxOccurs": 1,
            "schema": {key: value for key, value in schema.items() if key in ("type", "enum", "default")},
        }
        for name, schema in OPTION_SCHEMAS.items()
    }
    options["model"]["schema"] |= {"enum": [*service.models.by_name], "default": service.models.default.name}
    return {"scene": scene, **options}


def _outputs() -> dict[str, Any]:
    described = {}
    for output, (name, media_type, title) in OUTPUTS.items():
        schema: dict[str, Any] = {"type": "object", "contentMediaType": media_type}
        if not media_type.endswith("json"):
            encoding = "binary" if media_type.startswith("image/") else "8bit"
            schema = {"type": "string", "contentMediaType": media_type, "contentEncoding": encoding}
        described[output] = {"title": title, "description": f"The file {name}", "schema": schema}
    return described


@router.post(
    "/processes/{process_id}/execution",
    summary="Map an uploaded scene",
    response_class=Response,
    responses={
        200: {
            "description": "Done (a caller who waits): the results document, or one output itself",
            "content": {
                **FILES,
                "multipart/related": BINARY,
                "application/json": {"schema": {"type": "object"}, "example": examples.RESULTS},
            },
            "headers": JOB_HEADERS,
        },
        201: {"description": "The job (Prefer: respond-async)", "model": StatusInfo, "headers": JOB_HEADERS},
        204: {"description": "Done: raw outputs by reference, in Link headers", "headers": JOB_HEADERS},
        **problems(400, 404, 408, 413, 429, 507),
    },
    openapi_extra={"requestBody": BODY},
)
async def execute(
    process_id: ProcessId,
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    key: IdempotencyKey = None,
    prefer: Prefer = None,
    accept: Accept = None,
) -> Response:
    """Run it on an uploaded scene; waits for the result unless `Prefer: respond-async`."""
    _require_process(process_id)
    execution = _understood(await read_json(request, service))
    wanted = _wanted(execution)
    job = await asyncio.to_thread(_submit, service, execution, wanted, base, owner, key, logs.request_id.get())
    if prefers(request, "respond-async"):
        return created(job, base)

    async def make(done: JobRecord) -> Response:
        return await deliver(service, done, wanted, base)

    return await answer_when_done(service, job, f"{base}/jobs/{job.id}", request, wanted.media_type(job), make)


def _understood(body: Any) -> Execution:
    try:
        return Execution.model_validate(body)
    except ValidationError as error:
        raise unusable(error.errors()[0]) from error


def _wanted(execution: Execution) -> Wanted:
    for name in execution.outputs or {}:
        if name not in OUTPUTS:
            raise RequestUnusable(f"there is no output {name[:100]!r}; known are {', '.join(OUTPUTS)}")
    modes: dict[str, str | None] = {name: output.transmissionMode for name, output in (execution.outputs or {}).items()}
    return Wanted(modes or dict.fromkeys(OUTPUTS), execution.response)


def _submit(
    service: Service,
    execution: Execution,
    wanted: Wanted,
    base: str,
    owner: str,
    key: str | None,
    request_id: str | None,
) -> JobRecord:
    inputs = {name: _value(given) for name, given in execution.inputs.items() if name != "scene"}
    asked = job_request(inputs)
    href = _href(execution.inputs.get("scene"))
    scene_id = _scene_id(href, base)
    job = service.store.job_by_key(owner, key) if key else None
    if job is None:
        admission = service.admission
        admission.require_queue()
        if scene_id is None:
            scene = admission.refer(href, owner, is_temporary=True)
        else:
            scene = admission.find_scene(scene_id, owner)
        job = admission.submit(
            scene, asked, owner, key, request_id, execution=asdict(wanted), is_new_scene=scene_id is None
        )
    if not _is_job_of(job, _is_scene(service, job, scene_id, href), asked, wanted):
        raise RequestUnusable("this Idempotency-Key made a job with other inputs or outputs: use another key")
    return job


def _is_scene(service: Service, job: JobRecord, scene_id: str | None, href: str) -> bool:
    """Whether a job is about this scene; one that is read in place has an address instead of an id."""
    if scene_id is not None:
        return job.scene_id == scene_id
    scene = service.store.scene(job.scene_id)
    return scene is None or scene.href == href  # a finished job's scene may have expired


def _is_job_of(job: JobRecord, is_scene: bool, asked: JobRequest, wanted: Wanted) -> bool:
    """Whether a job is what was asked for; what the caller left to us may have been chosen otherwise since."""
    chosen = {"stride_px": asked.stride_px, "blend": asked.blend, "probability_type": asked.probability_type}
    return (
        is_scene
        and job.model == (asked.model or job.model)
        and all(job.options[name] == value for name, value in chosen.items() if value)
        and job.execution == asdict(wanted)
    )


def _value(given: Any) -> Any:
    """An input's value: plain, or qualified as {"value": ...}."""
    return given["value"] if isinstance(given, dict) and "value" in given else given


def _href(given: Any) -> str:
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    href = given.get("href") if isinstance(given, dict) else given
    if not isinstance(href, str):
        raise RequestUnusable('the input scene is a reference to an uploaded scene: {"href": "/scenes/ID"}')
    return href


def _scene_id(href: str, base: str) -> str | None:
    """The id in a reference to an uploaded scene; None where it leads elsewhere."""
    ours = urlsplit(base)
    host = rf"(?i:https?://{re.escape(ours.netloc)})"
    found = re.fullmatch(rf"(?:{host})?(?:{re.escape(ours.path)})?/scenes/([0-9A-Za-z_-]{{1,100}})", href)
    return found[1] if found else None
