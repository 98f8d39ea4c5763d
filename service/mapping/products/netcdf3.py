"""Cubes in the classic netCDF formats (CDF-1, CDF-2, CDF-5), whose arrays lie in one piece and are mapped into memory.

Layout: the NetCDF Classic Format Specification of Unidata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping.products.product import Numbers

MAGIC = b"CDF"
VERSIONS = (1, 2, 5)
DIMENSIONS, VARIABLES, ATTRIBUTES = 10, 11, 12
# Types by their number; 2 is text.
TYPES = {1: "i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8", 7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8"}
MAX_HEADER_BYTES = 4 << 20
DEFAULT_FILL = float(np.float32(9.9692099683868690e36))
MAX_ENTRIES = 10_000


@dataclass(frozen=True)
class Variable:
    """An array that lies in one piece."""

    shape: tuple[int, ...]
    stored: str  # numpy's name of the type
    offset: int
    attributes: dict[str, Any]

    @property
    def fill(self) -> float | None:
        """The value of missing data; floating-point arrays have one even if they do not say so."""
        declared = self.number("_FillValue")
        return DEFAULT_FILL if declared is None and np.dtype(self.stored).kind == "f" else declared

    def number(self, name: str) -> float | None:
        """An attribute as a number; None if there is none."""
        found = self.attributes.get(name)
        return None if found is None or isinstance(found, str) else float(found[0])

    def values(self, path: Path) -> Numbers:
        """All values of a short array."""
        count = int(np.prod(self.shape, dtype=np.int64))
        return np.fromfile(path, self.stored, count, offset=self.offset).astype(np.float64)


def is_netcdf3(start: bytes) -> bool:
    """Whether a file begins like one of the classic formats."""
    return start[:3] == MAGIC and len(start) > 3 and start[3] in VERSIONS


def read_variables(path: Path) -> dict[str, Variable]:
    """The arrays of a file by name; those with an unlimited dimension, which lie in pieces, are left out."""
    with path.open("rb") as file:
        header = _Header(file.read(MAX_HEADER_BYTES))
    try:
        found = _variables(header)
    except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        raise SceneUnreadable(f"{path.name} cannot be read as netCDF ({error}): copy it again") from error
    size = path.stat().st_size
    for name, variable in found.items():
        end = variable.offset + int(np.prod(variable.shape, dtype=object)) * np.dtype(variable.stored).itemsize
        if variable.offset < 0 or end > size:
            raise SceneUnreadable(f"{path.name} is cut short: {name} ends at byte {end} of {size}; copy it again")
    return found


class _Header:
    """Numbers and names in the order of the header."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 4
        version = content[3]
        # Lengths have eight bytes in CDF-5, offsets also in CDF-2.
        self.length = self._reader(">q" if version == 5 else ">i")
        self.offset = self._reader(">i" if version == 1 else ">q")
        self.tag = self._reader(">i")

    def _reader(self, layout: str) -> Callable[[], int]:
        def read() -> int:
            (value,) = struct.unpack_from(layout, self._content, self._at)
            self._at += struct.calcsize(layout)
            return int(value)

        return read

    def bytes(self, count: int) -> bytes:
        """Bytes, which are padded to a multiple of four."""
        if not 0 <= count <= len(self._content) - self._at:
            raise ValueError("its header is cut short or longer than 4 MB")
        found = self._content[self._at : self._at + count]
        self._at += -(-count // 4) * 4
        return found

    def name(self) -> str:
        return self.bytes(self.length()).decode("utf-8")

    def count(self, wanted: int) -> int:
        """The entries of a list, which is absent if it is empty."""
        tag, count = self.tag(), self.length()
        if (tag not in (0, wanted)) or not 0 <= count <= MAX_ENTRIES or (tag == 0 and count):
            raise ValueError("its header is damaged")
        return count

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self.count(ATTRIBUTES)):
            name, kind, count = self.name(), self.tag(), self.length()
            values = np.frombuffer(self.bytes(count * np.dtype(TYPES[kind]).itemsize), TYPES[kind])
            found[name] = values.tobytes().decode("utf-8", "replace") if kind == 2 else values
        return found


def _variables(header: _Header) -> dict[str, Variable]:
    header.length()  # the number of records
    dimensions = [(header.name(), header.length()) for _ in range(header.count(DIMENSIONS))]
    header.attributes()
    found = {}
    for _ in range(header.count(VARIABLES)):
        name = header.name()
        places = [header.length() for _ in range(header.length())]
        attributes, kind = header.attributes(), header.tag()
        header.length()  # the size, which is cut off for large arrays
        offset = header.offset()
        if not all(0 <= place < len(dimensions) for place in places):
            raise ValueError("its header is damaged")
        shape = tuple(dimensions[place][1] for place in places)
        if 0 not in shape[:1]:
            found[name] = Variable(shape, TYPES[kind], offset, attributes)
    return found
