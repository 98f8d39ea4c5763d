"""The store's records: scenes, jobs, models and workers."""

from __future__ import annotations

import json
import secrets
import sqlite3
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from hyperscene.service.mapping.classify import MapProgress

Status = Literal["accepted", "running", "successful", "failed", "dismissed"]
Kind = Literal["map", "train"]  # of a job
FINISHED: tuple[Status, ...] = ("successful", "failed", "dismissed")
JSON_COLUMNS = {
    "document", "options", "seconds", "execution", "events", "members", "crash_counts", "left_out", "manifest",
}  # fmt: skip

TRAINING = "training"  # the device of a worker that trains

Record = TypeVar("Record")


def new_id() -> str:
    """A random id that is safe in folder names and URLs."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class SceneRecord:
    """A scene that was uploaded, or stays on another host."""

    id: str
    owner: str
    name: str  # as sent
    file: str  # the data file, or a product's folder, inside the scene's folder
    size_bytes: int
    created: float
    expires: float
    document: dict[str, Any]  # what the header says
    is_temporary: bool = False  # removed with its job
    href: str | None = None  # the URL of a remote scene, which has no file here


@dataclass(frozen=True)
class JobRecord:
    """A job and its state."""

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
    version: int = 1  # raised with every change
    cells_done: int = 0
    cells_total: int = 0
    patches_done: int = 0
    estimated_s: float | None = None  # when it was submitted; None if the engine's speed was unknown
    seconds_left: float | None = None
    worker: str | None = None
    device: str | None = None
    provider: str | None = None
    token: str | None = None  # of the lease: a worker with another token has lost the job
    lease_until: float | None = None
    resumes: int = 0
    worker_crashes: int = 0  # largest count at one position
    server_crashes: int = 0  # likewise
    # "worker" and "server": crashes by position, the number of lattice cells before the batch
    crash_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    error_code: str | None = None
    error_status: int | None = None
    error_detail: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)  # outputs and response of an OGC execution request
    idempotency_key: str | None = None
    request_id: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)  # a time and a text each
    kind: Kind = "map"
    model_version: int | None = None  # that a map uses, None for a model of the operator; or that a training made
    stage: str | None = None  # of a training that runs

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def progress(self) -> MapProgress:
        return MapProgress(self.cells_done, self.cells_total, self.patches_done)

    @property
    def percent(self) -> int:
        """0 to 100; at 99 the files are being written."""
        if self.status == "successful":
            return 100
        return min(99, 100 * self.cells_done // self.cells_total) if self.cells_total else 0


@dataclass(frozen=True)
class ModelRecord:
    """A version of a model that an owner trained or uploaded."""

    id: str
    owner: str
    name: str
    version: int  # from 1
    created: float
    size_bytes: int
    sha256: str
    manifest: dict[str, Any]
    job_id: str | None = None  # the training that made it
    removed: float | None = None  # when its files were removed


@dataclass(frozen=True)
class JobBounds:
    """Limits of a job query on creation time and duration, in seconds; None is no limit."""

    created_from: float | None = None
    created_to: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    kinds: tuple[Kind, ...] = ("map", "train")


@dataclass(frozen=True)
class WorkerRecord:
    """A worker process."""

    name: str
    device: str
    pid: int
    state: Literal["starting", "ready", "failed"]
    provider: str | None
    reason: str | None  # why it is not ready
    heartbeat: float
    members: list[dict[str, Any]] = field(default_factory=list)  # cluster workers: names, and why some are not used
    left_out: list[str] = field(default_factory=list)  # why engines that could have been used are not

    @property
    def trains(self) -> bool:
        """Whether it trains models instead of mapping scenes."""
        return self.device == TRAINING


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
