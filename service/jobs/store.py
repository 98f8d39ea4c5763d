"""The store: one SQLite file that is the truth about scenes, jobs, workers and counts."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from service.errors import InferenceFailed, NoSuchScene, QueueFull, ServiceError, StorageFull
from service.jobs.records import (
    FINISHED,
    JobBounds,
    JobRecord,
    SceneRecord,
    Status,
    WorkerRecord,
    from_row,
    new_id,
    to_row,
)

MOST_DEATHS = 3
MOST_CRASHES = 6
NOWHERE = -1  # the place of a job that nothing was asked about
KEPT_HISTORY = 100

# One step for each version of the file; a new version appends a step, and older files are brought up at start.
MIGRATIONS = (
    """
    CREATE TABLE scenes (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, file TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        created REAL NOT NULL, expires REAL NOT NULL, document TEXT NOT NULL, is_temporary INTEGER NOT NULL
    );
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, scene_id TEXT NOT NULL, scene_name TEXT NOT NULL,
        model TEXT NOT NULL, options TEXT NOT NULL, status TEXT NOT NULL, created REAL NOT NULL,
        updated REAL NOT NULL, started REAL, finished REAL, expires REAL, version INTEGER NOT NULL,
        cells_done INTEGER NOT NULL, cells_total INTEGER NOT NULL, seconds_left REAL, worker TEXT, device TEXT,
        provider TEXT, token TEXT, lease_until REAL, resumes INTEGER NOT NULL, deaths INTEGER NOT NULL,
        crashes INTEGER NOT NULL, death_mark INTEGER NOT NULL, error_code TEXT, error_status INTEGER,
        error_detail TEXT, seconds TEXT NOT NULL, execution TEXT NOT NULL, idempotency_key TEXT, request_id TEXT
    );
    CREATE INDEX jobs_by_status ON jobs (status, created);
    CREATE INDEX jobs_by_owner ON jobs (owner, created);
    CREATE INDEX jobs_by_scene ON jobs (scene_id);
    CREATE UNIQUE INDEX jobs_by_key ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE TABLE workers (
        name TEXT PRIMARY KEY, device TEXT NOT NULL, pid INTEGER NOT NULL, state TEXT NOT NULL, provider TEXT,
        reason TEXT, heartbeat REAL NOT NULL
    );
    CREATE TABLE counts (name TEXT NOT NULL, labels TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (name, labels));
    """,
    "ALTER TABLE jobs ADD COLUMN history TEXT NOT NULL DEFAULT '[]';",
    "ALTER TABLE scenes ADD COLUMN href TEXT; ALTER TABLE workers ADD COLUMN members TEXT NOT NULL DEFAULT '[]';",
    # Renamed and not dropped, which SQLite has learnt late (3.35); a column of integers holds other texts as they are.
    "ALTER TABLE jobs RENAME COLUMN death_mark TO suspects; UPDATE jobs SET suspects = '{}', deaths = 0, crashes = 0;",
)
PROBE_S = 2.0
# Upper ends of the histograms' buckets, in seconds.
BUCKETS_S = (0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)


class Store:
    """The store, from any thread: each has a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        try:
            version: int = self._rows("PRAGMA user_version")[0][0]
        except sqlite3.DatabaseError as error:
            raise StoreUnusable(f"{path} cannot be read ({error}): put a backup in its place") from error
        if version > len(MIGRATIONS):
            raise StoreUnusable(f"{path} was written by a newer hyperscene: upgrade, or use another data folder")
        if version < len(MIGRATIONS):
            self._migrate(version)

    def _migrate(self, version: int) -> None:
        for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
            self._connection().executescript(f"BEGIN; {step} PRAGMA user_version = {number}; COMMIT;")

    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # what was answered survives a power cut
            self._local.connection = connection
        found: sqlite3.Connection = self._local.connection
        return found

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """All or nothing; a full disk is told as one."""
        try:
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            if "full" in str(error) or "disk I/O" in str(error):
                raise StorageFull("the disk of the data folder is full: free it and try again") from error
            if "locked" in str(error) or "busy" in str(error):
                raise StoreBusy("somebody holds the store: try again in some seconds") from error
            raise

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._connection().execute(query, values).fetchall()

    # Scenes

    def add_scene(self, scene: SceneRecord) -> None:
        """Keep an uploaded scene."""
        with self.transaction() as db:
            _insert(db, "scenes", to_row(scene))

    def scene(self, scene_id: str, owner: str | None = None) -> SceneRecord | None:
        """A scene; with `owner` only if it is theirs."""
        rows = self._rows("SELECT * FROM scenes WHERE id = ? AND (? IS NULL OR owner = ?)", scene_id, owner, owner)
        return from_row(SceneRecord, rows[0]) if rows else None

    def remove_scene(self, scene_id: str) -> bool:
        """Forget a scene, unless a job still has to read it."""
        with self.transaction() as db:
            waiting = db.execute(
                "SELECT 1 FROM jobs WHERE scene_id = ? AND status IN ('accepted', 'running')", (scene_id,)
            ).fetchone()
            if not waiting:
                db.execute("DELETE FROM scenes WHERE id = ?", (scene_id,))
            return not waiting

    def expired_scenes(self, now: float) -> list[str]:
        """Scenes past their time that no unfinished job needs; a job's own scene stays as long as the job."""
        rows = self._rows(
            "SELECT id FROM scenes WHERE expires < ? AND id NOT IN "
            "(SELECT scene_id FROM jobs WHERE is_temporary OR status IN ('accepted', 'running'))",
            now,
        )
        return [row["id"] for row in rows]

    # Jobs

    def add_job(self, job: JobRecord, most_waiting: int, scene: SceneRecord | None = None) -> JobRecord:
        """Keep a job and, with it, a scene of its own; answers the earlier job of the same idempotency key."""
        with self.transaction() as db:
            if job.idempotency_key is not None and (made := self._by_key(db, job.owner, job.idempotency_key)):
                return made
            waiting: int = db.execute("SELECT COUNT(*) FROM jobs WHERE status = 'accepted'").fetchone()[0]
            if waiting >= most_waiting:
                raise QueueFull(f"{waiting} jobs wait, as many as this server takes")
            if scene is not None:
                _insert(db, "scenes", to_row(scene))
            elif db.execute("SELECT 1 FROM scenes WHERE id = ?", (job.scene_id,)).fetchone() is None:
                raise NoSuchScene(f"the scene {job.scene_id} has just been removed: send it again")
            _insert(db, "jobs", to_row(job))
            _count(db, "jobs_submitted_total", {}, 1)
        return job

    def job_by_key(self, owner: str, key: str) -> JobRecord | None:
        """The job that an idempotency key made."""
        return self._by_key(self._connection(), owner, key)

    @staticmethod
    def _by_key(db: sqlite3.Connection, owner: str, key: str) -> JobRecord | None:
        row = db.execute("SELECT * FROM jobs WHERE owner = ? AND idempotency_key = ?", (owner, key)).fetchone()
        return from_row(JobRecord, row) if row else None

    def job(self, job_id: str, owner: str | None = None) -> JobRecord | None:
        """A job; with `owner` only if it is theirs."""
        rows = self._rows("SELECT * FROM jobs WHERE id = ? AND (? IS NULL OR owner = ?)", job_id, owner, owner)
        return from_row(JobRecord, rows[0]) if rows else None

    def jobs(
        self, owner: str, statuses: Iterable[str], limit: int, offset: int, bounds: JobBounds | None = None
    ) -> list[JobRecord]:
        """An owner's jobs, the newest first; of some statuses, or of all."""
        wanted, bounds = list(statuses), bounds or JobBounds()
        # A job that has not begun has no duration: NULL is neither more nor less than any other.
        duration = f"COALESCE(finished, {time.time()}) - started"
        asked = {
            "owner = ?": owner,
            "status IN (SELECT value FROM json_each(?))": json.dumps(wanted) if wanted else None,
            "created >= ?": bounds.created_from,
            "created <= ?": bounds.created_to,
            f"{duration} >= ?": bounds.min_s,
            f"{duration} <= ?": bounds.max_s,
        }
        conditions = {condition: value for condition, value in asked.items() if value is not None}
        query = f"SELECT * FROM jobs WHERE {' AND '.join(conditions)} ORDER BY created DESC, id LIMIT ? OFFSET ?"
        return [from_row(JobRecord, row) for row in self._rows(query, *conditions.values(), limit, offset)]

    def versions(self, job_ids: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """How far jobs have changed, and whether they are finished, for those who watch them."""
        ids = list(job_ids)
        rows = self._rows(f"SELECT id, version, status FROM jobs WHERE id IN ({', '.join('?' * len(ids))})", *ids)
        return {row["id"]: (row["version"], row["status"] in FINISHED) for row in rows}

    def count_jobs(self) -> dict[str, int]:
        """Jobs by status."""
        return {row[0]: row[1] for row in self._rows("SELECT status, COUNT(*) FROM jobs GROUP BY status")}

    def mean_job_seconds(self) -> float | None:
        """How long the last jobs took."""
        rows = self._rows(
            "SELECT AVG(finished - started) FROM (SELECT * FROM jobs WHERE status = 'successful' "
            "ORDER BY finished DESC LIMIT 20)"
        )
        mean: float | None = rows[0][0]
        return mean

    def claim(self, worker: str, lease_s: float) -> JobRecord | None:
        """The oldest job that waits, or whose worker fell silent, now held by this worker."""
        now = time.time()
        with self.transaction() as db:
            row = db.execute(
                "SELECT * FROM jobs WHERE status = 'accepted' OR (status = 'running' AND lease_until < ?) "
                "ORDER BY created LIMIT 1",
                (now,),
            ).fetchone()
            if row is None:
                return None
            job = from_row(JobRecord, row)
            if job.started is None:
                _observe(db, "job_queue_seconds", {}, now - job.created)
            else:
                _count(db, "job_resumes_total", {}, 1)
            _update(
                db, job.id, status="running", started=job.started or now, worker=worker, token=new_id(),
                lease_until=now + lease_s, resumes=job.resumes + (job.started is not None), seconds_left=None,
            )  # fmt: skip
            return self._in(db, job.id)

    def renew(self, job: JobRecord, lease_s: float, done: int, total: int, seconds_left: float | None) -> bool:
        """Hold on to a job and tell how far it is; False where it was dismissed or given to another."""
        with self.transaction() as db:
            if not self._is_held(db, job):
                return False
            _count(db, "cells_total", {}, max(0, done - self._in(db, job.id).cells_done))
            _update(
                db, job.id, lease_until=time.time() + lease_s, cells_done=done, cells_total=total,
                seconds_left=seconds_left,
            )  # fmt: skip
            return True

    def note_provider(self, job: JobRecord, device: str, provider: str) -> None:
        """What runs the job."""
        with self.transaction() as db:
            if self._is_held(db, job):
                _update(db, job.id, device=device, provider=provider)

    def add_history(self, job: JobRecord, texts: list[str]) -> None:
        """What happened to the job, for whoever asks; the latest ones are kept."""
        with self.transaction() as db:
            if self._is_held(db, job):
                _tell(db, self._in(db, job.id), *texts)

    def release(self, job: JobRecord) -> None:
        """Give a job back, to go on later."""
        with self.transaction() as db:
            if self._is_held(db, job):
                _update(db, job.id, status="accepted", token=None, lease_until=None, worker=None, seconds_left=None)

    def succeed(
        self, job: JobRecord, summary: Mapping[str, Any], keep_s: float, publish: Callable[[], None] = lambda: None
    ) -> bool:
        """Publish and record a finished map, as one step; False where the job was not the worker's any more."""
        with self.transaction() as db:
            if not self._is_held(db, job):
                return False
            publish()
            _count(db, "patches_total", {}, summary["patches"])
            _count(db, "pixels_total", {"kind": "valid"}, summary["valid_pixels"])
            _count(db, "pixels_total", {"kind": "no_data"}, summary["no_data_pixels"])
            for stage, seconds in summary["seconds"].items():
                if stage != "total":
                    _observe(db, "stage_seconds", {"stage": stage}, seconds)
            current = self._in(db, job.id)
            _count(db, "cells_total", {}, current.cells_total - current.cells_done)
            self._end(db, current, "successful", keep_s, cells_done=current.cells_total, seconds=summary["seconds"])
            return True

    def fail(self, job: JobRecord, error: ServiceError, keep_s: float) -> bool:
        """Record why a job failed; False where it was not the worker's any more."""
        with self.transaction() as db:
            is_held = self._is_held(db, job)
            if is_held:
                self._end_failed(db, job, error, keep_s)
            return is_held

    def dismiss(self, job_id: str, keep_s: float) -> None:
        """Stop a job, or drop the results of a finished one."""
        with self.transaction() as db:
            job = self._in(db, job_id)
            if job.status != "dismissed":
                self._end(db, job, "dismissed", keep_s, idempotency_key=None)  # sent again, it is a new job

    def forfeit(self, worker: str, marks: Mapping[str, frozenset[int]], keep_s: float) -> list[JobRecord]:
        """Free the jobs of a worker that died; `marks` says what of each was being asked about.

        A job whose worker died three times at the same place is to blame, and fails.
        """
        with self.transaction() as db:
            rows = db.execute("SELECT * FROM jobs WHERE status = 'running' AND worker = ?", (worker,)).fetchall()
            db.execute("DELETE FROM workers WHERE name = ?", (worker,))
            return self._blame(db, rows, marks, keep_s, "deaths", MOST_DEATHS, "the worker")

    def free_all(self, marks: Mapping[str, frozenset[int]], keep_s: float) -> list[JobRecord]:
        """Free every running job: their workers went down with the server, which is hardly ever a job's fault.

        A container may be killed whole where one process takes too much memory, though; so there is an end to it.
        """
        with self.transaction() as db:
            rows = db.execute("SELECT * FROM jobs WHERE status = 'running'").fetchall()
            db.execute("DELETE FROM workers")
            return self._blame(db, rows, marks, keep_s, "crashes", MOST_CRASHES, "the server")

    def _blame(
        self,
        db: sqlite3.Connection,
        rows: list[sqlite3.Row],
        marks: Mapping[str, frozenset[int]],
        keep_s: float,
        counter: str,
        most: int,
        victim: str,
    ) -> list[JobRecord]:
        """Free jobs whose process died, and answer those that are to blame for it: they have failed."""
        failed = []
        for job in (from_row(JobRecord, row) for row in rows):
            # A place that kills is never answered, so it is asked about in every life of the job; others are answered
            # and kept. Which threads were where else does not matter.
            places = [str(place) for place in marks.get(job.id) or (NOWHERE,)]
            seen = job.suspects.get(counter, {})
            found = {place: seen.get(place, 0) + 1 for place in places}
            count = max(found.values())
            if count >= most:
                error = InferenceFailed(
                    f"{victim} died {count} times at the same place of this job (out of memory, or a crash of "
                    f"{job.provider or 'the engine'}): report the job's id, {job.id}"
                )
                self._end_failed(db, job, error, keep_s)
                failed.append(job)
            else:
                who = f"worker {job.worker}" if victim == "the worker" else victim
                _tell(db, job, f"{who} died: the job goes on from its finished strips")
                suspects = job.suspects | {counter: seen | found}
                _update(
                    db, job.id, status="accepted", token=None, lease_until=None, worker=None, seconds_left=None,
                    suspects=json.dumps(suspects), **{counter: max(count, getattr(job, counter))},
                )  # fmt: skip
        return failed

    def expired_jobs(self, now: float) -> list[str]:
        """Finished jobs past their time."""
        return [row["id"] for row in self._rows("SELECT id FROM jobs WHERE expires < ?", now)]

    def remove_job(self, job_id: str) -> None:
        """Forget a job."""
        with self.transaction() as db:
            db.execute("DELETE FROM jobs WHERE id = ?", (job_id,))

    def known(self, table: str) -> dict[str, str]:
        """Every id of a table, with a job's status, to tell folders that belong to nobody."""
        column = "status" if table == "jobs" else "''"
        return {row[0]: row[1] for row in self._rows(f"SELECT id, {column} FROM {table}")}

    @staticmethod
    def _in(db: sqlite3.Connection, job_id: str) -> JobRecord:
        return from_row(JobRecord, db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone())

    @staticmethod
    def _is_held(db: sqlite3.Connection, job: JobRecord) -> bool:
        found = db.execute(
            "SELECT 1 FROM jobs WHERE id = ? AND token = ? AND status = 'running'", (job.id, job.token)
        ).fetchone()
        return found is not None

    def _end_failed(self, db: sqlite3.Connection, job: JobRecord, error: ServiceError, keep_s: float) -> None:
        # What may go well another time lets the key go: sent again, it is a new job.
        key = None if error.status in (503, 507) else job.idempotency_key
        self._end(
            db, job, "failed", keep_s, error_code=error.code, error_status=error.status, error_detail=str(error),
            idempotency_key=key,
        )  # fmt: skip

    @staticmethod
    def _end(db: sqlite3.Connection, job: JobRecord, status: Status, keep_s: float, **changes: Any) -> None:
        now = time.time()
        _update(
            db, job.id, status=status, finished=job.finished or now, expires=now + keep_s, token=None,
            lease_until=None, seconds_left=None, **changes,
        )  # fmt: skip
        if not job.is_finished:
            _count(db, "jobs_finished_total", {"status": status, "reason": changes.get("error_code", "")}, 1)
            if job.started is not None:
                _observe(db, "job_seconds", {}, now - job.started)

    # Workers and counts

    def beat(self, worker: WorkerRecord) -> None:
        """A worker's sign of life."""
        with self.transaction() as db:
            _insert(db, "workers", to_row(worker), "OR REPLACE")

    def workers(self) -> list[WorkerRecord]:
        """Every worker that was heard of since the server began."""
        return [from_row(WorkerRecord, row) for row in self._rows("SELECT * FROM workers ORDER BY name")]

    def is_writable(self) -> bool:
        """Whether a write gets through within a second or two."""
        try:
            with closing(sqlite3.connect(self._path, timeout=PROBE_S, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                _count(db, "readiness_probes", {}, 1)
                db.execute("COMMIT")
        except sqlite3.Error:
            return False
        return True

    def forget_worker(self, name: str) -> None:
        """A worker that is no more."""
        with self.transaction() as db:
            db.execute("DELETE FROM workers WHERE name = ?", (name,))

    def count(self, name: str, amount: float) -> None:
        """Add to a counter."""
        with self.transaction() as db:
            _count(db, name, {}, amount)

    def counts(self) -> list[tuple[str, dict[str, str], float]]:
        """Every counter: name, labels, value."""
        rows = self._rows("SELECT * FROM counts ORDER BY name, labels")
        return [(row["name"], json.loads(row["labels"]), row["value"]) for row in rows]


def insist(work: Callable[[], Any], is_stopping: threading.Event) -> Any:
    """Tell the store, however long its disk stays full or somebody holds it; None where there is no more time."""
    while True:
        try:
            return work()
        except (StorageFull, StoreBusy):
            if is_stopping.wait(1.0):
                return None


class StoreBusy(ServiceError):
    """Another process holds the store for longer than it should."""

    code = "not_ready"
    status = 503
    headers: Mapping[str, str] = {"Retry-After": "5"}


class StoreUnusable(ServiceError):
    """A data folder of a later version, or with a damaged file."""

    code = "store_unusable"
    status = 500


def _insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any], manner: str = "") -> None:
    marks = ", ".join("?" * len(row))
    db.execute(f"INSERT {manner} INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _update(db: sqlite3.Connection, job_id: str, **changes: Any) -> None:
    """Change a job; every change has a number of its own."""
    if "seconds" in changes:
        changes["seconds"] = json.dumps(changes["seconds"])
    changes["updated"] = time.time()
    assignments = ", ".join(f"{name} = ?" for name in changes)
    db.execute(f"UPDATE jobs SET {assignments}, version = version + 1 WHERE id = ?", (*changes.values(), job_id))


def _tell(db: sqlite3.Connection, job: JobRecord, *texts: str) -> None:
    """Add to what happened to a job."""
    fresh = [{"time": time.time(), "text": text} for text in texts]
    _update(db, job.id, history=json.dumps([*job.history, *fresh][-KEPT_HISTORY:]))


def _count(db: sqlite3.Connection, name: str, labels: Mapping[str, str], amount: float) -> None:
    db.execute(
        "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT (name, labels) DO UPDATE SET value = value + excluded.value",
        (name, json.dumps(labels, sort_keys=True), amount),
    )


def _observe(db: sqlite3.Connection, name: str, labels: Mapping[str, str], seconds: float) -> None:
    """Put a duration into its histogram."""
    for edge in (edge for edge in BUCKETS_S if seconds <= edge):
        _count(db, f"{name}_bucket", {**labels, "le": str(float(edge))}, 1)
    _count(db, f"{name}_bucket", {**labels, "le": "+Inf"}, 1)
    _count(db, f"{name}_sum", labels, seconds)
