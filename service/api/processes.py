"""OGC API - Processes 1.0: landing page, conformance, the processes and their execution."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hyperscene.errors import NoSuchProcess, RequestUnusable
from hyperscene.service import logs
from hyperscene.service.api import examples, training_process
from hyperscene.service.api.classify import (
    JOB_HEADERS,
    OPTION_SCHEMAS,
    Accept,
    IdempotencyKey,
    Prefer,
    created_response,
    parse_options,
    prefers,
)
from hyperscene.service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from hyperscene.service.api.documents import (
    ALL_OUTPUTS,
    ID_EXAMPLE,
    OGC_RELATIONS,
    OUTPUTS_OF,
    PROCESS_ID,
    PROCESS_OF,
    TRAIN_PROCESS_ID,
    Conformance,
    LandingPage,
    Link,
    ProcessDescription,
    ProcessList,
    ProcessSummary,
    StatusInfo,
)
from hyperscene.service.api.execution import RequestedOutputs, response_when_finished, results_response
from hyperscene.service.api.problems import invalid_request, problems
from hyperscene.service.api.results import BINARY, FILES
from hyperscene.service.api.training_process import href_of, scene_id_of, value_of
from hyperscene.service.api.uploads import read_json
from hyperscene.service.jobs.admission import MASK_KINDS, MASK_NONE, JobRequest
from hyperscene.service.jobs.records import JobRecord

router = APIRouter(tags=["OGC API - Processes"])

CONFORMANCE_CLASSES = "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/"
CONFORMS_TO = [
    *(
        CONFORMANCE_CLASSES + name
        for name in ("core", "ogc-process-description", "json", "oas30", "job-list", "dismiss")
    ),
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/json",
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/oas30",
]
OPENAPI_TYPE = "application/vnd.oai.openapi+json;version=3.0"
MASK_PATTERN = f"^({MASK_NONE}|({'|'.join(MASK_KINDS)})(,({'|'.join(MASK_KINDS)}))*)$"
TITLE = "Map a hyperspectral scene"
DESCRIPTION = "Classifies every pixel of a scene: class map, probability of each class, confidence, and areas."

ProcessId = Annotated[str, Path(max_length=100, examples=[PROCESS_ID])]


class Output(BaseModel):
    """A requested output."""

    model_config = ConfigDict(extra="ignore")

    transmissionMode: Literal["value", "reference"] | None = None  # noqa: N815


class Execution(BaseModel):
    """OGC's execute request."""

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
                        "description": "`scene` with the href of an uploaded scene, or of a COG on a host that this "
                        "server may read, and the options",
                    },
                    "outputs": {
                        "type": "object",
                        "description": "the outputs to return; default: all",
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
    """Links to the resources of the API. A browser gets the web page instead."""
    response.headers["Vary"] = "Accept"
    json_type = "application/json"
    return LandingPage(
        title="hyperscene",
        description="Maps whole hyperspectral scenes: send a GeoTIFF, ENVI or product, get a georeferenced class map.",
        links=[
            Link(href=f"{base}/", rel="self", type=json_type, title="this document"),
            Link(href=f"{base}/", rel="alternate", type="text/html", title="the page, for browsers"),
            Link(href=f"{base}/api", rel="service-desc", type=OPENAPI_TYPE, title="the API"),
            Link(href=f"{base}/conformance", rel=f"{OGC_RELATIONS}conformance", type=json_type, title="conformance"),
            Link(href=f"{base}/conformance", rel="conformance", type=json_type, title="conformance"),
            Link(href=f"{base}/processes", rel=f"{OGC_RELATIONS}processes", type=json_type, title="the processes"),
            Link(href=f"{base}/jobs", rel=f"{OGC_RELATIONS}job-list", type=json_type, title="your jobs"),
            Link(href=f"{base}/models", rel="related", type=json_type, title="the models"),
            Link(href=f"{base}/health", rel="status", type=json_type, title="state of the service"),
        ],
    )


@router.get("/conformance", summary="Conformance classes", responses=problems())
async def conformance(owner: OwnerDep) -> Conformance:
    """The implemented conformance classes of OGC API - Processes and Common."""
    return Conformance(conformsTo=CONFORMS_TO)


@router.get("/processes", summary="List the processes", responses=problems(), response_model_exclude_none=True)
async def list_processes(
    base: BaseDep, owner: OwnerDep, service: ServiceDep, limit: Annotated[int, Field(ge=1, le=1000)] = 100
) -> ProcessList:
    """classify-scene maps a scene; train-model, where a worker trains, makes a model from labels of one."""
    self_link = Link(href=f"{base}/processes", rel="self", type="application/json")
    can_train = await asyncio.to_thread(service.training.is_available)
    found = [ProcessSummary(**summary(base)) for summary in (_summary, *[training_process.summary] * can_train)]
    return ProcessList(processes=found[:limit], links=[self_link])


@router.get(
    "/processes/{process_id}", summary="Describe a process", responses=problems(404), response_model_exclude_none=True
)
async def describe_process(
    process_id: ProcessId, base: BaseDep, owner: OwnerDep, service: ServiceDep
) -> ProcessDescription:
    """The inputs and outputs of a process as JSON schemas."""
    _require_process(process_id)
    if process_id == TRAIN_PROCESS_ID:
        described = training_process.summary(base)
        return ProcessDescription(**described, inputs=training_process.INPUTS, outputs=_outputs(OUTPUTS_OF["train"]))
    inputs = await asyncio.to_thread(_inputs, service, owner)
    return ProcessDescription(**_summary(base), inputs=inputs, outputs=_outputs(ALL_OUTPUTS))


def _require_process(process_id: str) -> None:
    if process_id not in PROCESS_OF.values():
        known = ", ".join(PROCESS_OF.values())
        raise NoSuchProcess(f"there is no process {process_id[:100]!r}; this server has {known}")


def _summary(base: str) -> dict[str, Any]:
    url = f"{base}/processes/{PROCESS_ID}"
    return {
        "id": PROCESS_ID,
        "version": version("hyperscene"),
        "title": TITLE,
        "description": DESCRIPTION,
        "keywords": ["hyperspectral", "classification", "land cover"],
        "jobControlOptions": ["sync-execute", "async-execute", "dismiss"],
        "outputTransmission": ["value", "reference"],
        "links": [
            Link(href=url, rel="self", type="application/json", title="the description"),
            Link(href=f"{url}/execution", rel=f"{OGC_RELATIONS}execute", title="run it (POST)"),
        ],
    }


def _inputs(service: Service, owner: str) -> dict[str, Any]:
    scene = {
        "title": "The scene",
        "description": 'By reference: {"href": "/scenes/{id}"}, from POST /scenes, which takes GeoTIFF, ENVI and '
        "products; or the https:// or s3:// URL of a COG, if this server may read it.",
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
    names = [model.name for model in service.models.visible(owner)]
    options["model"]["schema"] |= {"enum": names, "default": service.models.default.name}
    options["mask"]["schema"]["pattern"] = MASK_PATTERN
    return {"scene": scene, **options}


def _outputs(outputs: dict[str, tuple[str, str, str]]) -> dict[str, Any]:
    described = {}
    for output, (name, media_type, title) in outputs.items():
        schema: dict[str, Any] = {"type": "object", "contentMediaType": media_type}
        if not media_type.endswith("json"):
            encoding = "binary" if media_type.startswith(("image/", "application/octet")) else "8bit"
            schema = {"type": "string", "contentMediaType": media_type, "contentEncoding": encoding}
        described[output] = {"title": title, "description": f"The file {name}", "schema": schema}
    return described


@router.post(
    "/processes/{process_id}/execution",
    summary="Map an uploaded scene, or train a model on it",
    response_class=Response,
    responses={
        200: {
            "description": "Finished: the results document, or one output itself",
            "content": {
                **FILES,
                "multipart/related": BINARY,
                "application/json": {"schema": {"type": "object"}, "example": examples.RESULTS},
            },
            "headers": JOB_HEADERS,
        },
        201: {"description": "The job (Prefer: respond-async)", "model": StatusInfo, "headers": JOB_HEADERS},
        204: {"description": "Finished: raw outputs by reference, in Link headers", "headers": JOB_HEADERS},
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
    """Map an uploaded scene: the response has the results, or the job with `Prefer: respond-async`.

    train-model always responds with the job.
    """
    _require_process(process_id)
    if process_id == TRAIN_PROCESS_ID:
        execution = _parse_execution(await read_json(request, service, training_process.MAX_LABELS_BYTES))
        job = await asyncio.to_thread(
            training_process.submit, service, execution.inputs, base, owner, key, logs.request_id.get()
        )
        return created_response(job, base)
    execution = _parse_execution(await read_json(request, service))
    requested = _requested_outputs(execution)
    job = await asyncio.to_thread(_submit, service, execution, requested, base, owner, key, logs.request_id.get())
    if prefers(request, "respond-async"):
        return created_response(job, base)

    async def make(finished: JobRecord) -> Response:
        return await results_response(service, finished, requested, base)

    return await response_when_finished(service, job, f"{base}/jobs/{job.id}", request, requested.media_type(job), make)


def _parse_execution(body: Any) -> Execution:
    try:
        return Execution.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error.errors()[0]) from error


def _requested_outputs(execution: Execution) -> RequestedOutputs:
    for name in execution.outputs or {}:
        if name not in ALL_OUTPUTS:
            raise RequestUnusable(f"there is no output {name[:100]!r}; the outputs are {', '.join(ALL_OUTPUTS)}")
    modes: dict[str, str | None] = {name: output.transmissionMode for name, output in (execution.outputs or {}).items()}
    return RequestedOutputs(modes or dict.fromkeys(ALL_OUTPUTS), execution.response)


def _submit(
    service: Service,
    execution: Execution,
    requested: RequestedOutputs,
    base: str,
    owner: str,
    key: str | None,
    request_id: str | None,
) -> JobRecord:
    inputs = {name: value_of(given) for name, given in execution.inputs.items() if name != "scene"}
    job_request = parse_options(inputs)
    href = href_of(execution.inputs.get("scene"))
    scene_id = scene_id_of(href, base)
    job = service.store.job_by_key(owner, key) if key else None
    if job is None:
        admission = service.admission
        admission.require_queue_slot(owner)
        if scene_id is None:
            scene = admission.reference_scene(href, owner, is_temporary=True)
        else:
            scene = admission.find_scene(scene_id, owner)
        job = admission.submit(
            scene, job_request, owner, key, request_id, execution=asdict(requested), is_new_scene=scene_id is None
        )
    if not (_has_scene(service, job, scene_id, href) and _matches(job, job_request, requested)):
        raise RequestUnusable("this Idempotency-Key created a job with other inputs or outputs: use another key")
    return job


def _has_scene(service: Service, job: JobRecord, scene_id: str | None, href: str) -> bool:
    """Whether the job maps this scene; a scene that is not uploaded has a URL instead of an id."""
    if scene_id is not None:
        return job.scene_id == scene_id
    scene = service.store.scene(job.scene_id)
    return scene is None or scene.href == href  # a finished job's scene may have expired


def _matches(job: JobRecord, job_request: JobRequest, requested: RequestedOutputs) -> bool:
    """Whether the job has the requested options and outputs; defaults are not compared, since they can change."""
    options = {name: getattr(job_request, name) for name in ("stride_px", "blend", "probability_type")}
    return (
        _is_model(job, job_request.model)
        and all(job.options[name] == value for name, value in options.items() if value)
        and job.options.get("unknown", False) == (job_request.unknown == "yes")
        and (job_request.masks is None or job.options.get("mask", []) == [*job_request.masks])
        and job.execution == asdict(requested)
    )


def _is_model(job: JobRecord, wanted: str | None) -> bool:
    name, _, version = (wanted or job.model).partition("@")
    return job.model == name and (not version or int(version) == (job.model_version or 1))
