"""The model is loaded again when that is wanted: requests in flight end before, those that come wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from colibri.errors import ColibriError
from colibri.server.protocol import Ready
from colibri.server.supervisor import Supervisor
from colibri.text import Tokenizer

POLL_S = 0.02  # between looks at whether all requests have ended

log = logging.getLogger("colibri.server")


class InFlight:
    """Counts the requests that were let in. While it is paused, those that come wait, and all go on afterwards."""

    def __init__(self) -> None:
        self.count = 0
        self._open = asyncio.Event()
        self._open.set()

    @property
    def paused(self) -> bool:
        """Whether those that come wait."""
        return not self._open.is_set()

    async def enter(self) -> None:
        """Wait to be let in; whoever was calls `leave` afterwards."""
        while self.paused:
            await self._open.wait()
        self.count += 1

    def leave(self) -> None:
        """A request was answered, or its answer goes on with tickets of the engine."""
        self.count -= 1

    def pause(self) -> None:
        """Let nobody in."""
        self._open.clear()

    def resume(self) -> None:
        """Let those in who wait, and who come."""
        self._open.set()


async def reload_when_wanted(
    wanted: asyncio.Event, in_flight: InFlight, supervisor: Supervisor, read_tokenizer: Callable[[], Tokenizer | None],
    loaded: Callable[[Ready, Tokenizer | None], None],
) -> None:  # fmt: skip
    """Obey `wanted` again and again. A model that cannot be read leaves everything as it is."""
    while await wanted.wait():
        wanted.clear()
        try:
            tokenizer = await asyncio.to_thread(read_tokenizer)
        except ColibriError as error:
            log.error("the model is not loaded again: %s", error)
            continue
        log.info("the model is loaded again when %d requests have ended", len(supervisor.tickets))
        in_flight.pause()
        supervisor.status.on_change()
        try:
            while in_flight.count or len(supervisor.tickets):
                await asyncio.sleep(POLL_S)
            await supervisor.reload()
            if supervisor.ready is not None and supervisor.status.now == "ready":
                loaded(supervisor.ready, tokenizer)
        finally:
            in_flight.resume()
            supervisor.status.on_change()
