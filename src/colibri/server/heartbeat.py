"""Whether the engine gets anywhere: it tells how far it is, and the web server counts the seconds without news.

A step may take minutes when experts come from a slow disk, but even then some are found or read every second. So not
the length of a step is bounded, but the time in which nothing at all moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from colibri.errors import starting_threads
from colibri.server import protocol

BEAT_S = 1.0


class Heart:
    """A thread of the engine process that sends `progress()` every second; it ends with the web server."""

    def __init__(self, send: Callable[[protocol.Event], None]) -> None:
        self.progress: Callable[[], int] | None = None  # until it is set, to be alive is enough
        self._send = send
        with starting_threads("send heartbeats"):
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _beat(self) -> None:
        wait = threading.Event()
        beats = 0
        try:
            while not wait.wait(BEAT_S):
                beats += 1
                self._send(protocol.Alive(beats if self.progress is None else self.progress()))
        except OSError:
            return  # the engine's own thread notices, too


class Watchdog:
    """Counts the seconds in which an engine got nowhere.

    They are counted in ticks of this process, so that the time in which this process itself stood still is no fault of
    the engine.
    """

    def __init__(self, limit_s: float) -> None:
        self.silent_s = 0.0
        self._limit_s = limit_s
        self._progress = -1

    def heard(self, event: protocol.Event) -> None:
        """Anything but a beat that repeats the last one is news."""
        progress = event.progress if isinstance(event, protocol.Alive) else None
        if progress != self._progress:
            self.silent_s = 0.0
        if progress is not None:
            self._progress = progress

    def tick(self) -> bool:
        """To be called every BEAT_S; True once the engine must be taken for hung."""
        self.silent_s += BEAT_S
        return self.silent_s > self._limit_s

    @property
    def stalled(self) -> bool:
        """Whether it has been silent for so long that operators should know."""
        return self.silent_s > min(10.0, self._limit_s / 4)
