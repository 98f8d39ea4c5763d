"""How long a TIFF should be: GDAL opens files that lost their tail, and some of them without a word."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

# Bytes of a value by the tag's type, 1 to 18; the last three are BigTIFF's.
TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)
TYPE_CODES = {1: "u1", 3: "u2", 4: "u4", 16: "u8"}
# Offsets of strips and tiles, and the tags with their lengths.
BLOCKS = {273: 279, 324: 325}
MOST_DIRECTORIES = 1000  # a chain that is longer goes round in a circle


class _Beyond(Exception):
    """A directory, or a list that it names, ends at this byte, outside of the file."""

    def __init__(self, end: int) -> None:
        self.end = end


@dataclass(frozen=True)
class _Layout:
    """Where a classic TIFF and a BigTIFF differ."""

    order: str
    counts: str  # of a directory's entries
    offsets: str
    entry_bytes: int
    first: int  # where the offset of the first directory stands


def expected_bytes(path: Path) -> int:
    """The size that the file's directories speak of: none of what they name lies further back."""
    with path.open("rb") as file:
        layout = _layout(file.read(4))
        size = os.fstat(file.fileno()).st_size
        furthest, seen = 0, 0
        try:
            (directory,) = _numbers(file, layout.first, layout.offsets, 1, size)
            while directory and seen < MOST_DIRECTORIES:
                end, directory = _directory(file, int(directory), layout, size)
                furthest, seen = max(furthest, end), seen + 1
        except _Beyond as beyond:
            furthest = max(furthest, beyond.end)
    return furthest


def _layout(start: bytes) -> _Layout:
    order = "<" if start[:2] == b"II" else ">"
    if start[2:4].strip(b"\0") == b"+":
        return _Layout(order, order + "u8", order + "u8", 20, 8)
    return _Layout(order, order + "u2", order + "u4", 12, 4)


def _directory(file: BinaryIO, place: int, layout: _Layout, size: int) -> tuple[int, int]:
    """How far what one directory names reaches, and where the next one stands."""
    (count,) = _numbers(file, place, layout.counts, 1, size)
    start = place + np.dtype(layout.counts).itemsize
    word = np.dtype(layout.offsets).itemsize
    furthest = start + int(count) * layout.entry_bytes + word
    blocks: dict[int, NDArray[np.uint64]] = {}
    for entry in range(start, start + int(count) * layout.entry_bytes, layout.entry_bytes):
        tag, kind = (int(number) for number in _numbers(file, entry, layout.order + "u2", 2, size))
        (values,) = _numbers(file, entry + 4, layout.offsets, 1, size)
        value_bytes = int(values) * (TYPE_BYTES[kind] if kind < len(TYPE_BYTES) else 0)
        where = entry + 4 + word
        if value_bytes > word:
            where = int(_numbers(file, where, layout.offsets, 1, size)[0])
            furthest = max(furthest, where + value_bytes)
        if tag in (*BLOCKS, *BLOCKS.values()) and kind in TYPE_CODES:
            blocks[tag] = _numbers(file, where, layout.order + TYPE_CODES[kind], int(values), size).astype(np.uint64)
    for offsets, lengths in BLOCKS.items():
        if offsets in blocks and lengths in blocks and len(blocks[offsets]) == len(blocks[lengths]):
            furthest = max(furthest, int((blocks[offsets] + blocks[lengths]).max(initial=0)))
    (following,) = _numbers(file, start + int(count) * layout.entry_bytes, layout.offsets, 1, size)
    return furthest, int(following)


def _numbers(file: BinaryIO, place: int, kind: str, count: int, size: int) -> NDArray[np.unsignedinteger]:
    length = count * np.dtype(kind).itemsize
    if place + length > size:
        raise _Beyond(place + length)
    file.seek(place)
    return np.frombuffer(file.read(length), kind)
