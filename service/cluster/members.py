"""Who takes part: a cluster's workers as its scheduler lists them, what they are doing, and why some are not used."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from service.cluster.tasks import Answer, Question, Ready, tag

GPU, CPU = "GPU", "CPU"  # resource tags


@dataclass(eq=False)
class Work:
    """A question, and how it fares."""

    question: Question
    rows: range  # of the scene, for people
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    answer: Future[Answer] = field(default_factory=Future)
    failures: list[str] = field(default_factory=list)  # what became of the workers that had begun with it
    losses: int = 0  # of workers that had it and may not have begun
    began: float | None = None  # when its worker had nothing else before it
    sending: asyncio.Task[None] | None = None
    trouble: BaseException | None = None  # what came instead of an answer
    tried: set[str] = field(default_factory=set)  # addresses of workers that failed at it and live on

    def __str__(self) -> str:
        return f"rows {self.rows.start} to {self.rows.stop - 1}"


@dataclass(eq=False)
class Member:
    """A worker of the cluster, as the service sees it."""

    address: str
    name: str
    has_gpu: bool
    reason: str | None = None  # why it is not used at all
    ready: dict[str, Ready | str] = field(default_factory=dict)  # or why not, by the bundle's sha256
    in_flight: deque[Work] = field(default_factory=deque)
    blunders: int = 0  # questions that it failed at and another one answered

    @classmethod
    def introduce(cls, address: str, identity: Mapping[str, Any]) -> Member:
        """A worker by what its scheduler says of it."""
        resources = identity.get("resources") or {}
        return cls(address, str(identity.get("name") or address), GPU in resources, _objection(resources))

    def refusal(self, sha256: str, provider: str | None = None) -> str | None:
        """Why it is not used for a bundle, or not beside those that run `provider`."""
        found = self.ready.get(sha256)
        if self.reason is not None or isinstance(found, str):
            return self.reason or str(found)
        if found is not None and provider is not None and found.provider != provider:
            return f"it runs {found.provider}, and this job {provider}: answers may differ in their last digits"
        return None

    def is_fit(self, sha256: str, provider: str) -> bool:
        """Whether questions may be sent to it."""
        return sha256 in self.ready and self.refusal(sha256, provider) is None


def _objection(resources: Mapping[str, Any]) -> str | None:
    if tag() in resources:
        return None
    theirs = next((name for name in resources if name.startswith("hyperscene ")), None)
    if theirs is None:
        return "it is no worker of hyperscene: start it with hyperscene worker --scheduler ADDRESS"
    return f"it is {theirs}, and this service {tag()}: install the same version on both"
