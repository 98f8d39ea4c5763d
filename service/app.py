"""The application: connects settings, store, workers and routes."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import re
import time
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hyperscene.errors import OptionsUnusable, OutputUnwritable
from hyperscene.service import logs
from hyperscene.service.api import (
    assessments,
    classify,
    examples,
    health,
    jobs,
    labels,
    live,
    models,
    processes,
    scenes,
    tiles,
    training,
)
from hyperscene.service.api.context import OwnerDep, Service
from hyperscene.service.api.job_watcher import JobWatcher
from hyperscene.service.api.openapi import install_openapi
from hyperscene.service.api.page import add_page, security_headers
from hyperscene.service.api.problems import UnexpectedErrors, add_exception_handlers, problems
from hyperscene.service.api.processes import OPENAPI_TYPE
from hyperscene.service.jobs.admission import Admission
from hyperscene.service.jobs.adoption import open_store, sweep
from hyperscene.service.jobs.assessments import Assessments
from hyperscene.service.jobs.disk import close_to_others, flush
from hyperscene.service.jobs.inspector import Inspector
from hyperscene.service.jobs.label_files import LabelConverter
from hyperscene.service.jobs.label_inspector import LabelInspector
from hyperscene.service.jobs.label_sets import LabelStore
from hyperscene.service.jobs.layers import LayerReader
from hyperscene.service.jobs.live_sessions import LiveSessions
from hyperscene.service.jobs.model_admission import ModelAdmission
from hyperscene.service.jobs.models import Models, OwnedModels, load_models
from hyperscene.service.jobs.previews import Previews
from hyperscene.service.jobs.records import new_id
from hyperscene.service.jobs.store import Store
from hyperscene.service.jobs.supervisor import Supervisor
from hyperscene.service.jobs.training_admission import TrainingAdmission
from hyperscene.service.settings import Settings

log = logging.getLogger("hyperscene.api")

TITLE = "hyperscene"
DESCRIPTION = """Maps whole hyperspectral scenes: send a GeoTIFF, ENVI or product, get a georeferenced class map.

    curl -F scene=@scene.tif http://localhost:8000/classify -o classes.tif
