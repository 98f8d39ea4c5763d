"""What every call has at hand: the service behind the app, the caller, and the address that links begin with."""

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

from service.api.watch import Watch
from service.errors import NoSuchJob, Unauthorized, in_words
from service.jobs.admission import Admission
from service.jobs.layers import Layers
from service.jobs.models import Models
from service.jobs.readiness import not_ready_reasons
from service.jobs.records import JobRecord
from service.jobs.store import Store
from service.settings import Settings

READINESS_S = 0.5


@dataclass
class _Readiness:
    """The last look."""

    reasons: list[str] = field(default_factory=list)
    looked: float = -math.inf


@dataclass(frozen=True)
class Service:
    """Everything behind the calls."""

    settings: Settings
    store: Store
    models: Models
    admission: Admission
    watch: Watch
    layers: Layers
    began: float = field(default_factory=time.time)
    _readiness: _Readiness = field(default_factory=_Readiness)

    async def count_upload(self, received_bytes: int) -> None:
        """Remember how much came in."""
        await asyncio.to_thread(self.store.count, "upload_bytes_total", received_bytes)

    async def not_ready_reasons(self) -> list[str]:
        """Why no work can be done; looked at twice a second at most, since probes come often and from anybody."""
        if time.monotonic() - self._readiness.looked > READINESS_S:
            self._readiness.reasons = await asyncio.to_thread(not_ready_reasons, self.settings, self.store)
            self._readiness.looked = time.monotonic()
        return [*self._readiness.reasons, *(["the server shuts down"] if self.watch.is_stopping else [])]

    async def job(self, job_id: str, owner: str) -> JobRecord:
        """A caller's job, or the refusal."""
        job = await asyncio.to_thread(self.store.job, job_id, owner)
        if job is None:
            raise NoSuchJob(
                f"there is no job {job_id[:100]!r} of yours: results are kept for "
                f"{in_words(self.settings.keep_results_s)}"
            )
        return job


def service_of(request: Request) -> Service:
    """The service behind the app."""
    service: Service = request.app.state.service
    return service


_header = APIKeyHeader(name="X-API-Key", auto_error=False, description="an API key, where the server wants one")
_bearer = HTTPBearer(auto_error=False, description="an API key, where the server wants one")


async def owner_of(
    request: Request,
    key: Annotated[str | None, Depends(_header)],
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> str:
    """Who calls: everybody is one owner where there are no keys, otherwise each key is its own."""
    keys = service_of(request).settings.api_keys
    if not keys:
        return ""
    given = (key or (bearer.credentials if bearer else "")).encode("latin-1")  # the bytes as they were sent
    # All keys are compared, each in constant time: how long it takes says nothing.
    matches = [hmac.compare_digest(given, known.get_secret_value().encode()) for known in keys]
    if not given or not any(matches):
        raise Unauthorized("this server wants an API key: send it as X-API-Key, or as Authorization: Bearer")
    return hashlib.sha256(given).hexdigest()[:32]


def base_of(request: Request) -> str:
    """What links begin with."""
    return service_of(request).settings.public_url or str(request.base_url).rstrip("/")


ServiceDep = Annotated[Service, Depends(service_of)]
OwnerDep = Annotated[str, Depends(owner_of)]
BaseDep = Annotated[str, Depends(base_of)]
