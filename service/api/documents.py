"""The JSON documents of the API, with the fields that OGC API - Processes 1.0 requires."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hyperscene.errors import ServiceError, error_from_code
from hyperscene.service.api import examples
from hyperscene.service.jobs.records import JobRecord, Kind, SceneRecord

PROCESS_ID, TRAIN_PROCESS_ID = "classify-scene", "train-model"
PROCESS_OF: dict[Kind, str] = {"map": PROCESS_ID, "train": TRAIN_PROCESS_ID}  # by kind of job
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
# Those of some maps only.
OPTIONAL_OUTPUTS = {
    "mask": ("mask.tif", "image/tiff", "Why pixels have no class: no data, or a mask of the product"),
    "applicability": ("applicability.tif", "image/tiff", "How far pixels lie from what the model learnt from"),
}
ALL_OUTPUTS = OUTPUTS | OPTIONAL_OUTPUTS
# Of a training.
TRAINING_OUTPUTS = {
    "bundle": ("bundle.onnx", "application/octet-stream", "The trained bundle"),
    "report": ("report.json", "application/json", "Accuracy by cross-validation, likely label mistakes, settings"),
    "network": ("network.png", "image/png", "The network's map round the labels"),
    "propagation": ("propagation.png", "image/png", "The map of label propagation, from which the network learned"),
}
OUTPUTS_OF: dict[Kind, dict[str, tuple[str, str, str]]] = {"map": ALL_OUTPUTS, "train": TRAINING_OUTPUTS}
MAYBE_MISSING = {*OPTIONAL_OUTPUTS, "network", "propagation"}
MEDIA_TYPES = {name: media_type for each in OUTPUTS_OF.values() for name, media_type, _ in each.values()}
ZIP_NAME = "results.zip"
ID_EXAMPLE = examples.ID


def with_example(example: examples.Example) -> ConfigDict:
    """Model settings of a document with this example."""
    return ConfigDict(extra="allow", json_schema_extra={"example": example})


class Document(BaseModel):
    """A document of the API; absent fields are left out."""

    model_config = ConfigDict(extra="allow")


class Link(BaseModel):
    """A link to another resource."""

    href: str
    rel: str | None = None
    type: str | None = None
    title: str | None = None


class Problem(BaseModel):
    """An error as an RFC 9457 problem document."""

    model_config = with_example(examples.PROBLEM)

    type: str
    title: str
    status: int
    detail: str
    code: str


class LandingPage(Document):
    """The landing page as JSON."""

    model_config = with_example(examples.LANDING_PAGE)

    title: str
    description: str
    links: list[Link]


class Conformance(Document):
    """The conformance classes that are implemented."""

    model_config = with_example(examples.CONFORMANCE)

    conformsTo: list[str]  # noqa: N815 - OGC's spelling


class ProcessSummary(Document):
    """A process in the list of processes."""

    model_config = with_example(examples.PROCESS_SUMMARY)

    id: str
    version: str
    title: str
    description: str
    jobControlOptions: list[str]  # noqa: N815
    outputTransmission: list[str]  # noqa: N815
    links: list[Link]


class ProcessDescription(ProcessSummary):
    """A process with its inputs and outputs."""

    model_config = with_example(examples.PROCESS_DESCRIPTION)

    inputs: dict[str, Any]
    outputs: dict[str, Any]


class ProcessList(Document):
    """All processes."""

    model_config = with_example(examples.PROCESS_LIST)

    processes: list[ProcessSummary]
    links: list[Link]


class JobEvent(Document):
    """An event in a job's history."""

    model_config = with_example(examples.JOB_EVENT)

    time: datetime
    text: str


class StatusInfo(Document):
    """A job: OGC's fields and hyperscene's."""

    model_config = with_example(examples.STATUS_INFO)

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
    patches_done: int = Field(description="patches classified so far")
    patches_total: int = Field(
        description="patches of the whole scene; 0 at first, and lowered when pixels without data are found"
    )
    estimated_s: float | None = Field(None, description="seconds by the estimate made when it was submitted")
    seconds_left: float | None = Field(None, description="estimated from the speed so far")
    scene: str = Field(description="the scene's file name")
    scene_id: str
    model: str
    model_version: int | None = Field(None, description="of a model of yours: that a map uses, or a training made")
    stage: str | None = Field(None, description="what a training does now")
    settings: dict[str, Any]
    device: str | None = None
    provider: str | None = Field(None, description="the engine that ran the network")
    resumes: int = Field(description="how often the job was resumed after an interruption")
    seconds: dict[str, float] | None = Field(None, description="seconds per stage of the last run")
    history: list[JobEvent] = Field([], description="events of the job, such as lost workers")
    problem: Problem | None = Field(None, description="why the job failed")
    links: list[Link]


