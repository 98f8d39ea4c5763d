"""Shares of owners: who computed how long, whose job is next, and when a waiting job will start."""

from __future__ import annotations

import heapq
import sqlite3
import time
from collections import Counter, defaultdict
from itertools import accumulate

from hyperscene.service.jobs.records import Kind

SLICE_S = 600  # seconds are counted in slices of time
RECENT_SLICES, DAY_SLICES = 2, 86400 // SLICE_S
MOST_CHARGED_S = 60.0  # at once: nobody is charged for the time that the server was down
TYPICAL_S = 5.0  # of a job, before any has finished
# Owners take turns: first the one with the fewest running jobs, then the one that computed least in the last minutes.
# Without API keys, all jobs are those of one owner, '', which has no limit.
NEXT_JOB = """
    WITH active AS (
        SELECT owner, COUNT(*) AS count FROM jobs INDEXED BY jobs_by_status
        WHERE status = 'running' AND lease_until >= :now GROUP BY owner
    ), served AS (
        SELECT owner, SUM(seconds) AS day_s, SUM(seconds * (slice > :recent)) AS recent_s
        FROM running_seconds WHERE slice > :day GROUP BY owner
    )
    SELECT jobs.* FROM jobs LEFT JOIN active USING (owner) LEFT JOIN served USING (owner)
    WHERE kind = :kind AND (status = 'accepted' OR (status = 'running' AND lease_until < :now))
        AND (:max_s IS NULL OR owner = '' OR COALESCE(day_s, 0) < :max_s)
    ORDER BY COALESCE(active.count, 0), COALESCE(recent_s, 0), created LIMIT 1
"""


def charge(db: sqlite3.Connection, job_id: str, now: float) -> None:
    """Count the time since a running job's last change for its owner; called with every change."""
    db.execute(
        "INSERT INTO running_seconds SELECT owner, ?, MIN(MAX(? - updated, 0), ?) FROM jobs WHERE id = ? "
        "AND status = 'running' ON CONFLICT (owner, slice) DO UPDATE SET seconds = seconds + excluded.seconds",
        (int(now // SLICE_S), now, MOST_CHARGED_S, job_id),
    )


def next_job(db: sqlite3.Connection, now: float, max_running_s: float | None, kind: Kind = "map") -> sqlite3.Row | None:
    """The job to claim now, by turns over owners; owners wait who computed `max_running_s` within a day."""
    slice_ = int(now // SLICE_S)
    values = {
        "now": now,
        "recent": slice_ - RECENT_SLICES,
        "day": slice_ - DAY_SLICES,
        "max_s": max_running_s,
        "kind": kind,
    }
    db.execute("DELETE FROM running_seconds WHERE slice <= :day", values)
    row: sqlite3.Row | None = db.execute(NEXT_JOB, values).fetchone()
    return row


def seconds_until_start(
    db: sqlite3.Connection, owner: str | None, slots: int, max_running_s: float | None, kind: Kind = "map"
) -> float:
    """Seconds until the next waiting job of an owner starts, or of anyone: the turns to come, played through."""
    now = time.time()
    if max_running_s is not None and owner and (paused_s := _paused_s(db, owner, max_running_s, now)):
        return paused_s
    running = db.execute(
        "SELECT owner, started, seconds_left FROM jobs WHERE status = 'running' AND kind = ?", (kind,)
    ).fetchall()
    typical_s = _typical_s(db, running, now, kind)
    ends = [
        (
            max(1.0, typical_s - now + row["started"]) if row["seconds_left"] is None else row["seconds_left"],
            row["owner"],
        )
        for row in running
    ]
    ends += [(0.0, "")] * (slots - len(ends))
    heapq.heapify(ends)
    jobs = Counter(row["owner"] for row in running)
    accepted = "SELECT owner FROM jobs WHERE status = 'accepted' AND kind = ? ORDER BY created"
    waiting = Counter(row[0] for row in db.execute(accepted, (kind,)))
    recent = "SELECT owner, SUM(seconds) FROM running_seconds WHERE slice > ? GROUP BY owner"
    served: dict[str, float] = defaultdict(float, db.execute(recent, (now // SLICE_S - RECENT_SLICES,)).fetchall())
    while +waiting:
        after_s, done = heapq.heappop(ends)
        jobs[done] -= 1
        turn = min(+waiting, key=lambda name: (jobs[name], served[name]))
        if owner in (None, turn):
            return float(after_s)
        waiting[turn] -= 1
        jobs[turn] += 1
        served[turn] += typical_s
        heapq.heappush(ends, (after_s + typical_s, turn))
    return float(ends[0][0])


def _typical_s(db: sqlite3.Connection, running: list[sqlite3.Row], now: float, kind: Kind) -> float:
    """Mean duration of the last 20 successful jobs, or what the running ones are expected to take."""
    row = db.execute(
        "SELECT AVG(finished - started) FROM (SELECT * FROM jobs WHERE status = 'successful' AND kind = ? "
        "ORDER BY finished DESC LIMIT 20)",
        (kind,),
    ).fetchone()
    expected = [now - row["started"] + row["seconds_left"] for row in running if row["seconds_left"] is not None]
    return float(row[0] or max(expected, default=TYPICAL_S))


def _paused_s(db: sqlite3.Connection, owner: str, max_running_s: float, now: float) -> float:
    """Seconds until an owner who computed too long within a day may compute again."""
    rows = db.execute(
        "SELECT slice, seconds FROM running_seconds WHERE owner = ? AND slice > ? ORDER BY slice",
        (owner, now // SLICE_S - DAY_SLICES),
    ).fetchall()
    excess_s = sum(row["seconds"] for row in rows) - max_running_s
    if excess_s < 0:
        return 0.0
    freed_s = accumulate(row["seconds"] for row in rows)
    last = next(row["slice"] for row, freed in zip(rows, freed_s, strict=True) if freed > excess_s)
    return float((last + DAY_SLICES) * SLICE_S - now)
