"""OGC API - Processes 1.0: landing page, conformance, the one process, its execution."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from importlib.metadata import version
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from service import logs
from service.api import examples
from service.api.classify import (
    JOB_HEADERS,
    OPTION_SCHEMAS,
    Accept,
    IdempotencyKey,
    Prefer,
    created,
    earlier_job,
    job_request,
    prefers,
)
from service.api.context import BaseDep, OwnerDep, Service, ServiceDep
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
    result_links,
)
from service.api.problems import problems
from service.api.results import FILES, answer_file, answer_when_done
from service.errors import NoSuchProcess, RequestUnusable
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
# Larger outputs are given by reference even where a value was asked for: base64 of them would fill the memory.
INLINE_BYTES = 16 << 20

ProcessId = Annotated[str, Path(max_length=100, examples=[PROCESS_ID])]


class Output(BaseModel):
    """How one output is wanted."""

    model_config = ConfigDict(extra="ignore")

    transmissionMode: Literal["value", "reference"] | None = None  # noqa: N815


class Execution(BaseModel):
    """What to run, as OGC has it."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "example": {
                "inputs": {"scene": {"href": f"/scenes/{ID_EXAMPLE}"}, "stride_px": 4},
                "outputs": {"classes": {}},
                "response": "document",
            }
        },
    )

    inputs: dict[str, Any] = Field(description="`scene` with the href of an uploaded scene, and the options")
    outputs: dict[str, Output] | None = Field(None, description="those wanted; all without it")
    response: Literal["raw", "document"] = "raw"


@router.get("/", summary="The landing page", responses=problems(), response_model_exclude_none=True)
async def landing(base: BaseDep, owner: OwnerDep) -> LandingPage:
    """Where everything is."""
    json_type = "application/json"
    return LandingPage(
        title="hyperscene",
        description="Maps whole hyperspectral scenes: send a GeoTIFF or ENVI cube, get a georeferenced class map.",
        links=[
            Link(href=f"{base}/", rel="self", type=json_type, title="this document"),
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
        "description": 'By reference: {"href": "/scenes/{id}"}, from POST /scenes.',
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
            "content": {**FILES, "application/json": {"schema": {"type": "object"}, "example": examples.RESULTS}},
            "headers": JOB_HEADERS,
        },
        201: {"description": "The job (Prefer: respond-async)", "model": StatusInfo, "headers": JOB_HEADERS},
        204: {"description": "Done: raw outputs by reference, in Link headers", "headers": JOB_HEADERS},
        **problems(400, 404, 413, 429, 507),
    },
)
async def execute(
    process_id: ProcessId,
    execution: Execution,
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
    wanted = execution.outputs or {name: Output() for name in OUTPUTS}
    for name in wanted:
        if name not in OUTPUTS:
            raise RequestUnusable(f"there is no output {name[:100]!r}; known are {', '.join(OUTPUTS)}")
    job = await earlier_job(service, owner, key)
    if job is None:
        job = await asyncio.to_thread(_submit, service, execution, base, owner, key, logs.request_id.get())
    if prefers(request, "respond-async"):
        return created(job, base)
    address = f"{base}/jobs/{job.id}"
    if execution.response == "raw" and len(wanted) == 1:
        output, how = next(iter(wanted.items()))
        if how.transmissionMode != "reference":
            return await answer_file(service, job, OUTPUTS[output][0], address)
    links = {name: link for name, link in result_links(job, base).items() if name in wanted}

    async def make(done: JobRecord) -> Response:
        if execution.response == "document":
            return JSONResponse(await asyncio.to_thread(_with_values, service, done, wanted, links))
        response = Response(status_code=204)
        for name, link in links.items():
            response.headers.append("Link", f'<{link["href"]}>; rel="{name}"; type="{link["type"]}"')
        return response

    media_type = "application/json" if execution.response == "document" else None
    return await answer_when_done(service, job, address, media_type, make)


def _submit(
    service: Service, execution: Execution, base: str, owner: str, key: str | None, request_id: str | None
) -> JobRecord:
    service.admission.require_queue()
    inputs = {name: _value(given) for name, given in execution.inputs.items() if name != "scene"}
    asked = job_request(inputs)
    scene = service.admission.find_scene(_scene_id(execution.inputs.get("scene"), base), owner)
    return service.admission.submit(scene, asked, owner, key, request_id)


def _value(given: Any) -> Any:
    """An input's value: plain, or qualified as {"value": ...}."""
    return given["value"] if isinstance(given, dict) and "value" in given else given


def _scene_id(given: Any, base: str) -> str:
    """The id in a reference to an uploaded scene; references that lead elsewhere are refused."""
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    href = given.get("href") if isinstance(given, dict) else given
    if not isinstance(href, str):
        raise RequestUnusable('the input scene is a reference to an uploaded scene: {"href": "/scenes/ID"}')
    ours = urlsplit(base)
    host = rf"(?i:https?://{re.escape(ours.netloc)})"
    found = re.fullmatch(rf"(?:{host})?{re.escape(ours.path)}/scenes/([0-9A-Za-z_-]{{1,100}})", href)
    if not found:
        raise RequestUnusable(
            "the scene's href leads to another place, and references to other hosts are off: upload the scene with "
            "POST /scenes and give its address"
        )
    return found[1]


def _with_values(
    service: Service, job: JobRecord, wanted: dict[str, Output], links: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The results document: references, and values where they were asked for by name."""
    document: dict[str, Any] = dict(links)
    for name, how in wanted.items():
        file, media_type, _ = OUTPUTS[name]
        path = service.settings.results_folder(job.id) / file
        if how.transmissionMode != "value" or path.stat().st_size > INLINE_BYTES:
            continue
        content = path.read_bytes()
        if media_type.endswith("json"):
            document[name] = {"value": json.loads(content), "mediaType": media_type}
        else:
            text = base64.b64encode(content).decode("ascii")
            document[name] = {"value": text, "mediaType": media_type, "encoding": "base64"}
    return document