class JobList(Document):
    """A page of jobs, newest first."""

    model_config = with_example(examples.JOB_LIST)

    jobs: list[StatusInfo]
    links: list[Link]


class SceneDocument(Document):
    """A scene's metadata, as read from its files."""

    model_config = with_example(examples.SCENE)

    id: str
    name: str
    size_bytes: int = Field(description="bytes stored on this server; 0 for a scene that is read from its URL")
    href: str | None = Field(None, description="URL of a scene that is not stored on this server")
    version: str | None = Field(None, description="version of the file at that URL")
    created: datetime
    expires: datetime
    format: str
    rows: int
    cols: int
    type: str
    bands: int
    bad_bands: int
    product: str | None = Field(None, description="name of the product, as all fields up to `map`: of a product only")
    sensor: str | None = None
    level: str | None = Field(None, description="of processing")
    acquired: str | None = Field(None, description="date and time")
    unit: str | None = None
    dropped_bands: list[dict[str, Any]] | None = Field(
        None, description="band, wavelength_nm and reason of each band that is not used"
    )
    available_masks: list[str] | None = Field(None, description="masks that the option `mask` may name")
    masks: list[str] | None = Field(None, description="those that are used by default")
    mask_shares: dict[str, float] | None = Field(None, description="share of the pixels in each available mask")
    is_swath: bool | None = Field(None, description="whether the scene is in sensor geometry and its map on the ground")
    map: dict[str, Any] | None = Field(None, description="rows, cols, crs and transform of the map of such a scene")
    band_numbers: list[int] | None = Field(None, description="numbers of the good bands in the file, from 1")
    wavelengths_nm: list[float] | None = None
    no_data: list[str]
    crs: str | None = None
    transform: list[float]
    pixel_size: list[float]
    ground_control_points: int
    is_georeferenced: bool
    cells_with_data: dict[str, int] | None = Field(
        None, description="by stride_px, patches that a map may have; for a file with absent blocks"
    )
    is_demo: bool | None = Field(None, description="whether it is the demo scene that the service made")
    warnings: list[str]
    models: dict[str, str] = Field(description="for each model, how the scene's bands match")
    links: list[Link]


class LabelFileDocument(Document):
    """A label file, and its classes on a scene's grid."""

    model_config = with_example(examples.LABEL_FILE)

    name: str
    format: str
    crs: str | None = None
    shapes: int | None = None
    fields: list[dict[str, Any]] = Field(description="name, number of different values, and some of them")
    class_field: str | None = Field(None, description="the field with the classes: requested, or guessed")
    classes: list[dict[str, Any]] = Field(description="value, name, color, pixels and shapes; empty without a field")
    pixels: int = Field(description="labelled pixels")
    warnings: list[str]


class TileJson(Document):
    """TileJSON 3.0.0 of one layer, and a list of all layers."""

    model_config = with_example(examples.TILEJSON)

    tilejson: Literal["3.0.0"] = "3.0.0"
    name: str
    scheme: Literal["xyz"] = "xyz"
    tiles: list[str]
    minzoom: int = Field(ge=0, le=30)
    maxzoom: int = Field(ge=0, le=30)
    bounds: list[float] = Field([], description="west, south, east, north; east exceeds 180 across the antimeridian")
    center: list[float] = Field([], description="lon, lat, zoom")
    crs: str | None = Field(description="EPSG:3857; null if tiles are in the scene's pixel coordinates")
    rows: int
    cols: int
    tile_px: int
    scene_crs: str | None = Field(None, description="reference system of the scene; null without a georeference")
    transform: list[float] | None = Field(None, description="from (col, row) of the scene into its reference system")
    pixel_m: float | None = Field(
        None, description="width of the middle pixel on the ground, in metres; null if unknown"
    )
    north_deg: float | None = Field(None, description="where north is in the map, clockwise from up; null if unknown")
    pixel_table: dict[str, Any] | None = Field(
        None, description="cols and rows of the scene, not rounded, on a table from north-west to south-east"
    )
    layers: list[dict[str, Any]] = Field(description="id, title, tiles, tiles_2x, and legend, ramp or bands")


