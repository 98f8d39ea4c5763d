"""Uploads: request bodies written to disk, with all limits enforced while they are read."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import TYPE_CHECKING, Any, BinaryIO

from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.types import Message

from hyperscene.errors import (
    SceneTooLarge,
    ServiceError,
    StorageFull,
    UploadBroken,
    UploadRateTooLow,
    UploadTooSlow,
    error_text,
)
from hyperscene.service.api.context import Service
from hyperscene.service.jobs.received_files import ReceivedFile, clean_name
from hyperscene.service.settings import Settings

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

WRITE_BYTES = 1 << 20
MAX_FILES = 32  # an EnMAP product has 17
MAX_PARTS = MAX_FILES + 16
MAX_FIELD_BYTES = 4096
MAX_JSON_BYTES = 256 << 10
FILE_FIELD, LABELS_FIELD = "scene", "labels"
ENVI_MAGIC = b"ENVI"


@dataclass
class Upload:
    """A received body: files on disk and the form's other fields."""

    files: list[ReceivedFile] = field(default_factory=list)  # of the scene
    labels: list[ReceivedFile] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def upload_folder(service: Service) -> AsyncIterator[Path]:
    """An empty folder for an upload, removed afterwards unless the admission moved it."""
    folder = await asyncio.to_thread(service.admission.new_folder)
    try:
        yield folder
    finally:
        await asyncio.to_thread(rmtree, folder, ignore_errors=True)


def content_length(request: Request) -> int | None:
    """The Content-Length header."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isdigit() else None


async def receive_form(request: Request, service: Service, folder: Path, labels_folder: Path | None = None) -> Upload:
    """Receive a multipart body: text fields, files in `scene`, and in `labels` if there is a folder for them."""
    media_type, options = parse_options_header(request.headers.get("content-type", ""))
    if media_type != b"multipart/form-data" or not options.get(b"boundary"):
        raise UploadBroken("send multipart/form-data with the scene in the field `scene`, as curl -F scene=@FILE does")
    form = _Form(service, folder, labels_folder)
    try:
        parser = MultipartParser(options[b"boundary"], form.callbacks)
        async for chunk in read_body(request, service):
            parser.write(chunk)
            await form.flush()
        parser.finalize()
    except FormParserError as error:
        raise UploadBroken(f"the multipart body cannot be parsed ({error}): send it again") from error
    finally:
        form.close()
    if not form.is_complete:
        raise UploadBroken("the multipart body ends before its last boundary: send it again")
    await service.count_upload(form.received_bytes)
    return form.upload


async def receive_file(
    request: Request, service: Service, folder: Path, name: str, max_bytes: int | None = None
) -> Upload:
    """Receive a raw body as one file."""
    writer = _FileWriter(folder / "part0", name, service)
    try:
        async for chunk in read_body(request, service, max_bytes):
            writer.add(chunk)
            await writer.flush()
        await writer.flush(is_last=True)
    finally:
        writer.close()
    await service.count_upload(writer.size_bytes)
    return Upload([writer.received()])


async def read_json(request: Request, service: Service, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a small JSON body. FastAPI would read it without a limit, and before it checks the API key."""
    try:
        return json.loads(b"".join([chunk async for chunk in read_body(request, service, max_bytes)]))
    except (ValueError, RecursionError) as error:
        raise UploadBroken(f"the body is not valid JSON ({error_text(error)}): /api describes this request") from error


async def read_body(request: Request, service: Service, max_bytes: int | None = None) -> AsyncIterator[bytes]:
    """The body in chunks, within the limits of size and time."""
    settings, received, pace = service.settings, 0, _Pace(service.settings)
    while True:
        message = await pace.receive(request)
        if message["type"] == "http.disconnect":
            raise UploadBroken("the connection closed during the upload: send it again")
        chunk = message.get("body", b"")
        received += len(chunk)
        if max_bytes is not None and received > max_bytes:
            raise SceneTooLarge(f"the body is longer than {max_bytes} bytes, the limit of this call: send less")
        if received > settings.max_upload_bytes:
            raise service.admission.too_many_bytes()
        if chunk:
            yield chunk
        if not message.get("more_body", False):
            return


