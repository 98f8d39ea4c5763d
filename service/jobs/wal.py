"""Damage in SQLite's write-ahead log, which SQLite itself passes over: it ends at the first frame that is not sound.

The format: https://sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from pathlib import Path

HEADER, FRAME_HEADER = 32, 24
MAGIC = {0x377F0682: "<", 0x377F0683: ">"}  # and the byte order of the words in checksums


def find_wal_damage(path: Path) -> str | None:
    """What is damaged; None if nothing is, or if the last transaction was cut off, as by a power cut.

    A log that was cut off between two transactions cannot be told from a shorter one.
    """
    content = path.read_bytes() if path.exists() else b""
    if not content:
        return None
    if len(content) < HEADER:
        return "its header is cut off"
    magic, _, page_bytes, _, *salts = struct.unpack_from(">6I", content)
    order = MAGIC.get(magic)
    checksum = (0, 0) if order is None else _checksum(content[: HEADER - 8], order, (0, 0))
    if order is None or checksum != struct.unpack_from(">2I", content, HEADER - 8):
        return "its header is not sound"
    damaged: int | None = None
    for number, start in enumerate(range(HEADER, len(content), FRAME_HEADER + page_bytes)):
        frame = content[start : start + FRAME_HEADER + page_bytes]
        if len(frame) < FRAME_HEADER + page_bytes:
            break
        _, committed_pages, *rest = struct.unpack_from(">6I", frame)
        if damaged is not None and rest[:2] == salts and committed_pages:
            return f"frame {damaged} is not sound, and transactions follow it"
        if damaged is None:
            checksum = _checksum(frame[:8] + frame[FRAME_HEADER:], order, checksum)
            if rest != [*salts, *checksum]:
                damaged = number
    return None


def _checksum(content: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    first, second = start
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
