"""The expected length of a TIFF: GDAL opens truncated files, some of them without an error."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

# Bytes of a value by the tag's type, 1 to 18; the last three are BigTIFF's.
TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)
TYPE_CODES = {1: "u1", 2: "u1", 3: "u2", 4: "u4", 16: "u8"}
# Tags with the offsets of strips and tiles, and those with their lengths.
BLOCKS = {273: 279, 324: 325}


class _OutsideFile(Exception):
    """A directory, or an array it refers to, ends at this byte, outside the file."""

    def __init__(self, end: int) -> None:
        self.end = end


@dataclass(frozen=True)
class _Layout:
    """The differences between classic TIFF and BigTIFF."""

    order: str
    counts: str  # of a directory's entries
    offsets: str
    first: int  # position of the offset of the first directory

    @property
    def entry(self) -> np.dtype[np.void]:
        """An entry of a directory; its last word holds the value or its offset."""
        parts = [("tag", self.order + "u2"), ("kind", self.order + "u2"), ("values", self.offsets)]
        return np.dtype([*parts, ("word", self.offsets)])

    def word_of_entry(self, start: int, index: int) -> int:
        """The position of an entry's last word."""
        return start + index * self.entry.itemsize + self.entry.fields["word"][1]  # type: ignore[index]


def declared_size(path: Path) -> tuple[int, int, int]:
    """Rows, columns and bands of the first directory; 0 if missing."""
    return _first(path, 257, 0), _first(path, 256, 0), _first(path, 277, 1)


def packed_strip_bytes(path: Path) -> int:
    """Bytes of an unpacked strip; 0 for uncompressed or tiled files."""
    if _first(path, 259, 1) == 1 or _first(path, 322, 0):
        return 0
    rows, cols, bands = declared_size(path)
    bands_together = bands if _first(path, 284, 1) == 1 else 1
    return min(rows, _first(path, 278, rows)) * cols * bands_together * _first(path, 258, 1) // 8


def reference_text(path: Path) -> bytes:
    """The text of the coordinate reference system (GeoAsciiParams)."""
    return b"".join(values.tobytes() for values in _values(path, 34737))


def _first(path: Path, tag: int, default: int) -> int:
    return max((int(values[0]) for values in _values(path, tag) if len(values)), default=default)


def _values(path: Path, wanted: int) -> list[NDArray[Any]]:
    """The first directory's values of a tag, without those outside the file, which `expected_bytes` reports."""
    found = []
    with path.open("rb") as file, suppress(_OutsideFile):
        layout = _layout(file.read(4))
        size = os.fstat(file.fileno()).st_size
        entries, start, _ = _entries(file, _number(file, layout.first, layout.offsets, size), layout, size)
        for index, (tag, kind, values, word) in enumerate(entries):
            if tag == wanted and kind in TYPE_CODES:
                is_inline = values * TYPE_BYTES[kind] <= np.dtype(layout.offsets).itemsize
                where = layout.word_of_entry(start, index) if is_inline else word
                found.append(_numbers(file, where, layout.order + TYPE_CODES[kind], values, size))
    return found


def expected_bytes(path: Path) -> int:
    """The smallest size that holds everything the file's directories refer to."""
    with path.open("rb") as file:
        layout = _layout(file.read(4))
        size = os.fstat(file.fileno()).st_size
        furthest, seen = 0, set[int]()
        try:
            directory = _number(file, layout.first, layout.offsets, size)
            while directory and directory not in seen:  # a damaged chain may be circular
                seen.add(directory)
                end, directory = _directory(file, directory, layout, size)
                furthest = max(furthest, end)
        except _OutsideFile as outside:
            furthest = max(furthest, outside.end)
    return furthest


def _layout(start: bytes) -> _Layout:
    order = "<" if start[:2] == b"II" else ">"
    if start[2:4].strip(b"\0") == b"+":
        return _Layout(order, order + "u8", order + "u8", 8)
    return _Layout(order, order + "u2", order + "u4", 4)


def _directory(file: BinaryIO, offset: int, layout: _Layout, size: int) -> tuple[int, int]:
    """The last byte that a directory refers to, and the offset of the next directory."""
    entries, start, after = _entries(file, offset, layout, size)
    furthest = after + np.dtype(layout.offsets).itemsize
    blocks: dict[int, NDArray[np.uint64]] = {}
    for index, (tag, kind, values, word) in enumerate(entries):
        value_bytes = values * (TYPE_BYTES[kind] if kind < len(TYPE_BYTES) else 0)
        where = layout.word_of_entry(start, index)
        if value_bytes > np.dtype(layout.offsets).itemsize:
            where = word
            furthest = max(furthest, where + value_bytes)
        if tag in (*BLOCKS, *BLOCKS.values()) and kind in TYPE_CODES:
            blocks[tag] = _numbers(file, where, layout.order + TYPE_CODES[kind], values, size).astype(np.uint64)
    for offsets, lengths in BLOCKS.items():
        if offsets in blocks and lengths in blocks and len(blocks[offsets]) == len(blocks[lengths]):
            furthest = max(furthest, int((blocks[offsets] + blocks[lengths]).max(initial=0)))
    return furthest, _number(file, after, layout.offsets, size)


def _entries(
    file: BinaryIO, offset: int, layout: _Layout, size: int
) -> tuple[list[tuple[int, int, int, int]], int, int]:
    """A directory's entries (tag, kind, values, word), and where they start and end."""
    start = offset + np.dtype(layout.counts).itemsize
    count = _number(file, offset, layout.counts, size)
    entries = _numbers(file, start, layout.entry, count, size)
    return entries.tolist(), start, start + count * layout.entry.itemsize


def _number(file: BinaryIO, offset: int, kind: str, size: int) -> int:
    return int(_numbers(file, offset, kind, 1, size)[0])


def _numbers(file: BinaryIO, offset: int, kind: str | np.dtype[np.void], count: int, size: int) -> NDArray[Any]:
    length = count * np.dtype(kind).itemsize
    if offset + length > size:
        raise _OutsideFile(offset + length)
    file.seek(offset)
    return np.frombuffer(file.read(length), kind)
