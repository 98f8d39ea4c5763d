"""uvicorn's HTTP protocol with limits on the length and duration of headers, and of bodies that nobody reads."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# The parser's time grows with the square of a header's length: 200 MB blocked the server for a minute.
MAX_HEAD_BYTES = 64 << 10
HEAD_TIMEOUT_S = 30.0
UNREAD_BYTES_PER_S = 10_000  # least rate of the rest of a body after the response


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request headers are too long, or that sends nothing useful for too long."""

    _head_bytes = 0  # received since the last complete headers or piece of a body
    _unread_bytes = 0  # of a body, since the timer was started
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES + len(data) and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._unread_bytes += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_timer()  # uvicorn's own timer ends with the next byte of a body

    def _start_timer(self) -> None:
        self._stop_timer()
        self._unread_bytes = 0
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_if_idle)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        is_responding = self.cycle is not None and not self.cycle.response_complete
        if is_responding or self.transport.is_closing():
            return
        if self._unread_bytes > UNREAD_BYTES_PER_S * HEAD_TIMEOUT_S:
            self._start_timer()  # a client that sends its whole body before it reads the response
        else:
            self.transport.close()
