"""nginx in front of a server, with the configuration in deploy/nginx."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.cluster import free_port
from tests.lifetimes import ends_with_parent
from tests.programs import ROOT

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
OPENSSL = shutil.which("openssl")
CONFIGURATION = ROOT / "deploy" / "nginx" / "hyperscene.conf"
NAME = "localhost"
START_S = 20
# The settings of Debian's nginx.conf, with the test's own folders.
NGINX_CONF = """
{user}
worker_processes 2;
pid nginx.pid;
error_log error.log notice;
events {{}}
http {{
    sendfile on;
    tcp_nopush on;
    gzip on;
    access_log access.log;
    client_body_temp_path bodies;
    proxy_temp_path answers;
    fastcgi_temp_path other;
    uwsgi_temp_path other;
    scgi_temp_path other;
    include hyperscene.conf;
}}
"""


class RunningProxy:
    """An nginx on localhost, for http and https."""

    def __init__(self, folder: Path, service: str, port: int | None = None, under: str = "/") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.port, self._http_port, self._under = port or free_port(), free_port(), under
        self.url = f"https://{NAME}:{self.port}"
        self.http_url = f"http://{NAME}:{self._http_port}"
        self.certificate = folder / "hyperscene.crt"
        make_certificate(self.certificate, folder / "hyperscene.key")
        (folder / "hyperscene.conf").write_text(self._changed(CONFIGURATION.read_text("utf-8"), service), "utf-8")
        user = "user root;" if os.geteuid() == 0 else ""  # the test's user owns the folders
        (folder / "nginx.conf").write_text(NGINX_CONF.format(user=user))
        self.tls = ssl.create_default_context(cafile=str(self.certificate))
        self.client = httpx.Client(base_url=self.url, verify=self.tls, timeout=120, trust_env=False)
        self._start()

    def _changed(self, text: str, service: str) -> str:
        """The configuration with the test's names, addresses and certificates."""
        changes = {
            "server 127.0.0.1:8000;": f"server {service.removeprefix('http://')};",
            "https://hyperscene.example.org$": f"{self.url}$",
            "server_name hyperscene.example.org;": f"server_name {NAME};",
            "/etc/nginx/tls/": f"{self.folder}/",
            "listen 80;": f"listen 127.0.0.1:{self._http_port};",
            "listen 443 ssl;": f"listen 127.0.0.1:{self.port} ssl;",
            "listen [::]:80;": "",  # not every machine has IPv6
            "listen [::]:443 ssl;": "",
        }
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        if self._under != "/":  # as documented
            was, now = "location / {\n        proxy_pass http://hyperscene;", f"location {self._under} {{"
            assert was in text
            text = text.replace(was, f"{now} proxy_pass http://hyperscene/;")
            text = text.replace("location = /metrics", f"location = {self._under}metrics")
        return text

    def _start(self) -> None:
        assert NGINX is not None
        self.process = subprocess.Popen(
            [NGINX, "-p", str(self.folder), "-e", "error.log", "-c", "nginx.conf", "-g", "daemon off;"],
            preexec_fn=ends_with_parent(signal.SIGTERM),  # the workers outlive a killed master
        )
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                is_dead = self.process.poll() is not None or time.monotonic() > deadline
                assert not is_dead, self.errors()
                time.sleep(0.02)

    def errors(self) -> str:
        """nginx's error log."""
        return (self.folder / "error.log").read_text()

    def buffered(self) -> list[Path]:
        """Request and response bodies that nginx has buffered on disk."""
        return [path for name in ("bodies", "answers") for path in (self.folder / name).rglob("*") if path.is_file()]

    @contextmanager
    def connected(self) -> Iterator[ssl.SSLSocket]:
        """A TLS connection, to send raw bytes."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        with self.tls.wrap_socket(plain, server_hostname=NAME) as connection:  # closes the plain socket, too
            yield connection

    def stop(self) -> None:
        """Stop nginx."""
        self.client.close()
        self.process.terminate()
        self.process.wait(20)


@contextmanager
def running_proxy(folder: Path, service: str, port: int | None = None, under: str = "/") -> Iterator[RunningProxy]:
    """An nginx in front of a server, stopped afterwards."""
    proxy = RunningProxy(folder, service, port, under)
    try:
        yield proxy
    finally:
        proxy.stop()


def accepts_tls(proxy: RunningProxy, version: str) -> bool:
    """Whether nginx accepts a TLS version; the cipher option makes openssl offer old ones."""
    done = subprocess.run(
        [str(OPENSSL), "s_client", "-connect", f"127.0.0.1:{proxy.port}", f"-{version}", "-cipher", "ALL:@SECLEVEL=0"],
        input="", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return bool(re.search(r"Cipher is (?!\(NONE\))", done.stdout))


def make_certificate(certificate: Path, key: Path) -> None:
    """A self-signed certificate for localhost."""
    names = f"subjectAltName=DNS:{NAME},IP:127.0.0.1"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={NAME}", "-addext", names]
    subprocess.run([str(OPENSSL), "req", "-x509", *kind, *files], capture_output=True, check=True)
