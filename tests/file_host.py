"""A remote host: an HTTP server on this machine that serves byte ranges, counts them, and can fail or stall."""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class FileHost:
    """Files of a folder by their path; `s3://BUCKET/KEY` in GDAL's path style is just /BUCKET/KEY."""

    folder: Path
    port: int = 0
    sent_bytes: int = 0  # of files
    requests: list[str] = field(default_factory=list)  # paths, in order
    redirects: dict[str, str] = field(default_factory=dict)
    redirects_after: int = 0  # responses before the redirects are sent
    tags: list[str] = field(default_factory=list)  # ETags of the next responses, instead of the file's
    pause_s: float = 0.0  # between the bytes of a response, which are then sent one by one
    spared: int = 0  # responses before the first failure
    failures: int = 0  # responses with status 503
    sends_parts: bool = True
    stalls_after: int | None = None  # responses before it stalls, until this is None again

    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def s3_variables(self) -> dict[str, str]:
        """Environment variables that point GDAL's S3 client here."""
        return {
            "AWS_S3_ENDPOINT": f"127.0.0.1:{self.port}", "AWS_HTTPS": "NO", "AWS_VIRTUAL_HOSTING": "FALSE",
            "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1",
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    host: FileHost

    def do_GET(self) -> None:
        host, path = self.host, unquote(urlsplit(self.path).path)
        host.requests.append(path)
        if host.stalls_after is not None:
            host.stalls_after = max(0, host.stalls_after - 1)
            while host.stalls_after == 0:
                time.sleep(0.05)
        file = host.folder / path.lstrip("/")
        if path in host.redirects and not host.redirects_after:
            self._redirect(host.redirects[path])
        elif host.failures and not host.spared:
            host.failures -= 1
            self._respond(503, b"")
        elif not file.is_file():
            self._respond(404, b"")
        else:
            host.spared = max(0, host.spared - 1)
            host.redirects_after = max(0, host.redirects_after - 1)
            self._send(file)

    do_HEAD = do_GET  # noqa: N815 - http.server's own name

    def _redirect(self, url: str) -> None:
        """A redirect as web servers send it, with the error document of S3."""
        endpoint = f"<Endpoint>{urlsplit(url).netloc}</Endpoint><Bucket>bucket</Bucket>"
        document = f"<Error><Code>TemporaryRedirect</Code><Message>moved</Message>{endpoint}</Error>"
        self._respond(307, document.encode(), **{"Location": url, "Content-Type": "application/xml"})

    def _send(self, file: Path) -> None:
        size, facts = file.stat().st_size, file.stat()
        value = self.host.tags.pop(0) if self.host.tags else f"{facts.st_mtime_ns}-{size}"
        tag = {"ETag": f'"{value}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not self.host.sends_parts:
            self._respond(200, file.read_bytes(), **tag)
            return
        first, last = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1)
        with file.open("rb") as opened:
            opened.seek(first)
            part = opened.read(last - first + 1)
        self._respond(206, part, **tag, **{"Content-Range": f"bytes {first}-{last}/{size}"})

    def _respond(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # the client has disconnected
                for byte in body if self.host.pause_s else ():
                    self.wfile.write(bytes([byte]))
                    time.sleep(self.host.pause_s)
                if not self.host.pause_s:
                    self.wfile.write(body)
            self.host.sent_bytes += len(body)

    def log_message(self, format: str, *values: object) -> None:
        pass


@contextmanager
def running_file_host(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[FileHost]:
    """A host that serves the files of a folder."""
    host = FileHost(folder, scheme="http" if tls is None else "https")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"host": host}))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # a client that disconnects
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    host.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
