"""Remote files read by byte ranges: every address, response and byte is checked before GDAL sees it."""

from __future__ import annotations

import http.client
import io
import math
import queue
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rasterio.abc import MultiByteRangeResourceContainer

from hyperscene.errors import SceneUnreadable, ServiceError, SourceUnreachable, error_text
from hyperscene.service.mapping.remote import RemoteName, is_remote, remote_name
from hyperscene.service.mapping.remote_hosts import RangeRequest, connect, plain_request
from hyperscene.service.mapping.s3 import sign

OPEN_S = 15.0  # after which a file is not tried again when it is opened
BUSY, RETRIES_S = (429, 500, 502, 503, 504), (0, 1, 2, 4, 8, 16, 32)
CHUNK_BYTES, KEPT_CHUNKS = 16 << 10, 512  # of header and tags, which GDAL reads in pieces of some bytes
# A range of this size on one connection takes longer than the next one's round trip.
PIECE_BYTES, CONNECTIONS = 2 << 20, 8
# Mapping reads a file about once. More than this is a file whose tiles all point to the same bytes.
MOST_READS, SPARE_BYTES = 4, 64 << 20


class _Busy(Exception):
    """The host responded with a status that may pass."""


@dataclass(frozen=True)
class _Identity:
    """What a host says about a file; it changes when the file is replaced."""

    etag: str
    modified: str
    size_bytes: int


@contextmanager
def open_remote(path: Path) -> Iterator[RemoteFile | None]:
    """A remote file; None for a local one. Raises if it is missing or cannot be read in parts."""
    if not is_remote(path):
        yield None
        return
    file = RemoteFile(remote_name(path))
    try:
        file.read_start()
        yield file
    finally:
        file.close()


