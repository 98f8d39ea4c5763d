"""What the store holds: scenes, jobs and workers, as plain values."""

from __future__ import annotations

import json
import secrets
import sqlite3
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

Status = Literal["accepted", "running", "successful", "failed", "dismissed"]
FINISHED: tuple[Status, ...] = ("successful", "failed", "dismissed")
JSON_COLUMNS = {"document", "options", "seconds", "execution", "history", "members", "suspects"}

Record = TypeVar("Record")


def new_id() -> str:
    """An id that nobody can guess, fit for a folder's name and an address."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class SceneRecord:
    """A scene that was uploaded, or is read in place."""

    id: str
    owner: str
    name: str  # as its owner calls it
    file: str  # the data file's name inside the scene's folder
    size_bytes: int
    created: float
    expires: float
    document: dict[str, Any]  # what was understood of it
    is_temporary: bool = False  # belongs to one job, and goes with it
    href: str | None = None  # where it is read in place; then there is no file here


@dataclass(frozen=True)
class JobRecord:
    """A job, from the moment it was accepted."""

    id: str
    owner: str
    scene_id: str
    scene_name: str
    model: str
    options: dict[str, Any]
    status: Status
    created: float
    updated: float
    started: float | None = None
    finished: float | None = None
    expires: float | None = None
    version: int = 1  # grows with every change, so that a reader knows what it has seen
    cells_done: int = 0
    cells_total: int = 0
    seconds_left: float | None = None
    worker: str | None = None
    device: str | None = None
    provider: str | None = None
    token: str | None = None  # of the lease: who holds another one has lost the job
    lease_until: float | None = None
    resumes: int = 0
    deaths: int = 0  # of workers, at the place of the job where most died
    crashes: int = 0  # of the server, in the same way
    suspects: dict[str, dict[str, int]] = field(default_factory=dict)  # `deaths` and `crashes` at each place
    error_code: str | None = None
    error_status: int | None = None
    error_detail: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)  # what OGC's execution asked for: outputs and response
    idempotency_key: str | None = None
    request_id: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)  # what happened to it: a time and a sentence each

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def percent(self) -> int:
        """0 to 100; the last percent is the writing of the files."""
        if self.status == "successful":
            return 100
        return min(99, 100 * self.cells_done // self.cells_total) if self.cells_total else 0


@dataclass(frozen=True)
class JobBounds:
    """Which jobs are wanted, by when they were made and how long they took, in seconds; None leaves it open."""

    created_from: float | None = None
    created_to: float | None = None
    min_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True)
class WorkerRecord:
    """A worker process, by its place in the list of devices."""

    name: str
    device: str
    pid: int
    state: Literal["starting", "ready", "failed"]
    provider: str | None
    reason: str | None  # why it is not ready
    heartbeat: float
    members: list[dict[str, Any]] = field(default_factory=list)  # of a cluster: names, and why some are not used


def to_row(record: Any) -> dict[str, Any]:
    """A record as the columns of its table."""
    return {
        column.name: json.dumps(value) if column.name in JSON_COLUMNS else value
        for column in fields(record)
        if (value := getattr(record, column.name)) is not None or column.name not in JSON_COLUMNS
    }


def from_row(kind: type[Record], row: sqlite3.Row) -> Record:
    """A row as its record."""
    values = {name: json.loads(row[name]) if name in JSON_COLUMNS else row[name] for name in row.keys()}  # noqa: SIM118
    return kind(**values)
