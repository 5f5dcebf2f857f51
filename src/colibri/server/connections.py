"""HTTP connections with bounds: a client that sends or takes nothing is not waited for, one that is gone is noticed."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from colibri.server.problems import ApiError

MAX_HEADER_BYTES = 32 << 10
BUFFER_BYTES = 32 << 10  # that are sent ahead of a client, here and in the system
PROBE_S = 30  # without a word from the other side before the system asks whether it is there


def protocol_with(timeout_s: float) -> type[H11Protocol]:
    """A protocol for uvicorn that gives a client so many seconds for the head of a request and to take what is sent."""

    class Bounded(H11Protocol):
        """Closes a connection whose client keeps silent in the middle of something."""

        _head: asyncio.TimerHandle | None = None
        _taking: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(BUFFER_BYTES)
            _notice_its_end(transport.get_extra_info("socket"), round(timeout_s))
            self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._head, self._taking):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._taking = self.loop.call_later(timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            if self._taking is not None:
                self._taking.cancel()
                self._taking = None
            super().resume_writing()

        def send_400_response(self, msg: str) -> None:
            """What is no HTTP request: an error object as everywhere, then the end."""
            too_large = len(self.conn.trailing_data[0]) > MAX_HEADER_BYTES
            error = headers_too_large() if too_large else ApiError(400, msg)
            body = json.dumps(error.body()).encode()
            headers = [
                (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]  # fmt: skip
            for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _wait_for_head(self) -> None:
            """The time runs from the first moment of waiting to the end of the head, whatever trickles in between.

            What is left of a body after its request was answered is waited for as the next head is.
            """
            waiting = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
            if waiting and self._head is None:
                self._head = self.loop.call_later(timeout_s, self.transport.close)
            elif not waiting and self._head is not None:
                self._head.cancel()
                self._head = None

    return Bounded


def headers_too_large() -> ApiError:
    """More than MAX_HEADER_BYTES."""
    return ApiError(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes.")


def _notice_its_end(connection: Any, timeout_s: int) -> None:
    """A machine that was switched off or cut from the network never says so: the system must ask."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    for name, value in (("KEEPIDLE", PROBE_S), ("KEEPINTVL", 10), ("KEEPCNT", 3), ("USER_TIMEOUT", 1000 * timeout_s)):
        if hasattr(socket, f"TCP_{name}"):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)
