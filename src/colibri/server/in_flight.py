"""Which requests are being answered, and a pause before the next ones."""

from __future__ import annotations

import asyncio


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
