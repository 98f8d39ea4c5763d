"""Limits on the length and duration of request headers, and of bodies that nobody reads."""

import socket
import threading
import time
from contextlib import suppress

import psutil
import pytest
import uvicorn

from hyperscene.service.api import connections
from tests.server import wait_for


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


@pytest.fixture
def hasty_port(monkeypatch):
    """The port of a server that refuses every request at once and waits a moment only."""
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.3)

    async def refuse(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(refuse, port=0, http=connections.BoundedProtocol, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize(
    "start",
    [
        b"GET /livez HTTP/1.1\r\nX-Long: ",
        b"POST /scenes HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n",
    ],
    ids=["headers", "the body of a refused request"],
)
def test_what_trickles_without_being_read_is_closed(hasty_port, start):
    with socket.create_connection(("127.0.0.1", hasty_port), timeout=0.02) as connection:
        connection.sendall(start)
        received, deadline = b"-", time.monotonic() + 20
        while received:
            assert time.monotonic() < deadline
            with suppress(TimeoutError):
                connection.sendall(b"x")
                received = connection.recv(4096)


def test_the_body_of_a_refused_request_is_received_to_its_end(hasty_port):
    """Some clients read the response only after they have sent the whole body."""
    with socket.create_connection(("127.0.0.1", hasty_port), timeout=10) as connection:
        connection.sendall(b"POST /scenes HTTP/1.1\r\nHost: here\r\nContent-Length: 10000000\r\n\r\n")
        for _ in range(10):
            time.sleep(0.1)
            connection.sendall(bytes(1_000_000))
        receive_until(connection, b"404")
