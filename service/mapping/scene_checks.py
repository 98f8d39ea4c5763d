"""Checks of a scene's file: size and reference system before GDAL opens it, blocks and length once it is open."""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from hyperscene.errors import SceneTooLarge, SceneUnreadable
from hyperscene.service.mapping.gdal import DTYPES, JPEG_2000, envi_header, row_of_blocks_bytes
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.prefetch import Stop
from hyperscene.service.mapping.remote import is_remote, name_of
from hyperscene.service.mapping.scene_files import header_of
from hyperscene.service.mapping.tiff import declared_size, expected_bytes, packed_strip_bytes, reference_text

# A remote scene is read about once if a row of its blocks stays in memory, and two rows where a strip crosses them.
REMOTE_ROW_BYTES = 1 << 30
# GDAL searches all keys of an ENVI header for each one: 5,000 take 0.4 s, 150,000 more than 100 s.
HEADER_KEYS = 5_000
JPEG_2000_BYTES = 1 << 20


def read_declared_size(path: Path, driver: str, limits: Limits) -> tuple[int, int, int]:
    """Rows, columns and bands from the file's header, without GDAL."""
    if driver == "GTiff":
        return declared_size(path)
    if driver == JPEG_2000:
        return _jpeg_2000_start(path)[1]
    header = header_of(path)
    if header is None or header.stat().st_size > limits.header_bytes:
        raise SceneTooLarge(f"the header of {path.name} is longer than {limits.header_bytes} bytes: shorten it")
    text = header.read_bytes()
    if text.count(b"=") > HEADER_KEYS:
        raise SceneTooLarge(f"the header of {path.name} has more than {HEADER_KEYS} keys: shorten it")
    # Keys may be upper case or repeated, and lines may end with a carriage return alone: the largest number counts.
    numbers = {b"lines": 0, b"samples": 0, b"bands": 0}
    for key, digits in re.findall(rb"(?i)[\r\n][ \t]*(samples|lines|bands)[ \t]*=[ \t]*(\d+)", text):
        numbers[key.lower()] = max(numbers[key.lower()], int(digits[:18]))
    rows, cols, bands = numbers.values()
    return rows, cols, bands


def check_reference_text(path: Path, driver: str) -> None:
    """Refuse grid files in the reference system: PROJ opens them as soon as it parses their paths."""
    if driver == "GTiff":
        text = reference_text(path)
    elif driver == JPEG_2000:
        text = _jpeg_2000_start(path)[0]
    else:
        header = header_of(path)
        content = header.read_bytes() if header is not None else b""
        text = b"".join(re.findall(rb"(?i)coordinate[ _]+system[ _]+string\s*=([^}]*)", content))
    refuse_grids(path.name, text)


def _jpeg_2000_start(path: Path) -> tuple[bytes, tuple[int, int, int]]:
    """What stands before the codestream, and rows, columns and bands from its first segment (SIZ)."""
    with path.open("rb") as file:
        start = file.read(JPEG_2000_BYTES)
    boxes, found, size = start.partition(b"\xff\x4f\xff\x51")
    if not found or len(size) < 38:
        raise SceneUnreadable(f"{path.name} has no codestream of JPEG 2000 in its first MB: copy it again")
    right, bottom, left, top = struct.unpack(">4I", size[4:20])
    return boxes, (bottom - top, right - left, int.from_bytes(size[36:38], "big"))


def refuse_grids(name: str, text: bytes) -> None:
    """Refuse a reference system that names a grid file by its path."""
    # Web Mercator has a slash in its name, and states that it needs no grid.
    text = re.sub(rb"\s", b"", re.sub(rb"nadgrids=@null(?=[\s\"])", b"", text))
    if re.search(rb"(?i)PROJ4_GRIDS|PARAMETERFILE|(grids|file|init|model)=", text) and re.search(rb"[/\\]", text):
        raise SceneUnreadable(
            f"the coordinate reference system of {name} names a grid file by its path, and only files of the "
            "scene are read: write it without the grid"
        )


def check_blocks(path: Path, dataset: Any, limits: Limits) -> None:
    """Refuse an open file whose size, blocks or rows exceed the limits."""
    name = name_of(path)
    limits.check_size(name, dataset.height, dataset.width, dataset.count)
    item_bytes = max(np.dtype(kind).itemsize if kind in DTYPES else 16 for kind in dataset.dtypes)
    block_rows, block_cols = dataset.block_shapes[0]
    is_pixel = dataset.interleaving is not None and dataset.interleaving.value == "PIXEL"
    unpacked_bytes = dataset.height * dataset.width * dataset.count * item_bytes
    block_bytes = block_rows * block_cols * item_bytes * (dataset.count if is_pixel else 1)
    if is_remote(path):
        _check_remote(name, dataset)
    elif dataset.driver == "GTiff":  # GDAL may report rows as blocks although it has to unpack a whole strip
        block_bytes = max(block_bytes, packed_strip_bytes(path))
    limits.check_unpacked(name, unpacked_bytes, block_bytes)
    limits.check_row(name, dataset.width, dataset.count)


def _check_remote(name: str, dataset: Any) -> None:
    """Refuse a remote file that could not be read about once."""
    block_rows, block_cols = dataset.block_shapes[0]
    if block_rows % 16 or block_cols % 16:  # sizes of TIFF tiles are multiples of 16
        raise SceneUnreadable(f"{name} is not tiled and cannot be read in place: write it as COG, or upload it")
    if row_of_blocks_bytes(dataset) > REMOTE_ROW_BYTES:
        raise SceneTooLarge(
            f"a row of {name}'s blocks is {row_of_blocks_bytes(dataset) >> 20} MB; a scene that is read in place "
            f"may have at most {REMOTE_ROW_BYTES >> 20} MB: write it with BLOCKSIZE=128, or upload it"
        )


def check_data_size(path: Path, dataset: Any, *, counts_packed: bool, stop: Stop | None = None) -> None:
    """Refuse an ENVI file that is cut short: GDAL would read zeros."""
    header, item_bytes = envi_header(dataset), np.dtype(dataset.dtypes[0]).itemsize
    expected = int(header.get("header_offset", "0")) + dataset.width * dataset.height * dataset.count * item_bytes
    is_packed = header.get("file_compression", "0").strip() == "1"
    if is_packed and not counts_packed:
        return
    found = _unpacked_bytes(path, expected, stop or Stop()) if is_packed else path.stat().st_size
    if found < expected:
        raise SceneUnreadable(f"{path.name} is cut short: {found} bytes of {expected}; copy it again")


def is_packed_envi(path: Path) -> bool:
    """Whether the data of an ENVI file are packed by gzip, so that no row can be read alone."""
    header = header_of(path)
    text = header.read_bytes() if header is not None else b""
    return re.search(rb"(?im)^[ \t]*file[ \t]+compression[ \t]*=[ \t]*1", text) is not None


def _unpacked_bytes(path: Path, enough: int, stop: Stop) -> int:
    """Unpacked bytes of a gzip file, counted up to `enough`; bytes after damage do not count."""
    found = 0
    with gzip.open(path) as file:
        try:
            while found < enough and (part := file.read(1 << 20)):
                found += len(part)
                stop.raise_if_cancelled()
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return found
    return found


def check_tiff_length(path: Path) -> None:
    """Refuse a TIFF that is shorter than its directories say: GDAL would open it, and may silently lose its tags."""
    found, expected = path.stat().st_size, expected_bytes(path)
    if expected > found:
        raise SceneUnreadable(f"{path.name} is cut short: {found} bytes of {expected}; copy it again")
