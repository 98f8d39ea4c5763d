"""The tables of the store's SQLite file, and how files of older versions are upgraded."""

from __future__ import annotations

import sqlite3

# One step for each version of the file. A new version appends a step; steps that were released do not change.
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
    # Renamed, since SQLite before 3.35 cannot drop columns; an integer column stores text that is no number as it is.
    "ALTER TABLE jobs RENAME COLUMN death_mark TO suspects; UPDATE jobs SET suspects = '{}', deaths = 0, crashes = 0;",
    "ALTER TABLE workers ADD COLUMN left_out TEXT NOT NULL DEFAULT '[]';",
    """
    ALTER TABLE jobs RENAME COLUMN history TO events;
    ALTER TABLE jobs RENAME COLUMN deaths TO worker_crashes;
    ALTER TABLE jobs RENAME COLUMN crashes TO server_crashes;
    ALTER TABLE jobs RENAME COLUMN suspects TO crash_counts;
    UPDATE jobs SET crash_counts = replace(replace(crash_counts, '"deaths":', '"worker":'), '"crashes":', '"server":');
    UPDATE jobs SET error_code = 'source_unreachable' WHERE error_code = 'place_unreachable';
    UPDATE counts SET labels = replace(labels, '"place_unreachable"', '"source_unreachable"');
    """,
    # Older versions counted cells only, with data or without.
    "ALTER TABLE jobs ADD COLUMN patches_done INTEGER NOT NULL DEFAULT 0; UPDATE jobs SET patches_done = cells_done;",
    """
    CREATE TABLE running_seconds (
        owner TEXT NOT NULL, slice INTEGER NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (owner, slice)
    );
    """,
    "ALTER TABLE jobs ADD COLUMN estimated_s REAL;",
    # A version of a model that was removed keeps its row, so that its number is not given again.
    """
    ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'map';
    ALTER TABLE jobs ADD COLUMN model_version INTEGER;
    ALTER TABLE jobs ADD COLUMN stage TEXT;
    CREATE TABLE models (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, created REAL NOT NULL,
        size_bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, manifest TEXT NOT NULL, job_id TEXT, removed REAL
    );
    CREATE UNIQUE INDEX models_by_version ON models (owner, name, version);
    """,
)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Upgrade a file of an older version, step by step."""
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {step} PRAGMA user_version = {number}; COMMIT;")
