"""A cluster's workers as the service sees them: what they are doing, and why some are not used."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from hyperscene.service.cluster.tasks import EngineInfo, StripPrediction, StripRequest, version_tag

GPU, CPU = "GPU", "CPU"  # Dask resources


@dataclass(eq=False)
class StripTask:
    """A request for a strip, and what happened to it."""

    request: StripRequest
    rows: range  # of the scene, for messages
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    prediction: Future[StripPrediction] = field(default_factory=Future)
    failures: list[str] = field(default_factory=list)  # how workers that had started it failed
    losses: int = 0  # lost workers that had it, whether they had started it or not
    started: float | None = None  # when it became its worker's first task
    sending: asyncio.Task[None] | None = None
    error: BaseException | None = None  # raised by the call
    failed_on: set[str] = field(default_factory=set)  # addresses of workers that failed and live on

    def __str__(self) -> str:
        return f"rows {self.rows.start} to {self.rows.stop - 1}"


@dataclass(eq=False)
class WorkerState:
    """A worker of the cluster."""

    address: str
    name: str
    has_gpu: bool
    reason: str | None = None  # why it is not used at all
    engines: dict[str, EngineInfo | str] = field(default_factory=dict)  # or why it has none, by the bundle's sha256
    in_flight: deque[StripTask] = field(default_factory=deque)
    own_failures: int = 0  # tasks that it failed and another worker completed

    @classmethod
    def from_identity(cls, address: str, identity: Mapping[str, Any]) -> WorkerState:
        """A worker as its scheduler describes it."""
        resources = identity.get("resources") or {}
        return cls(address, str(identity.get("name") or address), GPU in resources, _version_mismatch(resources))

    def refusal(self, sha256: str, provider: str | None = None) -> str | None:
        """Why it is not used for a bundle, or not beside workers that run `provider`."""
        found = self.engines.get(sha256)
        if self.reason is not None or isinstance(found, str):
            return self.reason or str(found)
        if found is not None and provider is not None and found.provider != provider:
            return f"it runs {found.provider}, and this job {provider}: predictions may differ in their last digits"
        return None

    def can_run(self, sha256: str, provider: str) -> bool:
        """Whether tasks may be sent to it."""
        return sha256 in self.engines and self.refusal(sha256, provider) is None


def _version_mismatch(resources: Mapping[str, Any]) -> str | None:
    if version_tag() in resources:
        return None
    theirs = next((name for name in resources if name.startswith("hyperscene ")), None)
    if theirs is None:
        return "it is not a hyperscene worker: start it with hyperscene worker --scheduler ADDRESS"
    return f"it is {theirs}, and this service {version_tag()}: install the same version on both"
