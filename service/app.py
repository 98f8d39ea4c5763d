"""The application: wires settings, store, workers and calls together, and does nothing else."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import re
import time
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.api import classify, examples, health, jobs, models, processes, scenes, tiles
from service.api.context import OwnerDep, Service
from service.api.openapi import install_openapi
from service.api.page import add_page
from service.api.problems import add_handlers, problems
from service.api.processes import OPENAPI_TYPE
from service.api.watch import Watch
from service.errors import OptionsUnusable, OutputUnwritable
from service.jobs.admission import Admission
from service.jobs.disk import sweep
from service.jobs.inspector import Inspector
from service.jobs.layers import Layers
from service.jobs.models import Models, load_models
from service.jobs.records import new_id
from service.jobs.store import Store, StoreUnusable
from service.jobs.supervisor import Supervisor
from service.jobs.views import Views
from service.settings import Settings

log = logging.getLogger("hyperscene.api")

TITLE = "hyperscene"
DESCRIPTION = """Maps whole hyperspectral scenes: send a GeoTIFF or ENVI cube, get a georeferenced class map.

    curl -F scene=@scene.tif http://localhost:8000/classify -o classes.tif
"""
TAGS = [
    {"name": "maps", "description": "A scene in, its map out"},
    {"name": "scenes", "description": "Upload once, map often"},
    {"name": "jobs", "description": "Status, progress, results"},
    {"name": "tiles", "description": "Maps for browsers and QGIS, and single pixels"},
    {"name": "models", "description": "What can be asked for"},
    {"name": "OGC API - Processes", "description": "Version 1.0: core, json, oas30, job-list, dismiss"},
    {"name": "health", "description": "For people, probes and Prometheus"},
]
EXPIRE_EVERY_S = 60.0
EXPOSED_HEADERS = [
    "Accept-Ranges", "Content-Range", "Content-Length", "ETag", "Link", "Location", "Preference-Applied", "Retry-After",
    "X-Request-ID",
]  # fmt: skip


def create_app(settings: Settings | None = None, foundation: Foundation | None = None) -> FastAPI:
    """An app with a service of its own, which begins and ends with it."""
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with lay_foundation(settings) if foundation is None else nullcontext(foundation) as laid:
            async with running_service(settings, laid) as (service, supervisor):
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
    add_handlers(app)
    for part in (classify, scenes, jobs, tiles, models, processes, health):
        app.include_router(part.router)
    _serve_openapi(app)
    add_page(app)
    install_openapi(app, wants_keys=bool(settings.api_keys))
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(RequestLog)
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
        """Every call, with examples."""
        return JSONResponse(app.openapi(), media_type=OPENAPI_TYPE)


@dataclass(frozen=True)
class Foundation:
    """What has to be sound before anything is served."""

    inspector: Inspector
    models: Models
    store: Store


@contextmanager
def lay_foundation(settings: Settings) -> Generator[Foundation, None, None]:
    """The data folder, held by this server alone, the store in it, and every bundle read; or the reason why not."""
    with _held_folder(settings):
        inspector = Inspector()
        try:
            found = load_models(settings.bundles, settings.model, inspector.look_at_bundle)
            yield Foundation(inspector, found, _open_store(settings))
        finally:
            inspector.close()


def _open_store(settings: Settings) -> Store:
    if not settings.database.exists() and any(any((settings.data / name).iterdir()) for name in ("scenes", "jobs")):
        raise StoreUnusable(
            f"{settings.data} holds scenes or jobs, but no {settings.database.name} that says whose they are: put it "
            "back, or use another data folder"
        )
    return Store(settings.database)


@contextmanager
def _held_folder(settings: Settings) -> Generator[None, None, None]:
    try:
        for name in ("scenes", "jobs", "incoming"):
            (settings.data / name).mkdir(parents=True, exist_ok=True)
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
async def running_service(settings: Settings, laid: Foundation) -> AsyncIterator[tuple[Service, Supervisor]]:
    """The service with its workers; what an earlier server left is taken up."""
    # As many threads as uploads may be looked at or flushed to disk at once, and some for what is quick.
    pool = ThreadPoolExecutor(settings.max_uploads + 32, "hyperscene-call")
    asyncio.get_running_loop().set_default_executor(pool)
    supervisor = Supervisor(settings, laid.store, laid.models)
    views = Views(settings, laid.store)
    layers = Layers(settings, laid.store, laid.models, views)
    admission = Admission(settings, laid.store, laid.models, laid.inspector, supervisor, views)
    await asyncio.to_thread(supervisor.take_over)
    await asyncio.to_thread(sweep, settings, laid.store)
    watch = Watch(laid.store)
    watch.start()
    supervisor.start()
    housekeeping = asyncio.create_task(_expire_forever(admission, settings))
    try:
        yield Service(settings, laid.store, laid.models, admission, watch, layers), supervisor
    finally:
        housekeeping.cancel()
        watch.stop()
        laid.inspector.close()
        await asyncio.to_thread(layers.close)
        await asyncio.to_thread(views.close)
        await asyncio.to_thread(supervisor.stop, settings.stop_s / 2)


async def _expire_forever(admission: Admission, settings: Settings) -> None:
    every_s = min(EXPIRE_EVERY_S, settings.keep_results_s / 4, settings.keep_scenes_s / 4)
    while True:
        with suppress(Exception):  # a full disk, say: the next round may get through
            await asyncio.to_thread(admission.expire)
        await asyncio.sleep(every_s)


class RequestLog:
    """A line of log for every request, under an id that the answer carries too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        number = given if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", given) else new_id()
        token = logs.request_id.set(number)
        began, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = number
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            facts: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "status": status}
            facts["ms"] = round(1000 * (time.perf_counter() - began), 1)
            log.info("request", extra=facts)
            logs.request_id.reset(token)
