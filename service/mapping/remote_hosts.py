"""Connections to the hosts of remote files: which addresses are allowed, and how slow a response may be."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

CONNECT_S, IDLE_S, REQUEST_S = 10.0, 10.0, 600.0
SLOW_S, SLOW_BYTES_PER_S = 20.0, 1000.0  # the least rate of a response, and from when it holds
SAFE_IN_QUERY = "/?%:@!$&'()*+,;=~"
NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True)
class RangeRequest:
    """A GET request for a range of a file."""

    url: str  # whose scheme and host are connected to
    target: str
    headers: Mapping[str, str] = field(repr=False)
    is_trusted: bool = False  # the operator named the host, whatever its address is


def is_allowed(address: str, networks: tuple[str, ...]) -> bool:
    """Whether a host's address is public, or in a network that the operator listed."""
    ip = ip_address(address.partition("%")[0])
    if any(ip in ip_network(network) for network in networks):
        return True
    plain = _embedded(ip) if isinstance(ip, IPv6Address) else ip
    return plain.is_global and not plain.is_multicast


def _embedded(ip: IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that packets to an IPv6 address may end at."""
    if ip in NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    teredo = ip.teredo[1] if ip.teredo else None
    return ip.ipv4_mapped or ip.sixtofour or teredo or ip


def plain_request(href: str, wanted: str) -> RangeRequest:
    """The request for a range of a file at an http:// or https:// URL."""
    parts = urlsplit(href)
    target = quote(parts.path, safe="/%:@!$&'()*+,;=~") + (
        f"?{quote(parts.query, safe=SAFE_IN_QUERY)}" if parts.query else ""
    )
    return RangeRequest(href, target, {"Range": wanted, "Accept-Encoding": "identity"})


def connect(request: RangeRequest, networks: tuple[str, ...]) -> http.client.HTTPConnection | None:
    """A connection to an address that was resolved once and checked; None if no address is allowed."""
    parts = urlsplit(request.url)
    is_tls = parts.scheme.lower() == "https"
    host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
    connection = (http.client.HTTPSConnection if is_tls else http.client.HTTPConnection)(host, port)
    connection.auto_open = 0  # http.client would resolve the name again
    failure: OSError | None = None
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if not (request.is_trusted or is_allowed(str(address[0]), networks)):
            continue
        try:
            connection.sock = _BoundedSocket(_open_socket(str(address[0]), port, host if is_tls else None))
            return connection
        except OSError as error:
            failure = error
    if failure is not None:
        raise failure
    return None


def _open_socket(address: str, port: int, tls_host: str | None) -> socket.socket:
    sock = socket.create_connection((address, port), CONNECT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(IDLE_S)
        return sock if tls_host is None else _tls_context().wrap_socket(sock, server_hostname=tls_host)
    except BaseException:
        sock.close()
        raise


@cache
def _tls_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()


class _BoundedSocket:
    """A socket for http.client whose responses have a least rate and a time limit."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.sendall, self.close = sock.sendall, sock.close

    def makefile(self, mode: str) -> io.BufferedReader:
        """The next response; the socket stays open until it is closed, too."""
        return io.BufferedReader(_BoundedResponse(self._sock))


class _BoundedResponse(io.RawIOBase):
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)
        self._began, self._received = time.monotonic(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        elapsed_s = time.monotonic() - self._began
        is_slow = elapsed_s > SLOW_S and self._received < SLOW_BYTES_PER_S * elapsed_s
        if is_slow or elapsed_s > REQUEST_S:
            raise TimeoutError("too slow")
        count = self._file.readinto(buffer) or 0
        self._received += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
