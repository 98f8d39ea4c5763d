"""What the directories of a TIFF say: its size, the length it should have, and which of its blocks are absent.

They are read before GDAL opens the file, in parts, each entry once: memory and time depend on the length of the file
and not on the numbers in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping.block_map import BlockMap

# Bytes of a value by the tag's type, 1 to 18; the last three are BigTIFF's.
TYPE_BYTES = np.array([0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8], np.uint64)
TYPE_CODES = {1: "u1", 2: "u1", 3: "u2", 4: "u4", 6: "i1", 8: "i2", 9: "i4", 16: "u8", 17: "i8"}
COLS, ROWS, BITS, COMPRESSION, BANDS, STRIP_ROWS, PLANES = 256, 257, 258, 259, 277, 278, 284
TILE_COLS, TILE_ROWS, REFERENCE_TEXT = 322, 323, 34737
# Tags with the offsets of strips and tiles, and those with their lengths.
BLOCKS = {273: 279, 324: 325}

MAX_ENTRIES = 65_535  # of a directory: a classic TIFF cannot count further
MAX_DIRECTORIES = 10_000  # GDAL reads all of them when it looks for overviews: 50,000 take 1.7 s
MAX_TEXT_BYTES = 1 << 20  # of a reference system
# Short lists may be shared by several entries and directories. More than this, and each of 4,000 tags of a file of
# 1 MB may have a list of 1 MB, which GDAL keeps in memory.
SHARED_BYTES = 1 << 20
PART_VALUES = 1 << 18  # of a long list, read at a time
LARGEST = 1 << 40  # counts and offsets above this are outside of any file; their sums and products fit into 64 bits


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
    def word_bytes(self) -> int:
        return np.dtype(self.offsets).itemsize

    @cached_property
    def entry(self) -> np.dtype[np.void]:
        """An entry of a directory; its last word holds the value or its offset."""
        parts = [("tag", self.order + "u2"), ("kind", self.order + "u2"), ("values", self.offsets)]
        return np.dtype([*parts, ("word", self.offsets)])


@dataclass(frozen=True)
class _List:
    """The values of an entry, not read yet."""

    offset: int
    dtype: str
    count: int


class _Tiff:
    """An open TIFF."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._file = file
        self._name = path.name
        self.size = os.fstat(file.fileno()).st_size
        start = file.read(4)
        order = "<" if start[:2] == b"II" else ">"
        is_big = start[2:4].strip(b"\0") == b"+"
        self.layout = (
            _Layout(order, order + "u8", order + "u8", 8) if is_big else _Layout(order, order + "u2", order + "u4", 4)
        )

    def numbers(self, offset: int, dtype: str | np.dtype[np.void], count: int) -> NDArray[Any]:
        """Values at a position; raises _OutsideFile."""
        length = count * np.dtype(dtype).itemsize
        if offset + length > self.size:
            raise _OutsideFile(offset + length)
        self._file.seek(offset)
        return np.frombuffer(self._file.read(length), dtype)

    def number(self, offset: int, dtype: str) -> int:
        """A value at a position."""
        return int(self.numbers(offset, dtype, 1)[0])

    def parts(self, values: _List) -> Iterator[NDArray[Any]]:
        """A list, part by part."""
        item_bytes = np.dtype(values.dtype).itemsize
        if values.offset + values.count * item_bytes > self.size:
            raise _OutsideFile(values.offset + values.count * item_bytes)
        for start in range(0, values.count, PART_VALUES):
            count = min(PART_VALUES, values.count - start)
            yield self.numbers(values.offset + start * item_bytes, values.dtype, count)

    def first_directory(self) -> _Directory:
        """The directory that describes the scene."""
        return self.directory(self.number(self.layout.first, self.layout.offsets))

    def directory(self, offset: int) -> _Directory:
        """The directory at a position."""
        start = offset + np.dtype(self.layout.counts).itemsize
        count = self.number(offset, self.layout.counts)
        if count > MAX_ENTRIES:
            raise self.refusal(f"a directory of {count} entries")
        entries = self.numbers(start, self.layout.entry, count)
        return _Directory(self.layout, start, entries, self.number(start + entries.nbytes, self.layout.offsets))

    def refusal(self, what: str) -> SceneUnreadable:
        """The error for directories that no program writes."""
        return SceneUnreadable(f"{self._name} has {what}, as no program writes it: write the scene again")


