"""Limits on the length of request headers."""

import socket

import psutil
import pytest


@pytest.fixture
def connection(server):
    """A TCP connection to the server."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as opened:
        yield opened


def receive_until(connection, expected):
    """Receive up to and including these bytes; fail if the connection is closed before."""
    received = b""
    while expected not in received:
        data = connection.recv(65536)
        assert data, f"the connection was closed after {received!r}"
        received += data
    return received


def send_repeatedly(connection, data):
    for _ in range(2000):
        connection.sendall(data)


@pytest.mark.parametrize("data", [b"x" * 65536, b"X-Name: value\r\n" * 4096], ids=["one header", "many headers"])
def test_endless_headers_close_the_connection_and_use_bounded_memory(server, connection, data):
    before = psutil.Process(server.process.pid).memory_info().rss
    connection.sendall(b"GET /livez HTTP/1.1\r\nHost: here\r\nX-Long: ")
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        send_repeatedly(connection, data)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 20 << 20
    assert server.client.get("/livez").status_code == 200


def test_long_headers_within_the_limit_are_accepted(client):
    assert client.get("/livez", headers={"X-Long": "x" * 50_000}).status_code == 200


def test_the_limit_applies_to_each_request_of_a_connection(connection):
    for _ in range(5):
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: here\r\nX-Long: " + b"x" * 50_000 + b"\r\n\r\n")
        receive_until(connection, b'{"status":"live"}')


def test_receiving_from_a_closed_connection_fails_instead_of_waiting():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 400 Bad Request")
        theirs.close()
        with pytest.raises(AssertionError, match="the connection was closed after"):
            receive_until(ours, b'{"status":"live"}')
