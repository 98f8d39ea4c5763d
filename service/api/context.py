"""Dependencies of the route handlers: the service, the owner of the API key, and the base URL of links."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import Receive

from hyperscene.errors import NoSuchJob, Unauthorized, format_duration
from hyperscene.service.api.job_watcher import JobWatcher
from hyperscene.service.jobs.admission import Admission
from hyperscene.service.jobs.assessments import Assessments
from hyperscene.service.jobs.label_files import LabelConverter
from hyperscene.service.jobs.label_sets import LabelStore
from hyperscene.service.jobs.layers import LayerReader
from hyperscene.service.jobs.live_sessions import LiveSessions
from hyperscene.service.jobs.model_admission import ModelAdmission
from hyperscene.service.jobs.models import Models
from hyperscene.service.jobs.readiness import engine_warnings, not_ready_reasons
from hyperscene.service.jobs.records import JobRecord
from hyperscene.service.jobs.store import Store
from hyperscene.service.jobs.training_admission import TrainingAdmission
from hyperscene.service.settings import Settings

READINESS_S = 0.5
CLIENT_CLOSED_REQUEST = 499  # nginx's status for the log; the client is gone


@dataclass
class _Readiness:
    """The result of the last readiness check."""

    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    checked_at: float = -math.inf


@dataclass(frozen=True)
class Service:
    """What the route handlers work with."""

    settings: Settings
    store: Store
    models: Models
    admission: Admission
    model_admission: ModelAdmission
    training: TrainingAdmission
    job_watcher: JobWatcher
    layers: LayerReader
    assessments: Assessments
    labels: LabelStore
    label_converter: LabelConverter
    live: LiveSessions
    started: float = field(default_factory=time.time)
    _readiness: _Readiness = field(default_factory=_Readiness)

    async def count_upload(self, received_bytes: int) -> None:
        """Add to the counter of uploaded bytes."""
        await asyncio.to_thread(self.store.count, "upload_bytes_total", received_bytes)

    async def not_ready_reasons(self) -> list[str]:
        """Why the service is not ready; checked at most twice a second, because probes are frequent and need no key."""
        if time.monotonic() - self._readiness.checked_at > READINESS_S:
            self._readiness.reasons = await asyncio.to_thread(not_ready_reasons, self.settings, self.store)
            self._readiness.warnings = await asyncio.to_thread(engine_warnings, self.store)
            self._readiness.checked_at = time.monotonic()
        return [*self._readiness.reasons, *(["the server is shutting down"] if self.job_watcher.is_stopping else [])]

    async def engine_warnings(self) -> list[str]:
        """Why engines are not used; checked together with the readiness."""
        await self.not_ready_reasons()
        return self._readiness.warnings

    async def job(self, job_id: str, owner: str) -> JobRecord:
        """The owner's job; NoSuchJob if there is none."""
        job = await asyncio.to_thread(self.store.job, job_id, owner)
        if job is None:
            raise NoSuchJob(
                f"there is no job {job_id[:100]!r} of yours: results are kept for "
                f"{format_duration(self.settings.keep_results_s)}"
            )
        return job


def service_of(request: Request) -> Service:
    """The app's service."""
    service: Service = request.app.state.service
    return service


_header = APIKeyHeader(name="X-API-Key", auto_error=False, description="API key, if the server requires one")
_bearer = HTTPBearer(auto_error=False, description="API key, if the server requires one")


async def owner_of(
    request: Request,
    key: Annotated[str | None, Depends(_header)],
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> str:
    """The owner of the request's API key; without API keys, all clients are one owner."""
    keys = service_of(request).settings.api_keys
    if not keys:
        return ""
    given = (key or (bearer.credentials if bearer else "")).encode("latin-1")  # the bytes as they were sent
    # Every key is compared in constant time, so that the duration reveals nothing.
    matches = [hmac.compare_digest(given, known.get_secret_value().encode()) for known in keys]
    if not given or not any(matches):
        raise Unauthorized("this server requires an API key: send it as X-API-Key, or as Authorization: Bearer")
    return hashlib.sha256(given).hexdigest()[:32]


def base_of(request: Request) -> str:
    """The base URL of links."""
    return service_of(request).settings.public_url or str(request.base_url).rstrip("/")


async def until_disconnected(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


ServiceDep = Annotated[Service, Depends(service_of)]
OwnerDep = Annotated[str, Depends(owner_of)]
BaseDep = Annotated[str, Depends(base_of)]


def cache_headers(etag: str) -> dict[str, str]:
    """Headers of a response that the client may cache."""
    return {
        "ETag": etag,
        # Private caches only, by key: no cache may return one key's response to a request with another key.
        "Cache-Control": "private, max-age=31536000, immutable",
        "Vary": "X-API-Key, Authorization",
    }


def is_not_modified(request: Request, etag: str) -> bool:
    """Whether the client's cached copy is current."""
    tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    return etag in tags or "*" in tags
