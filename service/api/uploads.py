"""Uploads: a body on its way to disk, with every limit enforced while it is read."""

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

from service.api.context import Service
from service.errors import SceneTooLarge, StorageFull, UploadBroken, UploadTooSlow
from service.jobs.admission import ReceivedFile, clean_name

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

WRITE_BYTES = 1 << 20
MOST_PARTS = 16
LONGEST_FIELD = 4096
LONGEST_JSON = 256 << 10
FILE_FIELD = "scene"
ENVI_START = b"ENVI"


@dataclass
class Upload:
    """What a body held: files on disk, and the form's other fields."""

    files: list[ReceivedFile] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def incoming(service: Service) -> AsyncIterator[Path]:
    """An empty folder for an upload, gone afterwards unless it was taken in."""
    folder = await asyncio.to_thread(service.admission.new_folder)
    try:
        yield folder
    finally:
        await asyncio.to_thread(rmtree, folder, ignore_errors=True)


def content_length(request: Request) -> int | None:
    """How long the body says it is."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isdigit() else None


async def receive_form(request: Request, service: Service, folder: Path) -> Upload:
    """A multipart body: files of the field `scene`, and text fields."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise UploadBroken("send multipart/form-data with the scene in the field `scene`, as curl -F scene=@FILE does")
    form = _Form(service, folder)
    try:
        parser = MultipartParser(options[b"boundary"], form.callbacks)
        async for chunk in read_body(request, service):
            parser.write(chunk)
            await form.flush()
        parser.finalize()
    except FormParserError as error:
        raise UploadBroken(f"the multipart body cannot be read ({error}): send it again") from error
    finally:
        form.close()
    if not form.is_complete:
        raise UploadBroken("the multipart body stops before its last boundary: send it again")
    await service.count_upload(form.received_bytes)
    return form.upload


async def receive_file(request: Request, service: Service, folder: Path, name: str) -> Upload:
    """A raw body: the one file it is."""
    sink = _Sink(folder / "part0", name, service)
    try:
        async for chunk in read_body(request, service):
            sink.add(chunk)
            await sink.flush()
        await sink.flush(is_last=True)
    finally:
        sink.close()
    await service.count_upload(sink.size_bytes)
    return Upload([sink.received()])


async def read_json(request: Request, service: Service) -> Any:
    """A small JSON body; FastAPI's own reading knows no limit, and comes before the key is asked for."""
    try:
        return json.loads(b"".join([chunk async for chunk in read_body(request, service, LONGEST_JSON)]))
    except (ValueError, RecursionError) as error:
        raise UploadBroken(f"the body is no JSON ({error}): see /api for what this call takes") from error


async def read_body(request: Request, service: Service, most_bytes: int | None = None) -> AsyncIterator[bytes]:
    """The body chunk by chunk, within the limits of length and time."""
    settings, received = service.settings, 0
    deadline = time.monotonic() + settings.upload_s
    while True:
        patience_s = min(settings.upload_idle_s, deadline - time.monotonic())
        try:
            message = await asyncio.wait_for(request.receive(), max(patience_s, 0))
        except TimeoutError as error:
            slow = UploadTooSlow(
                f"nothing arrived for {settings.upload_idle_s:.0f} s, or the upload took longer than "
                f"{settings.upload_s:.0f} s: send it over a faster line"
            )
            slow.headers = {"Connection": "close"}  # the rest of the body is not waited for
            raise slow from error
        if message["type"] == "http.disconnect":
            raise UploadBroken("the upload stopped half-way: send it again")
        chunk = message.get("body", b"")
        received += len(chunk)
        if most_bytes is not None and received > most_bytes:
            raise SceneTooLarge(f"the body is longer than {most_bytes} bytes: send a reference to the scene")
        if received > settings.max_upload_bytes:
            raise service.admission.too_many_bytes()
        if chunk:
            yield chunk
        if not message.get("more_body", False):
            return


class _Sink:
    """A file that is being received; bytes are gathered and written by a thread."""

    def __init__(self, path: Path, name: str, service: Service) -> None:
        self._path = path
        self._name = name
        self._longest_header = service.settings.max_header_bytes
        self._least_free = service.settings.min_free_bytes
        self._file: BinaryIO | None = None
        self._gathered = bytearray()
        self._start = b""
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Take more of the file."""
        self._gathered += data
        self.size_bytes += len(data)
        if len(self._start) < 4:
            self._start = (self._start + data[:4])[:4]
        if self._start == ENVI_START and self.size_bytes > self._longest_header:
            raise SceneTooLarge(
                f"the header {clean_name(self._name)} is longer than {int(self._longest_header)} bytes: shorten it"
            )

    async def flush(self, *, is_last: bool = False) -> None:
        """Write what was gathered, once it is worth a thread's while."""
        if is_last or len(self._gathered) >= WRITE_BYTES:
            data, self._gathered = self._gathered, bytearray()
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
        # An upload must not take the room that running jobs need.
        if disk_usage(self._path.parent).free < self._least_free:
            raise StorageFull("the disk filled up during the upload: try again later")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def received(self) -> ReceivedFile:
        return ReceivedFile(self._path, self._name, self._start, self.size_bytes)


class _Form:
    """The parser's callbacks: files go to sinks, fields are kept."""

    def __init__(self, service: Service, folder: Path) -> None:
        self._service = service
        self._folder = folder
        self._header_name = self._header_value = b""
        self._disposition = b""
        self._parts = 0
        self._field: tuple[str, bytearray] | None = None
        self._sink: _Sink | None = None
        self._ended: list[_Sink] = []
        self._sinks: list[_Sink] = []
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
        return sum(file.size_bytes for file in self.upload.files)

    async def flush(self) -> None:
        """Write what the last chunk brought."""
        for sink in self._ended:
            await sink.flush(is_last=True)
            sink.close()
            self.upload.files.append(sink.received())
        self._ended.clear()
        if self._sink is not None:
            await self._sink.flush()

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise UploadBroken(f"the form has more than {MOST_PARTS} parts: send one scene and its options")
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
        if name == FILE_FIELD:
            file_name = options.get(b"filename", b"").decode("utf-8", "replace") or FILE_FIELD
            self._sink = _Sink(self._folder / f"part{len(self._sinks)}", file_name, self._service)
            self._sinks.append(self._sink)
        elif b"filename" in options or not name:
            raise UploadBroken(f"the file {name[:100]!r} has no place here: the field for files is `{FILE_FIELD}`")
        else:
            self._field = name, bytearray()

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._sink is not None:
            self._sink.add(data[start:end])
        elif self._field is not None:
            self._field[1].extend(data[start:end])
            if len(self._field[1]) > LONGEST_FIELD:
                raise UploadBroken(f"the field {self._field[0][:100]!r} is longer than {LONGEST_FIELD} bytes")

    def _end(self) -> None:
        if self._sink is not None:
            self._ended.append(self._sink)
        elif self._field is not None:
            name, value = self._field
            if name in self.upload.fields:
                raise UploadBroken(f"the field {name[:100]!r} stands there twice: send it once")
            self.upload.fields[name] = value.decode("utf-8", "replace")
        self._sink = self._field = None

    def _complete(self) -> None:
        self.is_complete = True
