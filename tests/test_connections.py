"""Requests whose headers have no end."""

import socket
import time

import psutil
import pytest


def connection(server):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def send_many(caller, piece):
    for _ in range(2000):
        caller.sendall(piece)


@pytest.mark.parametrize("piece", [b"x" * 65536, b"X-Name: value\r\n" * 4096], ids=["one header", "many headers"])
def test_headers_without_end_are_cut_off_in_bounded_memory(server, piece):
    before = psutil.Process(server.process.pid).memory_info().rss
    with connection(server) as caller:
        caller.sendall(b"GET /livez HTTP/1.1\r\nHost: here\r\nX-Long: ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_many(caller, piece)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 20 << 20
    assert server.client.get("/livez").status_code == 200


def test_long_headers_that_end_are_answered(client):
    assert client.get("/livez", headers={"X-Long": "x" * 50_000}).status_code == 200


def test_a_second_request_on_a_connection_has_its_own_bound(server):
    with connection(server) as caller:
        for _ in range(5):
            caller.sendall(b"GET /livez HTTP/1.1\r\nHost: here\r\nX-Long: " + b"x" * 50_000 + b"\r\n\r\n")
            answer = b""
            while b'{"status":"live"}' not in answer:
                answer += caller.recv(65536)
            time.sleep(0.01)
