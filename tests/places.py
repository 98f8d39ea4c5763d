"""Another place: an HTTP server on this machine that sends files in parts, counts what it sends, and can misbehave."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Place:
    """Files of a folder by their path; `s3://BUCKET/KEY` in GDAL's path style is just /BUCKET/KEY."""

    folder: Path
    port: int = 0
    sent_bytes: int = 0  # of files
    asked: list[str] = field(default_factory=list)  # paths, in order
    redirects: dict[str, str] = field(default_factory=dict)
    spared: int = 0  # answers to come before the first failure
    failures: int = 0  # answers of 503 to come
    sends_parts: bool = True
    stalls_after: int | None = None  # answers, after which nothing more is said until this is None again

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def s3_variables(self) -> dict[str, str]:
        """What points GDAL's S3 client here."""
        return {
            "AWS_S3_ENDPOINT": f"127.0.0.1:{self.port}", "AWS_HTTPS": "NO", "AWS_VIRTUAL_HOSTING": "FALSE",
            "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1",
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    place: Place

    def do_GET(self) -> None:
        place, path = self.place, unquote(urlsplit(self.path).path)
        place.asked.append(path)
        if place.stalls_after is not None:
            place.stalls_after = max(0, place.stalls_after - 1)
            while place.stalls_after == 0:
                time.sleep(0.05)
        file = place.folder / path.lstrip("/")
        if path in place.redirects:
            self._answer(302, b"", Location=place.redirects[path])
        elif place.failures and not place.spared:
            place.failures -= 1
            self._answer(503, b"")
        elif not file.is_file():
            self._answer(404, b"")
        else:
            place.spared = max(0, place.spared - 1)
            self._send(file)

    do_HEAD = do_GET  # noqa: N815 - http.server's own name

    def _send(self, file: Path) -> None:
        size, facts = file.stat().st_size, file.stat()
        tag = {"ETag": f'"{facts.st_mtime_ns}-{size}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not self.place.sends_parts:
            self._answer(200, file.read_bytes(), **tag)
            return
        first, last = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1)
        with file.open("rb") as opened:
            opened.seek(first)
            part = opened.read(last - first + 1)
        self._answer(206, part, **tag, **{"Content-Range": f"bytes {first}-{last}/{size}"})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # who asked has seen enough
                self.wfile.write(body)
            self.place.sent_bytes += len(body)

    def log_message(self, format: str, *values: object) -> None:
        pass


@contextmanager
def running_place(folder: Path) -> Iterator[Place]:
    """A place that is gone afterwards."""
    place = Place(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"place": place}))
    server.daemon_threads = True
    place.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield place
    finally:
        server.shutdown()
        server.server_close()