class RemoteFile(MultiByteRangeResourceContainer):  # type: ignore[misc]  # rasterio has no types
    """A remote file as rasterio's opener; used by one thread.

    rasterio turns exceptions into GDAL's read errors, so the first one is kept in `error`.
    """

    def __init__(self, name: RemoteName) -> None:
        self._name = name
        self._identity: _Identity | None = None
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = threading.Event()
        self._requested_bytes = 0
        self.error: ServiceError | None = None

    @property
    def headers(self) -> str:
        """What identifies the file, as older versions stored it."""
        assert self._identity is not None
        return f"{self._identity.etag} {self._identity.modified} bytes 0-0/{self._identity.size_bytes}"

    @property
    def size_bytes(self) -> int:
        assert self._identity is not None
        return self._identity.size_bytes

    def read_start(self) -> None:
        """Read the first chunk, whose response tells the file's size."""
        self._chunks[0] = self._fetch(0, CHUNK_BYTES, time.monotonic() + OPEN_S)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._drop_idle()

    def _drop_idle(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    # rasterio's opener: a container of one file, whatever its name

    def open(self, path: str, mode: str = "r", **_: Any) -> _Handle:
        return _Handle(self)

    def isfile(self, path: str) -> bool:
        return True

    def isdir(self, path: str) -> bool:
        return False

    def ls(self, path: str) -> list[str]:
        return []

    def mtime(self, path: str) -> int:
        return 0

    def rm(self, path: str) -> None:
        raise PermissionError("remote files are read only")

    def size(self, path: str) -> int:
        return 0 if self._identity is None else self._identity.size_bytes  # rasterio asks while it is registered

    # Reading

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of (first, count) ranges, in pieces on several connections."""
        pieces = [
            (first + at, min(PIECE_BYTES, count - at))
            for first, count in self._within_file(ranges)
            for at in range(0, count, PIECE_BYTES)
        ]
        with self._kept_error():
            if len(pieces) <= 1:
                found = [self._fetch(*piece) for piece in pieces]
            else:
                self._pool = self._pool or ThreadPoolExecutor(CONNECTIONS, "hyperscene-remote")
                found = list(self._pool.map(lambda piece: self._fetch(*piece), pieces))
        parts = iter(found)
        return [
            part
            if count <= PIECE_BYTES
            else part + b"".join(next(parts) for _ in range(PIECE_BYTES, count, PIECE_BYTES))
            for _, count in self._within_file(ranges)
            for part in [next(parts) if count else b""]
        ]

    def read_chunked(self, first: int, count: int) -> bytes:
        """Bytes of the header, through the chunks in memory."""
        ((first, count),) = self._within_file([(first, count)])
        if not count:
            return b""
        numbers = range(first // CHUNK_BYTES, (first + count - 1) // CHUNK_BYTES + 1)
        missing = [number for number in numbers if number not in self._chunks]
        if missing:
            start, end = missing[0] * CHUNK_BYTES, (missing[-1] + 1) * CHUNK_BYTES
            (found,) = self.read_ranges([(start, end - start)])
            for number in range(missing[0], missing[-1] + 1):
                at = number * CHUNK_BYTES - start
                self._chunks[number] = found[at : at + CHUNK_BYTES]
        content = b"".join(self._chunks[number] for number in numbers)
        while len(self._chunks) > KEPT_CHUNKS:
            self._chunks.popitem(last=False)
        start = numbers[0] * CHUNK_BYTES
        return content[first - start : first - start + count]

    def _within_file(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The ranges without what lies behind the end."""
        return [(first, max(0, min(count, self.size_bytes - first))) for first, count in ranges]

    @contextmanager
    def _kept_error(self) -> Iterator[None]:
        try:
            yield
        except ServiceError as error:
            self.error = self.error or error
            raise

    def _fetch(self, first: int, count: int, deadline: float = math.inf) -> bytes:
        """One range; requested again while the host is busy or does not respond."""
        self._requested_bytes += count
        if self._identity and self._requested_bytes > MOST_READS * self.size_bytes + SPARE_BYTES:
            raise SceneUnreadable(f"{self._name.address} has tiles that share their bytes: write it again as COG")
        for delay_s in (*RETRIES_S, None):
            try:
                return self._request(first, count)
            except (_Busy, OSError, http.client.HTTPException) as error:
                if delay_s is None or time.monotonic() + delay_s > deadline:
                    raise self._unreachable(error) from error
            if self._is_closed.wait(delay_s):
                break
        raise SourceUnreachable(f"{self._name.address} was closed while it was read")

    def _unreachable(self, error: Exception) -> SourceUnreachable:
        if isinstance(error, _Busy):
            return SourceUnreachable(f"{self._name.address} returned status {error}: try again later")
        reason = getattr(error, "strerror", None) or error_text(error)
        return SourceUnreachable(f"{self._name.address} does not respond ({reason}): check it, or try again later")

    def _request(self, first: int, count: int) -> bytes:
        """One range from one connection, which is kept if nothing is left to read."""
        wanted = f"bytes={first}-{first + count - 1}"
        request = (sign if self._name.is_s3 else plain_request)(self._name.href, wanted)
        connection = self._connection(request)
        try:
            connection.request("GET", request.target, headers=request.headers)
            response = connection.getresponse()
            self._check_status(response)
            expected = self._check_range(response, first, count)
            body = response.read(expected)
            if len(body) < expected:
                raise ConnectionError(f"the response ended after {len(body)} of {expected} bytes")
        except BaseException:
            connection.close()
            self._drop_idle()  # after a pause, the host may have closed all of them
            raise
        if connection.sock is not None and (response.isclosed() or not response.read(1)):
            self._idle.put(connection)
        else:
            connection.close()
        return body

    def _connection(self, request: RangeRequest) -> http.client.HTTPConnection:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            pass
        try:
            connection = connect(request, self._name.networks)
        except OSError:  # an invalid certificate is a ValueError, too
            raise
        except ValueError as error:  # a port or a name that cannot exist
            raise SceneUnreadable(f"{self._name.address} is not a valid URL: correct it") from error
        if connection is None:
            raise SceneUnreadable(
                f"{self._name.address} is in a private network that this server does not read from: upload it with "
                "POST /scenes, or ask the operator to list the network in --href-networks"
            )
        return connection

    def _check_status(self, response: http.client.HTTPResponse) -> None:
        status, address = response.status, self._name.address
        if 300 <= status < 400:
            hint = "give that one, if it is allowed"
            if self._name.is_s3:
                hint = "the operator of this server may have to set AWS_REGION or AWS_S3_ENDPOINT"
            raise SceneUnreadable(f"{address} redirects to another URL: {hint}")
        if status in BUSY:
            raise _Busy(status)
        if status != http.client.PARTIAL_CONTENT or response.getheader("Content-Encoding", "identity") != "identity":
            reason = "sends whole files only (no Range requests)" if status < 300 else f"returned status {status}"
            raise SceneUnreadable(f"{address} {reason}: check it, or upload the scene with POST /scenes")

    def _check_range(self, response: http.client.HTTPResponse, first: int, count: int) -> int:
        """The number of bytes that follow; refuses another range, or one of another file."""
        found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", response.getheader("Content-Range", ""))
        start, last, size = map(int, found.groups()) if found else (-1, -1, -1)
        if start != first or last != min(first + count, size) - 1:
            raise SceneUnreadable(f"{self._name.address} sends other bytes than requested: upload it with POST /scenes")
        identity = _Identity(response.getheader("ETag", ""), response.getheader("Last-Modified", ""), size)
        self._identity = self._identity or identity
        if identity != self._identity:
            raise replaced(self._name.address)
        return last - first + 1


class _Handle:
    """An open file as GDAL's callbacks use it."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._position = 0

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """The file's connections stay open for the next handle."""

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}[whence]
        self._position = origin + offset
        return self._position

    def read(self, count: int = -1) -> bytes:
        content = self._file.read_chunked(self._position, count if count >= 0 else self._file.size_bytes)
        self._position += len(content)
        return content

    def get_byte_ranges(self, offsets: list[int], sizes: list[int]) -> list[bytes]:
        return self._file.read_ranges(list(zip(offsets, sizes, strict=True)))


def replaced(address: str) -> SceneUnreadable:
    """The refusal of a file that is not the one that was submitted."""
    return SceneUnreadable(f"{address} was replaced after it was submitted: submit it again")
