"""Uploads by hand: the bytes of a TIFF, of a form and of a request, and the server's memory."""

from __future__ import annotations

import http.client
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.server import RunningServer

BOUNDARY = "a-line-between"
SHORT, LONG, LONG8, ASCII = 3, 4, 16, 2
TYPES = {SHORT: "H", LONG: "I", LONG8: "Q"}


def tiff_start(entries: dict[int, tuple[int, list[int] | bytes]], *, is_big: bool = False) -> bytes:
    """A little-endian TIFF's header and its only directory, from tags with their types and values."""
    word, count_code, head = ("Q", "Q", b"II+\0\x08\0\0\0") if is_big else ("I", "H", b"II*\0")
    word_bytes = struct.calcsize(word)
    first = len(head) + word_bytes
    after = first + struct.calcsize(count_code) + len(entries) * (4 + 2 * word_bytes) + word_bytes
    rows, lists = b"", b""
    for tag, (kind, values) in sorted(entries.items()):
        packed = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{TYPES[kind]}", *values)
        if len(packed) > word_bytes:
            where = struct.pack("<" + word, after + len(lists))
            lists += packed + b"\0" * (len(packed) % 2)
        else:
            where = packed.ljust(word_bytes, b"\0")
        rows += struct.pack("<HH" + word, tag, kind, len(values)) + where
    directory = struct.pack("<" + count_code, len(entries)) + rows + struct.pack("<" + word, 0)
    return head + struct.pack("<" + word, first) + directory + lists


def shared_list_tiff(tags: Iterable[int], list_bytes: int = 1_000_000) -> bytes:
    """A small TIFF with more entries, one for each of `tags`, that all refer to the same list at its end."""
    entries = [(256, LONG, 1, 33), (257, LONG, 1, 40), (258, SHORT, 1, 8), (273, LONG, 1, 8), (279, LONG, 1, 8)]
    more = list(tags)
    start = 8 + 2 + 12 * (len(entries) + len(more)) + 4
    entries = sorted([*entries, *((tag, SHORT, list_bytes // 2, start) for tag in more)], key=lambda entry: entry[0])
    rows = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    directory = struct.pack("<H", len(entries)) + rows + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", 8) + directory + b"\x28\0" * (list_bytes // 2)


def striped_tiff_start(
    shape: tuple[int, int, int], *, rows_per_strip: int, is_big: bool = False, compression: int = 1,
    strip_bytes: int | None = None, description: bytes = b"", nodata: bytes = b"",
) -> bytes:  # fmt: skip
    """The header of a band-sequential TIFF of bytes; its strips follow in order, `strip_bytes` long each."""
    rows, cols, bands = shape
    strips = bands * -(-rows // rows_per_strip)
    length = rows_per_strip * cols if strip_bytes is None else strip_bytes
    kind = LONG8 if is_big else LONG

    def head(start: int) -> bytes:
        return tiff_start(
            {
                256: (LONG, [cols]),
                257: (LONG, [rows]),
                258: (SHORT, [8] * bands),
                259: (SHORT, [compression]),
                262: (SHORT, [1]),
                273: (kind, [start + number * length for number in range(strips)]),
                277: (SHORT, [bands]),
                278: (LONG, [rows_per_strip]),
                279: (kind, [length] * strips),
                284: (SHORT, [2]),
                **{tag: (ASCII, text + b"\0") for tag, text in ((42112, description), (42113, nodata)) if text},
            },
            is_big=is_big,
        )

    return head(len(head(0)))


def wavelength_tags(nm: Iterable[float]) -> bytes:
    """GDAL's metadata tag with the wavelength of each band."""
    items = "".join(
        f'<Item name="wavelength" sample="{band}">{value}</Item>'
        f'<Item name="wavelength_units" sample="{band}">Nanometers</Item>'
        for band, value in enumerate(nm)
    )
    return f"<GDALMetadata>{items}</GDALMetadata>".encode()


def form_part(content: bytes, name: str = "scene.tif", *, field: str = "scene", headers: str = "") -> bytes:
    """The bytes of a form part; `name` may hold anything."""
    disposition = f'Content-Disposition: form-data; name="{field}"' + (f'; filename="{name}"' if name else "")
    return f"--{BOUNDARY}\r\n{disposition}\r\n{headers}\r\n".encode() + content + b"\r\n"


def form_body(*parts: bytes) -> bytes:
    """A whole form."""
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def request_head(path: str, length: object | None = None, **headers: str) -> bytes:
    """The first lines of a POST with a form; underscores in names of headers are hyphens."""
    lines = {"Host": "localhost", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    if length is not None:
        lines["Content-Length"] = str(length)
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1")


class RawResponse:
    """A response read from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        response = http.client.HTTPResponse(connection)
        response.begin()
        self.status_code = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode("utf-8", "replace")


@contextmanager
def connected(server: RunningServer) -> Iterator[socket.socket]:
    """A connection to the server."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def exchange(server: RunningServer, *pieces: bytes, pause_s: float = 0) -> RawResponse:
    """Send pieces of a request, until the connection closes, and read the response."""
    with connected(server) as connection:
        with suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause_s)
        return RawResponse(connection)


class Memory:
    """Resident bytes of the server and its child processes: before, and the maximum."""

    def __init__(self, server: RunningServer) -> None:
        self._process = psutil.Process(server.process.pid)
        self.before = self.maximum = self._now()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    @property
    def growth(self) -> int:
        return self.maximum - self.before

    def _now(self) -> int:
        total = 0
        for process in [self._process, *self._process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def _poll(self) -> None:
        while not self._is_over.wait(0.02):
            self.maximum = max(self.maximum, self._now())

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


class Secret:
    """A file of the server that must not be read; its access time tells whether it was."""

    def __init__(self, path: Path, size_bytes: int = 40_000) -> None:
        self.path = path
        path.write_bytes(os.urandom(size_bytes))
        self._forget()
        path.read_bytes()
        assert self.was_read, "this file system keeps no access times"
        self._forget()

    def _forget(self) -> None:
        os.utime(self.path, (0, self.path.stat().st_mtime))

    @property
    def was_read(self) -> bool:
        return self.path.stat().st_atime != 0