class PixelDocument(Document):
    """A pixel of a job."""

    model_config = with_example(examples.PIXEL)

    row: int
    col: int
    lon: float | None = Field(description="of the pixel's centre")
    lat: float | None = Field(description="of the pixel's centre")
    is_valid: bool | None = Field(
        description="whether the pixel has data in the bands used; null if neither map nor spectrum is available"
    )
    class_: dict[str, Any] | None = Field(alias="class", description="value, name and color")
    confidence: float | None
    probabilities: list[dict[str, Any]] = Field(description="of each class: value, name, color, probability")
    spectrum: dict[str, Any] | None = Field(
        description="bands (numbers in the file), wavelengths_nm, values in the scene's units, and which bands are used"
    )
    spectrum_missing: str | None = Field(None, description="why there is no spectrum")


class ModelList(Document):
    """All models of the server."""

    model_config = with_example(examples.MODEL_LIST)

    models: list[dict[str, Any]]
    default: str
    links: list[Link]


class Health(Document):
    """A summary of the service for people."""

    model_config = with_example(examples.HEALTH)

    status: Literal["ready", "not ready"]
    reasons: list[str]
    warnings: list[str] = []  # engines that are not used, and why
    version: str
    uptime_s: float
    workers: list[dict[str, Any]]
    training_workers: list[dict[str, Any]] = []
    models: list[str]
    jobs: dict[str, int]
    disk: dict[str, int]


class LiveStatus(Document):
    """Liveness: the process responds."""

    model_config = with_example(examples.LIVE)

    status: Literal["live"] = "live"


class ReadyStatus(Document):
    """Readiness: the service can map scenes."""

    model_config = with_example(examples.READY)

    status: Literal["ready"] = "ready"
    warnings: list[str] = []  # engines that are not used, and why


class SceneList(Document):
    """An owner's scenes."""

    model_config = with_example(examples.SCENES)

    scenes: list[dict[str, Any]]


class LabelDocument(Document):
    """The labels of a scene: classes with their numbers of pixels, and with `format=json` the pixels as runs."""

    model_config = with_example(examples.LABELS)

    version: int
    rows: int
    cols: int
    pixels: int
    classes: list[dict[str, Any]]


class LiveState(Document):
    """Whether the features of a scene's live map are ready."""

    model_config = with_example(examples.LIVE_STATE)

    state: Literal["not started", "computing", "ready", "failed"]
    progress: int
    detail: str | None = None


class LiveEstimate(Document):
    """How good the live map is; `estimate` is null while no class has two areas of labels."""

    model_config = with_example(examples.LIVE_ESTIMATE)

    etag: str
    is_done: bool
    classes: list[str] | None = None
    estimate: dict[str, Any] | None = None
    mistakes: list[dict[str, Any]] | None = None


class LiveSuggestions(Document):
    """Places to label next, the most useful first."""

    model_config = with_example(examples.LIVE_SUGGESTIONS)

    etag: str
    places: list[dict[str, Any]]


class SceneSpectra(Document):
    """Mean spectra of labelled classes."""

    model_config = with_example(examples.SCENE_SPECTRA)

    bands: list[int]
    wavelengths_nm: list[float] | None = None
    classes: list[dict[str, Any]]


class ScenePixel(Document):
    """A pixel of a scene."""

    model_config = with_example(examples.SCENE_PIXEL)

    row: int
    col: int
    lon: float | None = None
    lat: float | None = None
    bands: list[int]
    wavelengths_nm: list[float] | None = None
    values: list[float | None]


def problem_of(error: ServiceError) -> Problem:
    """An error as a problem document."""
    kind = f"{OGC_EXCEPTIONS}{error.ogc_type}" if error.ogc_type else f"urn:hyperscene:problem:{error.code}"
    return Problem(
        type=kind,
        title=error.code.replace("_", " ").capitalize(),
        status=error.status,
        detail=str(error),
        code=error.code,
    )


