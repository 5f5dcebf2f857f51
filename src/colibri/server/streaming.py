"""Server-sent events, and requests whose client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from colibri.server.admission import Outputs
from colibri.server.problems import ApiError
from colibri.server.protocol import Output

T = TypeVar("T")

CLIENT_LEFT = 499  # the status that nginx made common; nobody is there to read it
DONE = "data: [DONE]\n\n"

log = logging.getLogger("colibri.server")


class Chunks(Protocol):
    """Makes the objects of a stream from what the sequences get."""

    def begin(self) -> list[dict[str, Any]]: ...

    def take(self, index: int, output: Output) -> list[dict[str, Any]]: ...

    def end(self) -> list[dict[str, Any]]: ...


def event(value: Any) -> str:
    """One event."""
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


async def left(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _error_event(error: ApiError) -> str:
    return event(error.body())


@dataclass(frozen=True, slots=True)
class Wire:
    """How the objects of a stream are written. silence: what is sent when nothing was said for a while."""

    write: Callable[[Any], str] = event
    error: Callable[[ApiError], str] = _error_event
    done: str = DONE
    silence: str = ": keep-alive\n\n"
    media_type: str = "text/event-stream"


OPENAI = Wire()


async def stream(
    outputs: Outputs, chunks: Chunks, keep_alive_s: float, wire: Wire = OPENAI
) -> AsyncGenerator[str, None]:
    """The events of a request, and their end. An error is the last event."""
    last = time.monotonic()
    running = len(outputs)
    try:
        for chunk in chunks.begin():
            yield wire.write(chunk)
        while running:
            found = await outputs.next(keep_alive_s)
            made = chunks.take(*found) if found is not None else []
            running -= found is not None and found[1].finish is not None
            for chunk in made:
                yield wire.write(chunk)
            now = time.monotonic()
            if made:
                last = now
            elif now - last >= keep_alive_s:
                last = now
                yield wire.silence
        for chunk in chunks.end():
            yield wire.write(chunk)
        yield wire.done
    except ApiError as error:
        yield wire.error(error)
    except Exception:
        log.exception("a stream failed")
        yield wire.error(ApiError(500, "The server failed; its log has the details."))


class EventStream(Response):
    """Sends events until they end or the client leaves, then closes their source."""

    def __init__(
        self, events: AsyncGenerator[str, None], close: contextlib.AbstractContextManager[Any], wire: Wire = OPENAI
    ) -> None:
        super().__init__(media_type=wire.media_type, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        with self._close:
            tasks = [asyncio.ensure_future(left(receive)), asyncio.ensure_future(self._send(send))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with contextlib.suppress(OSError):
            async for text in self._events:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
                await asyncio.sleep(0)  # many tokens may have come: between two, it can be noticed that the client left
            await send({"type": "http.response.body", "body": b""})


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves before it is there."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(left(request.receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise ApiError(CLIENT_LEFT, "The client left.")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
