"""The positions of a job that the network is computing, in a file that outlives a crash of the worker."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

FILE_NAME = "mark"  # as in data folders of earlier versions


class InFlight:
    """Records the batches in flight, each by the number of lattice cells before it; the last ones stay recorded.

    A worker that crashes before its first batch leaves the record of the worker before it.
    """

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)

    def record(self, positions: Collection[int]) -> None:
        """Overwrite the record; it takes some microseconds, and is done for every batch."""
        with suppress(OSError):  # a full disk: writing the next strip raises
            os.pwrite(self._handle, struct.pack(f"<{1 + len(positions)}q", len(positions), *positions), 0)

    def __enter__(self) -> InFlight:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def read_in_flight(folder: Path) -> frozenset[int]:
    """The positions recorded in a job's folder; empty if there are none."""
    try:
        content = (folder / FILE_NAME).read_bytes()
        (count,) = struct.unpack_from("<q", content)
        return frozenset(struct.unpack_from(f"<{count}q", content, 8))
    except (OSError, struct.error):
        return frozenset()