class _Directory:
    """The entries of a directory. A tag counts once, where it occurs first: GDAL ignores the others."""

    def __init__(self, layout: _Layout, start: int, entries: NDArray[np.void], following: int) -> None:
        self._layout = layout
        self._start = start
        self._entries = entries
        self.following = following  # the next directory's position, or 0
        tags, firsts = np.unique(entries["tag"], return_index=True)
        self._index = dict(zip(tags.tolist(), firsts.tolist(), strict=True))
        kinds = np.minimum(entries["kind"], len(TYPE_BYTES)) % len(TYPE_BYTES)  # unknown types have no length
        list_bytes = _clipped(entries["values"]) * TYPE_BYTES[kinds]
        is_outside = list_bytes > layout.word_bytes  # of the entry
        end = start + entries.nbytes + layout.word_bytes
        lists = _clipped(entries["word"])[is_outside] + list_bytes[is_outside]
        self.end = max(end, int(lists.max(initial=0)))  # of all it refers to, without strips and tiles
        self.referred_bytes = entries.nbytes + int(list_bytes[is_outside].sum())

    def list_of(self, tag: int) -> _List | None:
        """The list of a tag whose values are whole numbers or text."""
        if tag not in self._index:
            return None
        index = self._index[tag]
        _, kind, count, word = self._entries[index].item()
        if kind not in TYPE_CODES:
            return None
        dtype = self._layout.order + TYPE_CODES[kind]
        is_inline = count * np.dtype(dtype).itemsize <= self._layout.word_bytes
        position = self._start + (index + 1) * self._layout.entry.itemsize - self._layout.word_bytes
        return _List(position if is_inline else word, dtype, count)