class _Pace:
    """Receives a body within the limits on its time and rate; only the time spent waiting for the client counts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._deadline = time.monotonic() + settings.upload_s
        self._waited_s, self._bytes = 0.0, 0  # since the rate was checked

    async def receive(self, request: Request) -> Message:
        settings, began = self._settings, time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(settings.upload_idle_s, self._deadline - began))):
                message = await request.receive()
        except TimeoutError as error:
            raise _not_read(
                UploadTooSlow(
                    f"no data arrived for {settings.upload_idle_s:.0f} s, or the upload took longer than "
                    f"{settings.upload_s:.0f} s: use a faster connection"
                )
            ) from error
        self._waited_s += time.monotonic() - began
        self._bytes += len(message.get("body", b""))
        if self._waited_s > settings.upload_grace_s:
            if self._bytes < settings.min_upload_bytes_per_s * self._waited_s:
                raise _not_read(
                    UploadRateTooLow(
                        f"{self._bytes} bytes arrived in {self._waited_s:.0f} s, and this server expects at least "
                        f"{int(settings.min_upload_bytes_per_s)} per second: use a faster connection"
                    )
                )
            self._waited_s, self._bytes = 0.0, 0
        return message


def _not_read(error: ServiceError) -> ServiceError:
    """The error with the header that ends the connection, because the rest of the body is not read."""
    error.headers = {**error.headers, "Connection": "close"}
    return error


class _FileWriter:
    """A file that is being received; bytes are buffered and written in a thread."""

    def __init__(self, path: Path, name: str, service: Service) -> None:
        self._path = path
        self._name = name
        self._max_header_bytes = service.settings.max_header_bytes
        self._min_free_bytes = service.settings.min_free_bytes
        self._file: BinaryIO | None = None
        self._buffer = bytearray()
        self._magic = b""
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Append bytes of the file."""
        self._buffer += data
        self.size_bytes += len(data)
        if len(self._magic) < 4:
            self._magic = (self._magic + data[:4])[:4]
        if self._magic == ENVI_MAGIC and self.size_bytes > self._max_header_bytes:
            raise SceneTooLarge(
                f"the header {clean_name(self._name)} is longer than {int(self._max_header_bytes)} bytes: shorten it"
            )

    async def flush(self, *, is_last: bool = False) -> None:
        """Write the buffer if it is large enough, or if the file is complete."""
        if is_last or len(self._buffer) >= WRITE_BYTES:
            data, self._buffer = self._buffer, bytearray()
            await asyncio.to_thread(self._write, data)

    def _write(self, data: bytearray) -> None:
        try:
            if self._file is None:
                self._file = self._path.open("xb")
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull("the disk filled up during the upload: try again later") from error
            raise
        # An upload must not use the disk space that running jobs need.
        if disk_usage(self._path.parent).free < self._min_free_bytes:
            raise StorageFull("the disk filled up during the upload: try again later")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def received(self) -> ReceivedFile:
        return ReceivedFile(self._path, self._name, self._magic, self.size_bytes)


class _Form:
    """Callbacks of the multipart parser: files are written to disk, text fields are collected."""

    def __init__(self, service: Service, folder: Path, labels_folder: Path | None) -> None:
        self._service = service
        self._folders = {FILE_FIELD: folder} | ({} if labels_folder is None else {LABELS_FIELD: labels_folder})
        self._header_name = self._header_value = b""
        self._disposition = b""
        self._parts = 0
        self._field: tuple[str, bytearray] | None = None
        self._writer: _FileWriter | None = None
        self._field_of: dict[_FileWriter, str] = {}
        self._complete_writers: list[_FileWriter] = []
        self._writers: list[_FileWriter] = []
        self.upload = Upload()
        self.is_complete = False
        self.callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._on_header_name,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_part_end": self._end,
            "on_end": self._complete,
        }

    @property
    def received_bytes(self) -> int:
        return sum(file.size_bytes for file in (*self.upload.files, *self.upload.labels))

    async def flush(self) -> None:
        """Write the data of the last chunk."""
        for writer in self._complete_writers:
            await writer.flush(is_last=True)
            writer.close()
            files = self.upload.labels if self._field_of[writer] == LABELS_FIELD else self.upload.files
            files.append(writer.received())
        self._complete_writers.clear()
        if self._writer is not None:
            await self._writer.flush()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise UploadBroken(f"the form has more than {MAX_PARTS} parts: send one scene and its options")
        self._disposition = b""

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name in self._folders:
            file_name = options.get(b"filename", b"").decode("utf-8", "replace") or name
            self._writer = _FileWriter(self._folders[name] / f"part{len(self._writers)}", file_name, self._service)
            self._writers.append(self._writer)
            self._field_of[self._writer] = name
        elif b"filename" in options or not name:
            fields = " or ".join(f"`{field}`" for field in self._folders)
            raise UploadBroken(f"the field {name[:100]!r} must not be a file: send files in the field {fields}")
        else:
            self._field = name, bytearray()

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._writer is not None:
            self._writer.add(data[start:end])
        elif self._field is not None:
            self._field[1].extend(data[start:end])
            if len(self._field[1]) > MAX_FIELD_BYTES:
                raise UploadBroken(f"the field {self._field[0][:100]!r} is longer than {MAX_FIELD_BYTES} bytes")

    def _end(self) -> None:
        if self._writer is not None:
            self._complete_writers.append(self._writer)
        elif self._field is not None:
            name, value = self._field
            if name in self.upload.fields:
                raise UploadBroken(f"the field {name[:100]!r} appears twice: send it once")
            self.upload.fields[name] = value.decode("utf-8", "replace")
        self._writer = self._field = None

    def _complete(self) -> None:
        self.is_complete = True
