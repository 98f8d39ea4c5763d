"""The JSON documents of the API, with the fields that OGC API - Processes 1.0 asks for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api import examples
from service.errors import ServiceError, error_of
from service.jobs.records import JobRecord, SceneRecord

PROCESS_ID = "classify-scene"
OGC_EXCEPTIONS = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"
OGC_RELATIONS = "http://www.opengis.net/def/rel/ogc/1.0/"

# Output of the process: file, media type, title.
OUTPUTS = {
    "classes": ("classes.tif", "image/tiff", "Class map"),
    "probabilities": ("probabilities.tif", "image/tiff", "Probability of each class"),
    "confidence": ("confidence.tif", "image/tiff", "The largest probability"),
    "style": ("classes.qml", "application/xml", "QGIS style of the class map"),
    "preview": ("preview.png", "image/png", "The class map as a picture"),
    "summary": ("summary.json", "application/json", "Pixels, areas, settings and warnings"),
    "item": ("item.json", "application/geo+json", "STAC Item of the result"),
}
MEDIA_TYPES = {name: media_type for name, media_type, _ in OUTPUTS.values()}
ZIP_NAME = "results.zip"
ID_EXAMPLE = examples.ID


def shown_as(example: examples.Example) -> ConfigDict:
    """The settings of a document that has an example."""
    return ConfigDict(extra="allow", json_schema_extra={"example": example})


class Document(BaseModel):
    """A document of the API; absent fields are left out."""

    model_config = ConfigDict(extra="allow")


class Link(BaseModel):
    """Where something else is."""

    href: str
    rel: str | None = None
    type: str | None = None
    title: str | None = None


class Problem(BaseModel):
    """What went wrong and what to do, as RFC 9457 has it."""

    model_config = shown_as(examples.PROBLEM)

    type: str
    title: str
    status: int
    detail: str
    code: str


class LandingPage(Document):
    """The entry document."""

    model_config = shown_as(examples.LANDING_PAGE)

    title: str
    description: str
    links: list[Link]


class Conformance(Document):
    """What of OGC API - Processes is implemented."""

    model_config = shown_as(examples.CONFORMANCE)

    conformsTo: list[str]  # noqa: N815 - OGC's spelling


class ProcessSummary(Document):
    """A process in the list."""

    model_config = shown_as(examples.PROCESS_SUMMARY)

    id: str
    version: str
    title: str
    description: str
    jobControlOptions: list[str]  # noqa: N815
    outputTransmission: list[str]  # noqa: N815
    links: list[Link]


class ProcessDescription(ProcessSummary):
    """A process with its inputs and outputs."""

    model_config = shown_as(examples.PROCESS_DESCRIPTION)

    inputs: dict[str, Any]
    outputs: dict[str, Any]


class ProcessList(Document):
    """Every process."""

    model_config = shown_as(examples.PROCESS_LIST)

    processes: list[ProcessSummary]
    links: list[Link]


class Happening(Document):
    """Something that befell a job."""

    model_config = shown_as(examples.HAPPENING)

    time: datetime
    text: str


class StatusInfo(Document):
    """A job: OGC's fields, and ours."""

    model_config = shown_as(examples.STATUS_INFO)

    jobID: str  # noqa: N815
    processID: str = PROCESS_ID  # noqa: N815
    type: Literal["process"] = "process"
    status: Literal["accepted", "running", "successful", "failed", "dismissed"]
    message: str
    created: datetime
    updated: datetime
    started: datetime | None = None
    finished: datetime | None = None
    expires: datetime | None = Field(None, description="when the job and its results are removed")
    progress: int = Field(ge=0, le=100)
    patches_done: int = Field(description="patches behind us")
    patches_total: int = Field(description="patches of the whole scene; 0 until the work has begun")
    seconds_left: float | None = Field(None, description="estimate, at the speed so far")
    scene: str = Field(description="the scene's name, as its owner calls it")
    scene_id: str
    model: str
    settings: dict[str, Any]
    device: str | None = None
    provider: str | None = Field(None, description="what ran the network")
    resumes: int = Field(description="how often the work was taken up again after a stop")
    seconds: dict[str, float] | None = Field(None, description="by stage, of the last run")
    history: list[Happening] = Field([], description="workers that were lost, and what else befell the job")
    problem: Problem | None = Field(None, description="why the job failed")
    links: list[Link]


class JobList(Document):
    """A page of jobs, the newest first."""

    model_config = shown_as(examples.JOB_LIST)

    jobs: list[StatusInfo]
    links: list[Link]


class SceneDocument(Document):
    """What was understood of a scene."""

    model_config = shown_as(examples.SCENE)

    id: str
    name: str
    size_bytes: int = Field(description="bytes kept here; 0 for a scene that is read in place")
    href: str | None = Field(None, description="where it is read in place")
    version: str | None = Field(None, description="tells the file in that place from another one")
    created: datetime
    expires: datetime
    format: str
    rows: int
    cols: int
    type: str
    bands: int
    bad_bands: int
    band_numbers: list[int] | None = Field(None, description="the file's numbers of the good bands, from 1")
    wavelengths_nm: list[float] | None = None
    no_data: list[str]
    crs: str | None = None
    transform: list[float]
    pixel_size: list[float]
    ground_control_points: int
    is_georeferenced: bool
    warnings: list[str]
    models: dict[str, str] = Field(description="what each model says to the scene's bands")
    links: list[Link]