def job_error(job: JobRecord) -> ServiceError:
    """The error of a failed job."""
    return error_from_code(job.error_code or "internal_error", job.error_detail or "the job failed")


def status_of(job: JobRecord, base: str) -> StatusInfo:
    """A job as a document; `base` is the base URL of links."""
    here = f"{base}/jobs/{job.id}"
    links = [
        Link(href=here, rel="self", type="application/json", title="this job"),
        Link(href=f"{here}/events", rel="monitor", type="text/event-stream", title="progress as it happens"),
    ]
    if job.status == "successful":
        links.append(
            Link(href=f"{here}/results", rel=f"{OGC_RELATIONS}results", type="application/json", title="the results")
        )
        if job.kind == "train":
            model = f"{base}/models/{job.model}/versions/{job.model_version}"
            links.append(Link(href=model, rel="related", type="application/geo+json", title="the model"))
    return StatusInfo(
        jobID=job.id,
        processID=PROCESS_OF[job.kind],
        status=job.status,
        message=_message(job),
        created=_datetime(job.created),
        updated=_datetime(job.updated),
        started=_datetime(job.started),
        finished=_datetime(job.finished),
        expires=_datetime(job.expires),
        progress=job.percent,
        patches_done=job.patches_done,
        patches_total=job.progress.patches_total if job.kind == "map" else 0,
        estimated_s=job.estimated_s,
        seconds_left=job.seconds_left,
        scene=job.scene_name,
        scene_id=job.scene_id,
        model=job.model,
        model_version=job.model_version,
        stage=job.stage if job.status == "running" else None,
        settings=job.options,
        device=job.device,
        provider=job.provider,
        resumes=job.resumes,
        seconds=job.seconds or None,
        history=[JobEvent(time=_datetime(event["time"]), text=event["text"]) for event in job.events],
        problem=problem_of(job_error(job)) if job.status == "failed" else None,
        links=links,
    )


def _message(job: JobRecord) -> str:
    if job.status == "failed":
        return job.error_detail or "failed"
    if job.kind == "train" and job.status in ("running", "successful"):
        return _training_message(job)
    if job.status == "running" and job.seconds_left is not None:
        return f"{job.percent} % mapped, about {job.seconds_left:.0f} s left"
    return {
        "accepted": "waits for a worker" if job.started is None else "resumes when a worker is free",
        "running": "being mapped",
        "successful": "mapped",
        "dismissed": "dismissed; its results are removed",
    }[job.status]


def _training_message(job: JobRecord) -> str:
    if job.status == "successful":
        return f"trained: version {job.model_version} of {job.model} is ready for mapping"
    left = "" if job.seconds_left is None else f", about {job.seconds_left:.0f} s left"
    return f"{job.stage or 'starting'}{left}"


def result_links(job: JobRecord, base: str) -> dict[str, dict[str, Any]]:
    """Every output by reference, as in OGC's results document."""
    return {
        output: {"href": f"{base}/jobs/{job.id}/results/{name}", "rel": "result", "type": media_type, "title": title}
        for output, (name, media_type, title) in OUTPUTS_OF[job.kind].items()
    }


def scene_of(scene: SceneRecord, models: dict[str, str], base: str) -> SceneDocument:
    """A scene as a document."""
    return SceneDocument(
        id=scene.id,
        name=scene.name,
        size_bytes=scene.size_bytes,
        href=scene.href and scene.href.partition("?")[0],  # the query may hold a secret
        created=_datetime(scene.created),
        expires=_datetime(scene.expires),
        models=models,
        links=[
            Link(href=f"{base}/scenes/{scene.id}", rel="self", type="application/json", title="this scene"),
            Link(
                href=f"{base}/scenes/{scene.id}/labels", rel="related", type="application/geo+json", title="your labels"
            ),
            Link(
                href=f"{base}/processes/{PROCESS_ID}/execution",
                rel=f"{OGC_RELATIONS}execute",
                title="map it: POST, with this scene's URL as href of the input scene",
            ),
        ],
        **scene.document,
    )


def time_of(seconds: float) -> str:
    """A time as ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _datetime(seconds: float | None) -> Any:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
