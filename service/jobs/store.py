"""Queries of the store: scenes, jobs, workers and counters in one SQLite file, which holds all state."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from hyperscene.errors import (
    InferenceFailed,
    NoSuchScene,
    OwnQueueFull,
    QueueFull,
    ServiceError,
    TrainingFailed,
    format_duration,
)
from hyperscene.service.jobs import counters, fair_share
from hyperscene.service.jobs.database import insert
from hyperscene.service.jobs.model_store import ModelStore
from hyperscene.service.jobs.records import (
    FINISHED,
    TRAINING,
    JobBounds,
    JobRecord,
    Kind,
    ModelRecord,
    SceneRecord,
    Status,
    WorkerRecord,
    from_row,
    new_id,
    to_row,
)
from hyperscene.service.mapping.classify import MapProgress

MAX_CRASHES = {"worker": 3, "server": 6}  # at the same position of a job
KEPT_EVENTS = 100
RELEASED: dict[str, Any] = {
    "status": "accepted", "token": None, "lease_until": None, "worker": None, "seconds_left": None,
}  # fmt: skip


class Store(ModelStore):
    """The store, used from any thread."""

    # Scenes

    def add_scene(self, scene: SceneRecord, publish: Callable[[], None] = lambda: None) -> None:
        """Add and publish a scene."""
        with self.transaction() as db:
            insert(db, "scenes", to_row(scene))
            publish()

    def adopt(self, record: SceneRecord | JobRecord | ModelRecord) -> None:
        """Take in a scene, job or model from the record beside its files."""
        with self.transaction() as db:
            if isinstance(record, ModelRecord):
                self.adopt_model(db, record)
                return
            if isinstance(record, JobRecord) and record.idempotency_key is not None:
                made = self._by_key(db, record.owner, record.idempotency_key)
                if made is not None and made.id != record.id:
                    record = replace(record, idempotency_key=None)
            insert(db, "jobs" if isinstance(record, JobRecord) else "scenes", to_row(record), "OR REPLACE")

    def scene(self, scene_id: str, owner: str | None = None) -> SceneRecord | None:
        """A scene; with `owner`, only if it is theirs."""
        rows = self._rows("SELECT * FROM scenes WHERE id = ? AND (? IS NULL OR owner = ?)", scene_id, owner, owner)
        return from_row(SceneRecord, rows[0]) if rows else None

    def demo_scene(self, owner: str, now: float) -> SceneRecord | None:
        """An owner's demo scene, if it has not expired."""
        query = "SELECT * FROM scenes WHERE owner = ? AND expires > ? AND json_extract(document, '$.is_demo')"
        rows = self._rows(query, owner, now)
        return from_row(SceneRecord, rows[0]) if rows else None

    def remove_scene(self, scene_id: str, unpublish: Callable[[], None] = lambda: None) -> bool:
        """Remove a scene, unless a job still has to read it; whether it was removed."""
        with self.transaction() as db:
            waiting = db.execute(
                "SELECT 1 FROM jobs WHERE scene_id = ? AND status IN ('accepted', 'running')", (scene_id,)
            ).fetchone()
            if not waiting:
                db.execute("DELETE FROM scenes WHERE id = ?", (scene_id,))
                unpublish()
            return not waiting

    def scenes(self, owner: str, limit: int, offset: int) -> list[SceneRecord]:
        """An owner's scenes, the newest first, without those that belong to a job."""
        rows = self._rows(
            "SELECT * FROM scenes WHERE owner = ? AND NOT is_temporary ORDER BY created DESC LIMIT ? OFFSET ?",
            owner,
            limit,
            offset,
        )
        return [from_row(SceneRecord, row) for row in rows]

    def prolong_scene(self, scene_id: str, keep_s: float) -> None:
        """Keep a scene that is worked on for as long as a new one."""
        with self.transaction() as db:
            db.execute("UPDATE scenes SET expires = MAX(expires, ?) WHERE id = ?", (time.time() + keep_s, scene_id))

    def expired_scenes(self, now: float) -> list[str]:
        """Expired scenes that no unfinished job needs; a temporary scene stays as long as its job."""
        rows = self._rows(
            "SELECT id FROM scenes WHERE expires < ? AND id NOT IN "
            "(SELECT scene_id FROM jobs WHERE is_temporary OR status IN ('accepted', 'running'))",
            now,
        )
        return [row["id"] for row in rows]

    # Jobs

    def add_job(
        self,
        job: JobRecord,
        max_waiting: int,
        scene: SceneRecord | None = None,
        *,
        max_of_owner: int | None = None,
        max_owner_s: float = math.inf,
        publish: Callable[[], None] = lambda: None,
    ) -> JobRecord:
        """Add and publish a job, maybe with its scene; returns the earlier job if the idempotency key was used."""
        with self.transaction() as db:
            if job.idempotency_key is not None and (made := self._by_key(db, job.owner, job.idempotency_key)):
                return made
            waiting = Counter(row[0] for row in db.execute("SELECT owner FROM jobs WHERE status = 'accepted'"))
            check_waiting(waiting, job.owner, max_waiting, max_of_owner)
            _require_owner_time(db, job, max_owner_s)
            if scene is not None:
                insert(db, "scenes", to_row(scene))
            elif db.execute("SELECT 1 FROM scenes WHERE id = ?", (job.scene_id,)).fetchone() is None:
                raise NoSuchScene(f"the scene {job.scene_id} has just been removed: send it again")
            insert(db, "jobs", to_row(job))
            counters.add(db, "jobs_submitted_total", {}, 1)
            publish()
        return job

    def job_by_key(self, owner: str, key: str) -> JobRecord | None:
        """The job that was submitted with an idempotency key."""
        return self._by_key(self._connection(), owner, key)

    @staticmethod
    def _by_key(db: sqlite3.Connection, owner: str, key: str) -> JobRecord | None:
        row = db.execute("SELECT * FROM jobs WHERE owner = ? AND idempotency_key = ?", (owner, key)).fetchone()
        return from_row(JobRecord, row) if row else None

    def job(self, job_id: str, owner: str | None = None) -> JobRecord | None:
        """A job; with `owner`, only if it is theirs."""
        rows = self._rows("SELECT * FROM jobs WHERE id = ? AND (? IS NULL OR owner = ?)", job_id, owner, owner)
        return from_row(JobRecord, rows[0]) if rows else None

    def jobs(
        self, owner: str, statuses: Iterable[str], limit: int, offset: int, bounds: JobBounds | None = None
    ) -> list[JobRecord]:
        """An owner's jobs with these statuses, or with any, newest first."""
        wanted, bounds = list(statuses), bounds or JobBounds()
        # A job that has not started has no duration: no comparison with NULL is true.
        duration = f"COALESCE(finished, {time.time()}) - started"
        filters = {
            "owner = ?": owner,
            "status IN (SELECT value FROM json_each(?))": json.dumps(wanted) if wanted else None,
            "created >= ?": bounds.created_from,
            "created <= ?": bounds.created_to,
            "kind IN (SELECT value FROM json_each(?))": json.dumps(bounds.kinds),
            f"{duration} >= ?": bounds.min_s,
            f"{duration} <= ?": bounds.max_s,
        }
        conditions = {condition: value for condition, value in filters.items() if value is not None}
        query = f"SELECT * FROM jobs WHERE {' AND '.join(conditions)} ORDER BY created DESC, id LIMIT ? OFFSET ?"  # nosec B608
        return [from_row(JobRecord, row) for row in self._rows(query, *conditions.values(), limit, offset)]

    def versions(self, job_ids: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """The version of each job, and whether it is finished."""
        ids = list(job_ids)
        rows = self._rows(f"SELECT id, version, status FROM jobs WHERE id IN ({', '.join('?' * len(ids))})", *ids)  # nosec B608
        return {row["id"]: (row["version"], row["status"] in FINISHED) for row in rows}

    def count_jobs(self) -> dict[str, int]:
        """Jobs by status."""
        return {row[0]: row[1] for row in self._rows("SELECT status, COUNT(*) FROM jobs GROUP BY status")}

    def count_waiting(self) -> Counter[str]:
        """Waiting jobs by owner."""
        return Counter(row[0] for row in self._rows("SELECT owner FROM jobs WHERE status = 'accepted'"))

    def measured_patches_per_s(self, model: str) -> float | None:
        """The speed of the network in a model's last 20 successful jobs."""
        rows = self._rows(
            "SELECT SUM(patches_done) / SUM(json_extract(seconds, '$.network')) FROM (SELECT * FROM jobs WHERE status "
            "= 'successful' AND kind = 'map' AND model = ? AND resumes = 0 ORDER BY finished DESC LIMIT 20)",
            model,
        )
        rate: float | None = rows[0][0]
        return rate or None

    def seconds_until_start(
        self, owner: str | None, slots: int, max_running_s: float | None = None, kind: Kind = "map"
    ) -> float:
        """Seconds until the next waiting job of an owner, or of anyone, is expected to start."""
        return fair_share.seconds_until_start(self._connection(), owner, slots, max_running_s, kind)

    def claim(
        self, worker: str, lease_s: float, max_running_s: float | None = None, kind: Kind = "map"
    ) -> JobRecord | None:
        """Lease a job that is waiting, or whose lease has expired, to this worker: by turns over owners, oldest first.

        Jobs of an owner that computed `max_running_s` within a day wait.
        """
        now = time.time()
        with self.transaction() as db:
            row = fair_share.next_job(db, now, max_running_s, kind)
            if row is None:
                return None
            job = from_row(JobRecord, row)
            if job.started is None:
                counters.observe(db, "job_queue_seconds", {}, now - job.created)
            else:
                counters.add(db, "job_resumes_total", {}, 1)
            _update(
                db, job.id, status="running", started=job.started or now, worker=worker, token=new_id(),
                lease_until=now + lease_s, resumes=job.resumes + (job.started is not None), seconds_left=None,
            )  # fmt: skip
            return self._job(db, job.id)

    def renew(self, job: JobRecord, lease_s: float, progress: MapProgress, seconds_left: float | None) -> bool:
        """Renew a job's lease and store its progress; False if the worker has lost the job."""
        with self.transaction() as db:
            if not self._holds_lease(db, job):
                return False
            if job.kind == "map":
                counters.add(db, "cells_total", {}, max(0, progress.cells_done - self._job(db, job.id).cells_done))
            _update(
                db, job.id, lease_until=time.time() + lease_s, seconds_left=seconds_left, **asdict(progress),
            )  # fmt: skip
            return True

    def set_stage(self, job: JobRecord, stage: str) -> None:
        """Record what a training does now."""
        with self.transaction() as db:
            if self._holds_lease(db, job):
                _update(db, job.id, stage=stage)

    def set_provider(self, job: JobRecord, device: str, provider: str) -> None:
        """Record what runs the job."""
        with self.transaction() as db:
            if self._holds_lease(db, job):
                _update(db, job.id, device=device, provider=provider)

    def add_events(self, job: JobRecord, texts: list[str]) -> None:
        """Add to the job's events."""
        with self.transaction() as db:
            if self._holds_lease(db, job):
                _add_events(db, self._job(db, job.id), *texts)

    def release(self, job: JobRecord) -> None:
        """End the lease of a job, so that it can be claimed again."""
        with self.transaction() as db:
            if self._holds_lease(db, job):
                _update(db, job.id, **RELEASED)

    def succeed(
        self,
        job: JobRecord,
        summary: Mapping[str, Any],
        keep_s: float,
        publish: Callable[[JobRecord], None] = lambda _: None,
    ) -> bool:
        """Publish and record a finished map in one transaction; False if the worker has lost the job."""
        with self.transaction() as db:
            if not self._holds_lease(db, job):
                return False
            counters.add(db, "patches_total", {}, summary["patches"])
            counters.add(db, "pixels_total", {"kind": "valid"}, summary["valid_pixels"])
            counters.add(db, "pixels_total", {"kind": "no_data"}, summary["no_data_pixels"])
            for stage, seconds in summary["seconds"].items():
                if stage != "total":
                    counters.observe(db, "stage_seconds", {"stage": stage}, seconds)
            current = self._job(db, job.id)
            counters.add(db, "cells_total", {}, current.cells_total - current.cells_done)
            self._finish(
                db, current, "successful", keep_s, cells_done=current.cells_total, patches_done=summary["patches"],
                seconds=summary["seconds"],
            )  # fmt: skip
            publish(self._job(db, job.id))
            return True

    def succeed_training(
        self,
        job: JobRecord,
        model: ModelRecord,
        seconds: Mapping[str, float],
        keep_s: float,
        publish: Callable[[JobRecord, ModelRecord], None],
    ) -> bool:
        """Publish and record a trained model, as the next version of its name; False if the worker has lost the job."""
        with self.transaction() as db:
            if not self._holds_lease(db, job):
                return False
            made = self.insert_model(db, model)
            for stage, spent_s in seconds.items():
                counters.observe(db, "stage_seconds", {"stage": stage}, spent_s)
            current = self._job(db, job.id)
            self._finish(
                db, current, "successful", keep_s, cells_done=current.cells_total, model_version=made.version,
                stage=None, seconds=dict(seconds) | {"total": round(sum(seconds.values()), 3)},
            )  # fmt: skip
            publish(self._job(db, job.id), made)
            return True

    def fail(self, job: JobRecord, error: ServiceError, keep_s: float) -> bool:
        """Record why a job failed; False if the worker has lost the job."""
        with self.transaction() as db:
            holds_lease = self._holds_lease(db, job)
            if holds_lease:
                self._fail(db, job, error, keep_s)
            return holds_lease

    def dismiss(self, job_id: str, keep_s: float) -> None:
        """Dismiss a job, whether it is finished or not."""
        with self.transaction() as db:
            job = self._job(db, job_id)
            if job.status != "dismissed":
                self._finish(db, job, "dismissed", keep_s, idempotency_key=None)  # the same key then makes a new job

    def job_of(self, worker: str) -> JobRecord | None:
        """The job that a worker runs."""
        rows = self._rows("SELECT * FROM jobs WHERE status = 'running' AND worker = ?", worker)
        return from_row(JobRecord, rows[0]) if rows else None

    def release_after_engine_crash(self, worker: str, engine: str) -> None:
        """Release the jobs of a worker whose engine crashed; this does not count against them."""
        with self.transaction() as db:
            rows = db.execute("SELECT * FROM jobs WHERE status = 'running' AND worker = ?", (worker,)).fetchall()
            db.execute("DELETE FROM workers WHERE name = ?", (worker,))
            for job in (from_row(JobRecord, row) for row in rows):
                _add_events(db, job, f"the engine {engine} crashed: the job continues with another one")
                _update(db, job.id, **RELEASED)

    def release_after_worker_crash(
        self, worker: str, in_flight: Mapping[str, frozenset[int]], keep_s: float
    ) -> list[JobRecord]:
        """Release the jobs of a worker that crashed, with the positions that each attempt had in flight, by its token.

        A job whose worker crashed three times at the same position fails; the failed jobs are returned.
        """
        with self.transaction() as db:
            rows = db.execute("SELECT * FROM jobs WHERE status = 'running' AND worker = ?", (worker,)).fetchall()
            db.execute("DELETE FROM workers WHERE name = ?", (worker,))
            return self._count_crashes(db, rows, in_flight, keep_s, "worker")

    def release_after_server_crash(self, in_flight: Mapping[str, frozenset[int]], keep_s: float) -> list[JobRecord]:
        """Release every running job, since the workers ended with the server.

        This is rarely a job's fault, but a container may be killed as a whole if one process takes too much memory:
        a job fails after six times at the same position.
        """
        # Training workers outside of the server, whose names have this form, did not end with it.
        with self.transaction() as db:
            rows = db.execute("SELECT * FROM jobs WHERE status = 'running' AND worker NOT LIKE '%@%'").fetchall()
            db.execute("DELETE FROM workers WHERE name NOT LIKE '%@%'")
            return self._count_crashes(db, rows, in_flight, keep_s, "server")

    def _count_crashes(
        self,
        db: sqlite3.Connection,
        rows: list[sqlite3.Row],
        in_flight: Mapping[str, frozenset[int]],
        keep_s: float,
        process: Literal["worker", "server"],
    ) -> list[JobRecord]:
        """Release jobs whose process crashed; those that crashed it too often fail, and are returned."""
        failed = []
        for job in (from_row(JobRecord, row) for row in rows):
            # A batch that crashes the process is never finished, so it is in flight at every crash of the job; others
            # are finished and kept. What other threads had in flight does not matter. An attempt that recorded no
            # position had not begun to work on the job.
            positions = in_flight.get(job.token or "", frozenset())
            earlier = job.crash_counts.get(process, {})
            if max(positions, default=-1) >= 0:  # steps before the first batch do not crash the process
                earlier = {position: count for position, count in earlier.items() if int(position) >= 0}
            counts = {str(position): earlier.get(str(position), 0) + 1 for position in positions}
            count = max(counts.values(), default=0)
            if count >= MAX_CRASHES[process]:
                error = (InferenceFailed if job.kind == "map" else TrainingFailed)(
                    f"the {process} crashed {count} times at the same position of this job (out of memory, or a crash "
                    f"of {job.provider or 'the engine'}): report the job's id, {job.id}"
                )
                self._fail(db, job, error, keep_s)
                failed.append(job)
            else:
                who = f"worker {job.worker}" if process == "worker" else "the server"
                kept = "finished strips" if job.kind == "map" else "last checkpoint"
                _add_events(db, job, f"{who} crashed: the job continues from its {kept}")
                column = f"{process}_crashes"
                updates = {
                    "crash_counts": json.dumps(job.crash_counts | {process: earlier | counts}),
                    column: max(count, getattr(job, column)),
                }
                _update(db, job.id, **RELEASED | updates)
        return failed

    def expired_jobs(self, now: float) -> list[str]:
        """Finished jobs that have expired."""
        return [row["id"] for row in self._rows("SELECT id FROM jobs WHERE expires < ?", now)]

    def remove_job(self, job_id: str) -> None:
        """Remove a job."""
        with self.transaction() as db:
            db.execute("DELETE FROM jobs WHERE id = ?", (job_id,))

    def ids(self, table: str) -> dict[str, str]:
        """The ids of a table, with a job's status."""
        column = "status" if table == "jobs" else "''"
        return {row[0]: row[1] for row in self._rows(f"SELECT id, {column} FROM {table}")}  # nosec B608

    @staticmethod
    def _job(db: sqlite3.Connection, job_id: str) -> JobRecord:
        return from_row(JobRecord, db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone())

    @staticmethod
    def _holds_lease(db: sqlite3.Connection, job: JobRecord) -> bool:
        found = db.execute(
            "SELECT 1 FROM jobs WHERE id = ? AND token = ? AND status = 'running'", (job.id, job.token)
        ).fetchone()
        return found is not None

    def _fail(self, db: sqlite3.Connection, job: JobRecord, error: ServiceError, keep_s: float) -> None:
        # After an error that may pass, the same key makes a new job.
        key = None if error.status in (503, 507) else job.idempotency_key
        self._finish(
            db, job, "failed", keep_s, error_code=error.code, error_status=error.status, error_detail=str(error),
            idempotency_key=key,
        )  # fmt: skip

    @staticmethod
    def _finish(db: sqlite3.Connection, job: JobRecord, status: Status, keep_s: float, **changes: Any) -> None:
        now = time.time()
        _update(
            db, job.id, status=status, finished=job.finished or now, expires=now + keep_s, token=None,
            lease_until=None, seconds_left=None, **changes,
        )  # fmt: skip
        if not job.is_finished:
            counters.add(db, "jobs_finished_total", {"status": status, "reason": changes.get("error_code", "")}, 1)
            if job.started is not None:
                counters.observe(db, "job_seconds", {}, now - job.started)

    # Workers and counters

    def save_worker(self, worker: WorkerRecord) -> None:
        """Record a worker's state and heartbeat."""
        with self.transaction() as db:
            insert(db, "workers", to_row(worker), "OR REPLACE")

    def workers(self) -> list[WorkerRecord]:
        """Every worker that maps scenes."""
        rows = self._rows("SELECT * FROM workers WHERE device <> ? ORDER BY name", TRAINING)
        return [from_row(WorkerRecord, row) for row in rows]

    def training_workers(self) -> list[WorkerRecord]:
        """Every worker that trains models, in this server's processes or beside it."""
        rows = self._rows("SELECT * FROM workers WHERE device = ? ORDER BY name", TRAINING)
        return [from_row(WorkerRecord, row) for row in rows]

    def remove_worker(self, name: str) -> None:
        """Remove a worker that has ended."""
        with self.transaction() as db:
            db.execute("DELETE FROM workers WHERE name = ?", (name,))

    def count(self, name: str, amount: float) -> None:
        """Add to a counter."""
        with self.transaction() as db:
            counters.add(db, name, {}, amount)

    def counts(self) -> list[tuple[str, dict[str, str], float]]:
        """Every counter: name, labels, value."""
        rows = self._rows("SELECT * FROM counts ORDER BY name, labels")
        return [(row["name"], json.loads(row["labels"]), row["value"]) for row in rows]


def check_waiting(waiting: Counter[str], owner: str, max_waiting: int, max_of_owner: int | None) -> None:
    """Refuse another waiting job; the places that one owner cannot have are left to others."""
    if waiting.total() >= max_waiting:
        raise QueueFull(f"{waiting.total()} jobs are waiting, which is the limit")
    if max_of_owner is not None and waiting[owner] >= max_of_owner:
        raise OwnQueueFull(f"{waiting[owner]} jobs of your API key are waiting, which is its limit")


def _require_owner_time(db: sqlite3.Connection, job: JobRecord, max_s: float) -> None:
    """Refuse a job if it and its owner's unfinished jobs take longer than the limit."""
    rows = db.execute(
        "SELECT SUM(COALESCE(seconds_left, estimated_s, 0)) FROM jobs WHERE owner = ? AND "
        "status IN ('accepted', 'running')",
        (job.owner,),
    )
    taken_s = rows.fetchone()[0] or 0.0
    if taken_s + (job.estimated_s or 0.0) > max_s:
        raise QueueFull(
            f"your unfinished jobs take about {format_duration(taken_s)} and this one "
            f"{format_duration(job.estimated_s or 0)}; {format_duration(max_s)} are accepted: wait for some of them, "
            "dismiss some, or use a larger stride_px"
        )


def _update(db: sqlite3.Connection, job_id: str, **changes: Any) -> None:
    """Change a job and raise its version."""
    if "seconds" in changes:
        changes["seconds"] = json.dumps(changes["seconds"])
    changes["updated"] = time.time()
    fair_share.charge(db, job_id, changes["updated"])
    assignments = ", ".join(f"{name} = ?" for name in changes)
    db.execute(f"UPDATE jobs SET {assignments}, version = version + 1 WHERE id = ?", (*changes.values(), job_id))  # nosec B608


def _add_events(db: sqlite3.Connection, job: JobRecord, *texts: str) -> None:
    """Add to a job's events; the latest are kept."""
    new = [{"time": time.time(), "text": text} for text in texts]
    _update(db, job.id, events=json.dumps([*job.events, *new][-KEPT_EVENTS:]))