class _Header:
    """The first directory's values; those outside the file are missing, which `expected_bytes` reports."""

    def __init__(self, tiff: _Tiff) -> None:
        self._tiff = tiff
        self._directory: _Directory | None = None
        with suppress(_OutsideFile):
            self._directory = tiff.first_directory()

    def list_of(self, tag: int) -> _List | None:
        """A tag's list."""
        return None if self._directory is None else self._directory.list_of(tag)

    def number(self, tag: int, default: int) -> int:
        """A tag's first value."""
        values = self.list_of(tag)
        if values is None or values.count == 0:
            return default
        try:
            return self._tiff.number(values.offset, values.dtype)
        except _OutsideFile:
            return default

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows, columns and bands; 0 if missing."""
        return self.number(ROWS, 0), self.number(COLS, 0), self.number(BANDS, 1)


@contextmanager
def _opened(path: Path) -> Iterator[_Tiff]:
    with path.open("rb") as file:
        yield _Tiff(path, file)


def declared_size(path: Path) -> tuple[int, int, int]:
    """Rows, columns and bands of the first directory; 0 if missing."""
    with _opened(path) as tiff:
        return _Header(tiff).size


def packed_strip_bytes(path: Path) -> int:
    """Bytes of an unpacked strip; 0 for uncompressed or tiled files."""
    with _opened(path) as tiff:
        header = _Header(tiff)
        if header.number(COMPRESSION, 1) == 1 or header.number(TILE_COLS, 0):
            return 0
        rows, cols, bands = header.size
        bands_together = bands if header.number(PLANES, 1) == 1 else 1
        return min(rows, header.number(STRIP_ROWS, rows)) * cols * bands_together * header.number(BITS, 1) // 8


def reference_text(path: Path) -> bytes:
    """The text of the coordinate reference system (GeoAsciiParams)."""
    with _opened(path) as tiff, suppress(_OutsideFile):
        values = _Header(tiff).list_of(REFERENCE_TEXT)
        if values is not None and values.count > MAX_TEXT_BYTES:
            raise tiff.refusal(f"a coordinate reference system of {values.count} bytes")
        if values is not None:
            return tiff.numbers(values.offset, values.dtype, values.count).tobytes()
    return b""


def expected_bytes(path: Path) -> int:
    """The smallest size that holds everything the file's directories refer to.

    Refuses directories that refer to the same bytes again and again, or that are too many.
    """
    with _opened(path) as tiff:
        furthest = referred_bytes = 0
        seen = set[int]()
        try:
            offset = tiff.number(tiff.layout.first, tiff.layout.offsets)
            while offset and offset not in seen:  # a damaged chain may be circular
                seen.add(offset)
                directory = tiff.directory(offset)
                furthest, offset = max(furthest, directory.end), directory.following
                referred_bytes += directory.referred_bytes
                if furthest > tiff.size:
                    return furthest
                if referred_bytes > tiff.size + SHARED_BYTES:
                    raise tiff.refusal("entries that refer to the same bytes")
                if len(seen) > MAX_DIRECTORIES:
                    raise tiff.refusal(f"more than {MAX_DIRECTORIES} directories")
                furthest = max(furthest, _end_of_blocks(tiff, directory))
        except _OutsideFile as outside:
            furthest = max(furthest, outside.end)
    return furthest


def _end_of_blocks(tiff: _Tiff, directory: _Directory) -> int:
    """The last byte of the strips and tiles of a directory."""
    furthest = 0
    for offset_tag, length_tag in BLOCKS.items():
        offsets, lengths = directory.list_of(offset_tag), directory.list_of(length_tag)
        if offsets is not None and lengths is not None and offsets.count == lengths.count:
            for starts, counts in zip(tiff.parts(offsets), tiff.parts(lengths), strict=True):
                ends = _clipped(starts) + _clipped(counts)
                furthest = max(furthest, int(ends.max(initial=0)))
    return furthest


def _clipped(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Numbers that can be added; negative ones become large, since they are outside of any file too."""
    unsigned: NDArray[np.uint64] = values.astype(np.uint64)
    return np.minimum(unsigned, np.uint64(LARGEST))


def read_block_map(path: Path) -> BlockMap | None:
    """Which blocks hold data; None if all do, or if the lists of blocks do not have the length that GDAL writes."""
    with _opened(path) as tiff, suppress(_OutsideFile):
        header = _Header(tiff)
        rows, cols, bands = header.size
        is_tiled = header.number(TILE_COLS, 0) > 0
        block_rows = header.number(TILE_ROWS, 0) if is_tiled else min(rows, header.number(STRIP_ROWS, rows))
        block_cols = header.number(TILE_COLS, 0) if is_tiled else cols
        if min(rows, cols, bands, block_rows, block_cols) <= 0:
            return None
        planes = bands if header.number(PLANES, 1) == 2 else 1
        shape = planes, -(-rows // block_rows), -(-cols // block_cols)
        offset_tag = 324 if is_tiled else 273
        offsets, lengths = header.list_of(offset_tag), header.list_of(BLOCKS[offset_tag])
        if offsets is None or lengths is None or not offsets.count == lengths.count == np.prod(shape, dtype=object):
            return None
        present = np.zeros(offsets.count, bool)
        pairs = zip(tiff.parts(offsets), tiff.parts(lengths), strict=True)
        for number, (starts, counts) in enumerate(pairs):
            part = slice(number * PART_VALUES, (number + 1) * PART_VALUES)
            np.logical_or(starts, counts, out=present[part])
        return None if present.all() else BlockMap(rows, cols, block_rows, block_cols, present.reshape(shape))
    return None
