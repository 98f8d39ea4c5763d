"""The health check of a container, by its role: the service, a worker of a cluster, or the cluster's scheduler.

Run by the image: python -m hyperscene.service.health_check
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address
from pathlib import Path

HEARTBEAT_VARIABLE = "HYPERSCENE_HEARTBEAT"  # the file whose mtime shows that a worker is in its cluster
FIRST_PROCESS = Path("/proc/1/cmdline")
TIMEOUT_S = 4.0
SILENT_S = 15.0


class Unhealthy(Exception):
    """The container does not do its work; the message says why."""


def check(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise Unhealthy if a container that was started with this command does not do its work."""
    role = next((word for word in command if word in CHECKS), None)
    if role is not None:  # other commands end by themselves
        CHECKS[role](command, environment)


def _check_service(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """/readyz and not /livez: it says whether the service can work."""
    host = _option(command, "--host") or environment.get("HYPERSCENE_HOST")
    port = _option(command, "--port") or environment.get("HYPERSCENE_PORT") or "8000"
    connection = HTTPConnection(_reachable(host), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        if response.status != 200:
            raise Unhealthy(_reason(response.read()))
    finally:
        connection.close()


def _reason(body: bytes) -> str:
    """What /readyz says, in one line."""
    with suppress(ValueError, LookupError, TypeError):
        return str(json.loads(body)["detail"])
    return body.decode("utf-8", "replace")


def _check_worker(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """A worker serves nothing that could be requested; it touches a file while it is in the cluster."""
    file = Path(environment[HEARTBEAT_VARIABLE])
    if not file.exists():
        raise Unhealthy("the worker has not joined the scheduler yet")
    age_s = time.time() - file.stat().st_mtime
    if age_s > SILENT_S:
        raise Unhealthy(f"the worker has not been connected to the scheduler for {age_s:.0f} s")


def _check_scheduler(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Dask's scheduler greets who connects; a port alone would also be open while its event loop hangs."""
    host, port = _reachable(_option(command, "--host")), int(_option(command, "--port") or 8786)
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        ca = _option(command, "--tls-ca-file")
        if ca is None:
            _greet(connection)
        else:
            context = ssl.create_default_context(cafile=ca)
            context.check_hostname = False  # the certificate has the name that others know the scheduler by
            context.load_cert_chain(_option(command, "--tls-cert") or "", _option(command, "--tls-key"))
            with context.wrap_socket(connection) as encrypted:
                _greet(encrypted)


def _greet(connection: socket.socket) -> None:
    """Wait for the greeting and send the same back; without one, the scheduler would log each check."""
    greeting = connection.recv(4096)
    if not greeting:
        raise Unhealthy("the scheduler closes connections without a greeting")
    connection.sendall(greeting)


CHECKS = {"serve": _check_service, "worker": _check_worker, "scheduler": _check_scheduler}


def _option(command: Sequence[str], name: str) -> str | None:
    """The value of an option, given as `--name value` or `--name=value`."""
    for word, following in zip(command, [*command[1:], None], strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _reachable(host: str | None) -> str:
    """The address to connect to for an address to listen on."""
    address = (host or "").rpartition("//")[2]
    with suppress(ValueError):  # a name
        address = "" if ip_address(address).is_unspecified else address
    return address or "127.0.0.1"


def main() -> int:
    """Check this container, whose command is that of its first process; returns 0 healthy, 1 unhealthy."""
    command = FIRST_PROCESS.read_text().split("\0")
    try:
        check(command, os.environ)
    except (Unhealthy, OSError, HTTPException) as error:
        print(str(error) or type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
