"""The positions of a job that an attempt is working on, in a file that outlives a crash of the worker.

After a crash it is known which positions the attempt (lease) had recorded. An attempt that recorded none had not begun
to work on the job, so its crash does not count. It cannot be known who sent SIGKILL: the kernel for lack of memory,
which the job may have caused, or someone else. So a crash counts at the positions recorded, and a job fails after
several crashes at one of them. Kills from outside fail a sound job only if each of them hits it before it has passed
the same batch, or while it writes its results, or, in attempts that follow each other, before its first batch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

PREFIX = "in-flight-"  # followed by the token of the attempt
OPENING = -1  # while scene and model are opened; mapping.classify has the other positions


class InFlight:
    """Records what one attempt works on: steps, which are negative, and batches in flight."""

    def __init__(self, folder: Path, token: str | None) -> None:
        for earlier in folder.glob(f"{PREFIX}*"):  # their crashes have been counted
            earlier.unlink(missing_ok=True)
        self._handle = os.open(folder / f"{PREFIX}{token}", os.O_RDWR | os.O_CREAT, 0o600)

    def record(self, positions: Collection[int]) -> None:
        """Overwrite the record; it takes some microseconds, and is done for every batch."""
        with suppress(OSError):  # a full disk: writing the next strip raises
            os.pwrite(self._handle, struct.pack(f"<{1 + len(positions)}q", len(positions), *positions), 0)

    def __enter__(self) -> InFlight:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def read_in_flight(jobs: Path) -> dict[str, frozenset[int]]:
    """The positions recorded in the folders of all jobs, by the token of the attempt."""
    return {path.name.removeprefix(PREFIX): _read(path) for path in jobs.glob(f"*/{PREFIX}*")}


def _read(path: Path) -> frozenset[int]:
    try:
        content = path.read_bytes()
        (count,) = struct.unpack_from("<q", content)
        return frozenset(struct.unpack_from(f"<{count}q", content, 8))
    except (OSError, struct.error):
        return frozenset()
