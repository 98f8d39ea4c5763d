"""Counters and histograms for /metrics; they live in the store, so they survive a restart."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

# Upper bounds of the histograms' buckets, in seconds.
BUCKETS_S = (0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)


def add(db: sqlite3.Connection, name: str, labels: Mapping[str, str], amount: float) -> None:
    """Add to a counter."""
    db.execute(
        "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT (name, labels) DO UPDATE SET value = value + excluded.value",
        (name, json.dumps(labels, sort_keys=True), amount),
    )


def observe(db: sqlite3.Connection, name: str, labels: Mapping[str, str], seconds: float) -> None:
    """Add a duration to its histogram."""
    for bound in (bound for bound in BUCKETS_S if seconds <= bound):
        add(db, f"{name}_bucket", {**labels, "le": str(float(bound))}, 1)
    add(db, f"{name}_bucket", {**labels, "le": "+Inf"}, 1)
    add(db, f"{name}_sum", labels, seconds)
