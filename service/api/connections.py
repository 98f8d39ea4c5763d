"""Connections: uvicorn's, with a limit to what a caller may send before there is a request."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Beyond this, a header costs time with the square of its length: 200 MB held the server up for a minute.
LONGEST_HEAD = 64 << 10
HEAD_S = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose headers do not end, by their length or in time."""

    _fruitless_bytes = 0  # that brought neither a request nor a piece of its body
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._fruitless_bytes += len(data)
        super().data_received(data)
        if self._fruitless_bytes > LONGEST_HEAD + len(data) and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        self._wait_for_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._fruitless_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._fruitless_bytes = 0
        super().on_body(body)

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and not self.transport.is_closing():
            self.transport.close()
