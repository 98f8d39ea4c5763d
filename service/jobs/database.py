"""Access to the store's SQLite file: connections, transactions and their errors."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hyperscene.errors import ServiceError, StorageFull
from hyperscene.service.jobs import counters
from hyperscene.service.jobs.schema import MIGRATIONS, migrate

PROBE_S = 2.0


class StoreBusy(ServiceError):
    """Another process locks the store for too long."""

    code = "not_ready"
    status = 503
    headers: Mapping[str, str] = {"Retry-After": "5"}


class StoreUnusable(ServiceError):
    """A data folder of a newer version, or with a damaged file."""

    code = "store_unusable"
    status = 500


class StoreDamaged(StoreUnusable):
    """The file is damaged or missing, and can be rebuilt from the records in the data folder."""


class Database:
    """The SQLite file; each thread has its own connection."""

    def __init__(self, path: Path, *, is_checked: bool = False) -> None:
        """Open the file, and upgrade one of an older version; with `is_checked` all of it is checked first."""
        self._path = path
        self._local = threading.local()
        try:
            version: int = self._rows("PRAGMA user_version")[0][0]
            found = self._rows("PRAGMA integrity_check(1)")[0][0] if is_checked else "ok"
        except sqlite3.DatabaseError as error:
            found = str(error)
        if found != "ok":
            raise StoreDamaged(f"{path} is damaged ({' '.join(found.split())}): put a backup in its place")
        if version > len(MIGRATIONS):
            raise StoreUnusable(f"{path} was written by a newer hyperscene: upgrade, or use another data folder")
        migrate(self._connection(), version)

    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a committed transaction survives a power cut
            self._local.connection = connection
        found: sqlite3.Connection = self._local.connection
        return found

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """A write transaction, rolled back on any error."""
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
                raise StoreBusy("another process locks the store: try again in some seconds") from error
            raise

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._connection().execute(query, values).fetchall()

    def is_writable(self) -> bool:
        """Whether a write succeeds within two seconds."""
        try:
            with closing(sqlite3.connect(self._path, timeout=PROBE_S, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                counters.add(connection, "readiness_probes", {}, 1)
                connection.execute("COMMIT")
        except sqlite3.Error:
            return False
        return True


def retry_write(write: Callable[[], Any], is_stopping: threading.Event) -> Any:
    """Write to the store, again while its disk is full or it is locked; None once the process stops."""
    while True:
        try:
            return write()
        except (StorageFull, StoreBusy):
            if is_stopping.wait(1.0):
                return None


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any], conflict: str = "") -> None:
    """Insert a row; `conflict` is SQLite's clause for a key that exists."""
    values = ", ".join("?" * len(row))
    db.execute(f"INSERT {conflict} INTO {table} ({', '.join(row)}) VALUES ({values})", tuple(row.values()))  # nosec B608