"""
TAGS = [
    {"name": "maps", "description": "Upload a scene, get its map"},
    {"name": "scenes", "description": "Upload once, map often"},
    {"name": "labels", "description": "Labels that are drawn on a scene, and the live map that they give"},
    {"name": "jobs", "description": "Status, progress, results"},
    {"name": "assessment", "description": "Check a map; accuracy and areas with intervals, reports, comparison"},
    {"name": "tiles", "description": "Map tiles for browsers and QGIS, and single pixels"},
    {"name": "models", "description": "The operator's bundles, and models that you train or upload"},
    {"name": "OGC API - Processes", "description": "Version 1.0: core, json, oas30, job-list, dismiss"},
    {"name": "health", "description": "State of the service for people, probes and Prometheus"},
]
EXPIRY_INTERVAL_S = 60.0
EXPOSED_HEADERS = [
    "Accept-Ranges", "Content-Range", "Content-Length", "ETag", "Link", "Location", "Preference-Applied", "Retry-After",
    "X-Request-ID",
]  # fmt: skip


def create_app(settings: Settings | None = None, resources: Resources | None = None) -> FastAPI:
    """An app whose service starts and stops with it."""
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with open_resources(settings) if resources is None else nullcontext(resources) as held:
            async with running_service(settings, held) as (service, supervisor):
                app.state.service, app.state.supervisor = service, supervisor
                yield

    app = FastAPI(
        title=TITLE,
        description=DESCRIPTION,
        version=version("hyperscene"),
        lifespan=lifespan,
        openapi_tags=TAGS,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    add_exception_handlers(app)
    parts = (classify, scenes, labels, live, jobs, tiles, assessments, models, training, processes, health)
    for part in parts:
        app.include_router(part.router)
    _serve_openapi(app)
    add_page(app)
    install_openapi(app, requires_keys=bool(settings.api_keys))
    app.add_middleware(UnexpectedErrors)  # the innermost; each one added later is around it
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(RequestLog, headers=security_headers(settings))
    return app


def _serve_openapi(app: FastAPI) -> None:
    @app.get(
        "/api",
        summary="This document",
        tags=["OGC API - Processes"],
        response_class=Response,
        responses={
            200: {
                "description": "OpenAPI 3.0",
                "content": {OPENAPI_TYPE: {"schema": {"type": "object"}, "example": examples.OPENAPI}},
            },
            **problems(),
        },
    )
    async def api(owner: OwnerDep) -> JSONResponse:
        """All routes, with examples."""
        return JSONResponse(app.openapi(), media_type=OPENAPI_TYPE)


@dataclass(frozen=True)
class Resources:
    """What is opened and checked before the server starts."""

    inspector: Inspector
    models: Models
    store: Store


@contextmanager
def open_resources(settings: Settings) -> Generator[Resources, None, None]:
    """Lock the data folder, open its store and read all bundles; raises if one of them cannot be used."""
    with locked_data_folder(settings):
        inspector = Inspector()
        try:
            found = load_models(settings.bundles, settings.model, inspector.inspect_bundle)
            store = open_store(settings)
            yield Resources(inspector, replace(found, owned=OwnedModels(settings, store)), store)
        finally:
            inspector.close()


@contextmanager
def locked_data_folder(settings: Settings) -> Generator[None, None, None]:
    """The data folder, for this process only; what is in it is closed to other users."""
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("scenes", "jobs", "models", "incoming", "workers", "quarantine"):
            (settings.data / name).mkdir(mode=0o700, exist_ok=True)
        for folder in (settings.data, settings.data.parent):
            with suppress(OSError):  # the parent may not be readable
                flush(folder)
        lock = (settings.data / "lock").open("w")
    except OSError as error:
        raise OutputUnwritable(
            f"the data folder {settings.data} cannot be used ({error.strerror}): choose another with --data"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OptionsUnusable(
                f"another server uses the data folder {settings.data}: stop it, or choose another with --data"
            ) from error
        yield


@asynccontextmanager
async def running_service(settings: Settings, resources: Resources) -> AsyncIterator[tuple[Service, Supervisor]]:
    """The service with its workers; unfinished jobs of an earlier server are resumed."""
    # A thread for each concurrent upload, and some for short tasks.
    pool = ThreadPoolExecutor(settings.max_uploads + 32, "hyperscene-request")
    asyncio.get_running_loop().set_default_executor(pool)
    supervisor = Supervisor(settings, resources.store, resources.models)
    previews = Previews(settings, resources.store)
    label_store, converter = LabelStore(settings), LabelConverter()
    sessions = LiveSessions(settings, resources.store, label_store)
    layers = LayerReader(settings, resources.store, resources.models, previews)
    admission = Admission(settings, resources.store, resources.models, resources.inspector, supervisor, previews)
    await asyncio.to_thread(supervisor.release_jobs)
    await asyncio.to_thread(close_to_others, settings)
    await asyncio.to_thread(sweep, settings, resources.store)
    job_watcher = JobWatcher(resources.store)
    job_watcher.start()
    supervisor.start()
    label_inspector = LabelInspector()
    housekeeping = asyncio.create_task(_expire_forever(admission, settings))
    try:
        assessed = Assessments(settings, resources.models)
        model_admission = ModelAdmission(settings, resources.store, resources.models, resources.inspector)
        train_admission = TrainingAdmission(
            settings, resources.store, admission, model_admission, label_inspector, len(supervisor.training_slots)
        )
        parts = (admission, model_admission, train_admission, job_watcher, layers)
        kept = (assessed, label_store, converter, sessions)
        yield Service(settings, resources.store, resources.models, *parts, *kept), supervisor
    finally:
        housekeeping.cancel()
        job_watcher.stop()
        resources.inspector.close()
        label_inspector.close()
        await asyncio.to_thread(sessions.close)
        await asyncio.to_thread(converter.close)
        await asyncio.to_thread(layers.close)
        await asyncio.to_thread(previews.close)
        await asyncio.to_thread(supervisor.stop, settings.stop_s / 2)


async def _expire_forever(admission: Admission, settings: Settings) -> None:
    interval_s = min(EXPIRY_INTERVAL_S, settings.keep_results_s / 4, settings.keep_scenes_s / 4)
    while True:
        with suppress(Exception):  # for example a full disk: the next attempt may succeed
            await asyncio.to_thread(admission.expire)
        await asyncio.sleep(interval_s)


class RequestLog:
    """Logs every request with an id, which the response carries as X-Request-ID, and adds the security headers."""

    def __init__(self, app: ASGIApp, headers: dict[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received_id = Headers(scope=scope).get("x-request-id", "")
        request_id = received_id if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", received_id) else new_id()
        token = logs.request_id.set(request_id)
        started, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers.update(self._headers)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            fields: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "status": status}
            fields["ms"] = round(1000 * (time.perf_counter() - started), 1)
            log.info("request", extra=fields)
            logs.request_id.reset(token)
