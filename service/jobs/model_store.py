"""Queries of the store: the models that owners trained or uploaded, each with its versions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace

from hyperscene.service.jobs.database import Database, insert
from hyperscene.service.jobs.records import ModelRecord, from_row, to_row


class ModelStore(Database):
    """The models of owners; those of the operator are files, and not in the store."""

    def add_model(self, model: ModelRecord, publish: Callable[[ModelRecord], None]) -> ModelRecord:
        """Add and publish a model as the next version of its name."""
        with self.transaction() as db:
            added = self.insert_model(db, model)
            publish(added)
        return added

    @staticmethod
    def insert_model(db: sqlite3.Connection, model: ModelRecord) -> ModelRecord:
        """Add a model within a transaction, as the next version of its name."""
        last = db.execute(
            "SELECT MAX(version) FROM models WHERE owner = ? AND name = ?", (model.owner, model.name)
        ).fetchone()[0]
        numbered = replace(model, version=(last or 0) + 1)
        insert(db, "models", to_row(numbered))
        return numbered

    @staticmethod
    def adopt_model(db: sqlite3.Connection, model: ModelRecord) -> None:
        """Take in a model from the record beside its files; it gets another number if that was given again."""
        taken = db.execute(
            "SELECT 1 FROM models WHERE owner = ? AND name = ? AND version = ? AND id <> ?",
            (model.owner, model.name, model.version, model.id),
        ).fetchone()
        if taken:
            ModelStore.insert_model(db, model)
        else:
            insert(db, "models", to_row(model), "OR REPLACE")

    def model(self, owner: str, name: str, version: int | None = None) -> ModelRecord | None:
        """A version of an owner's model, or the latest one."""
        rows = self._rows(
            "SELECT * FROM models WHERE owner = ? AND name = ? AND (? IS NULL OR version = ?) AND removed IS NULL "
            "ORDER BY version DESC LIMIT 1",
            owner, name, version, version,
        )  # fmt: skip
        return from_row(ModelRecord, rows[0]) if rows else None

    def models(self, owner: str, name: str | None = None) -> list[ModelRecord]:
        """Every version of an owner's models, or of one of them, by name and then the latest first."""
        rows = self._rows(
            "SELECT * FROM models WHERE owner = ? AND (? IS NULL OR name = ?) AND removed IS NULL "
            "ORDER BY name, version DESC",
            owner, name, name,
        )  # fmt: skip
        return [from_row(ModelRecord, row) for row in rows]

    def remove_model(self, model: ModelRecord) -> None:
        """Remove a version; its number stays taken."""
        with self.transaction() as db:
            db.execute("UPDATE models SET removed = ?, manifest = '{}' WHERE id = ?", (time.time(), model.id))

    def model_ids(self) -> dict[str, bool]:
        """The ids of all models, and whether each was removed."""
        return {row[0]: row[1] is not None for row in self._rows("SELECT id, removed FROM models")}