class TileJson(Document):
    """TileJSON 3.0.0 of one layer, and every layer."""

    model_config = shown_as(examples.TILEJSON)

    tilejson: Literal["3.0.0"] = "3.0.0"
    name: str
    scheme: Literal["xyz"] = "xyz"
    tiles: list[str]
    minzoom: int = Field(ge=0, le=30)
    maxzoom: int = Field(ge=0, le=30)
    bounds: list[float] = Field([], description="west, south, east, north; east is above 180 across the date line")
    center: list[float] = Field([], description="lon, lat, zoom")
    crs: str | None = Field(description="EPSG:3857; null where tiles count the scene's own pixels")
    rows: int
    cols: int
    tile_px: int
    layers: list[dict[str, Any]] = Field(description="id, title, tiles, tiles_2x, and a legend, a ramp or bands")


class PixelDocument(Document):
    """A pixel of a job."""

    model_config = shown_as(examples.PIXEL)

    row: int
    col: int
    lon: float | None = Field(description="of the pixel's centre")
    lat: float | None = Field(description="of the pixel's centre")
    is_valid: bool | None = Field(
        description="whether it holds data in the bands that count; null where neither map nor spectrum can tell"
    )
    class_: dict[str, Any] | None = Field(alias="class", description="value, name and color")
    confidence: float | None
    probabilities: list[dict[str, Any]] = Field(description="of each class: value, name, color, probability")
    spectrum: dict[str, Any] | None = Field(
        description="bands (the file's numbers), wavelengths_nm, values in the scene's units, and which were used"
    )
    spectrum_missing: str | None = Field(None, description="why there is no spectrum")


class ModelList(Document):
    """Every bundle that is served."""

    model_config = shown_as(examples.MODEL_LIST)

    models: list[dict[str, Any]]
    default: str
    links: list[Link]


class Health(Document):
    """The service on one page, for people."""

    model_config = shown_as(examples.HEALTH)

    status: Literal["ready", "not ready"]
    reasons: list[str]
    version: str
    uptime_s: float
    workers: list[dict[str, Any]]
    models: list[str]
    jobs: dict[str, int]
    disk: dict[str, int]


class Live(Document):
    """That the process answers."""

    model_config = shown_as(examples.LIVE)

    status: Literal["live"] = "live"


class Ready(Document):
    """That work can be done."""

    model_config = shown_as(examples.READY)

    status: Literal["ready"] = "ready"


def problem_of(error: ServiceError) -> Problem:
    """A refusal as a document."""
    kind = f"{OGC_EXCEPTIONS}{error.ogc_type}" if error.ogc_type else f"urn:hyperscene:problem:{error.code}"
    return Problem(
        type=kind,
        title=error.code.replace("_", " ").capitalize(),
        status=error.status,
        detail=str(error),
        code=error.code,
    )


def job_error(job: JobRecord) -> ServiceError:
    """Why a job failed, as it was told then."""
    return error_of(job.error_code or "internal_error", job.error_detail or "the job failed")


def status_of(job: JobRecord, base: str) -> StatusInfo:
    """A job as a document; `base` is what links begin with."""
    here = f"{base}/jobs/{job.id}"
    links = [
        Link(href=here, rel="self", type="application/json", title="this job"),
        Link(href=f"{here}/events", rel="monitor", type="text/event-stream", title="progress as it happens"),
    ]
    if job.status == "successful":
        links.append(
            Link(href=f"{here}/results", rel=f"{OGC_RELATIONS}results", type="application/json", title="the results")
        )
    return StatusInfo(
        jobID=job.id,
        status=job.status,
        message=_message(job),
        created=_moment(job.created),
        updated=_moment(job.updated),
        started=_moment(job.started),
        finished=_moment(job.finished),
        expires=_moment(job.expires),
        progress=job.percent,
        patches_done=job.cells_done,
        patches_total=job.cells_total,
        seconds_left=job.seconds_left,
        scene=job.scene_name,
        scene_id=job.scene_id,
        model=job.model,
        settings=job.options,
        device=job.device,
        provider=job.provider,
        resumes=job.resumes,
        seconds=job.seconds or None,
        history=[Happening(time=_moment(past["time"]), text=past["text"]) for past in job.history],
        problem=problem_of(job_error(job)) if job.status == "failed" else None,
        links=links,
    )


def _message(job: JobRecord) -> str:
    if job.status == "failed":
        return job.error_detail or "failed"
    if job.status == "running" and job.seconds_left is not None:
        return f"{job.percent} % mapped, about {job.seconds_left:.0f} s left"
    return {
        "accepted": "waits for a worker" if job.started is None else "goes on when a worker is free",
        "running": "being mapped",
        "successful": "mapped",
        "dismissed": "dismissed; its results are gone",
    }[job.status]


def result_links(job: JobRecord, base: str) -> dict[str, dict[str, Any]]:
    """Every output by reference, as OGC's results document has it."""
    return {
        output: {"href": f"{base}/jobs/{job.id}/results/{name}", "rel": "result", "type": media_type, "title": title}
        for output, (name, media_type, title) in OUTPUTS.items()
    }


def scene_of(scene: SceneRecord, models: dict[str, str], base: str) -> SceneDocument:
    """A scene as a document."""
    return SceneDocument(
        id=scene.id,
        name=scene.name,
        size_bytes=scene.size_bytes,
        href=scene.href and scene.href.partition("?")[0],  # what follows may be a secret
        created=_moment(scene.created),
        expires=_moment(scene.expires),
        models=models,
        links=[
            Link(href=f"{base}/scenes/{scene.id}", rel="self", type="application/json", title="this scene"),
            Link(
                href=f"{base}/processes/{PROCESS_ID}/execution",
                rel=f"{OGC_RELATIONS}execute",
                title="map it: POST, with this scene's address as href of the input scene",
            ),
        ],
        **scene.document,
    )


def _moment(seconds: float | None) -> Any:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
