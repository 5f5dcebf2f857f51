"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Iterable

from colibri.errors import ArgumentError


class StopMatcher:
    """Passes text on until a stop string appears, which may come in parts.

    The stop that is complete first wins (of several complete at the same character, the longest), so the result does
    not depend on how the text is cut into chunks. Text that may be the beginning of a stop is held back; nothing of a
    stop, and nothing after it, is ever passed on, and nothing is passed on twice.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        if isinstance(stops, str):
            stops = (stops,)
        self._stops = tuple(stops)
        for stop in self._stops:
            if not isinstance(stop, str) or not stop:
                raise ArgumentError(f"stop: found {stop!r}, expected strings of at least one character")
        self.held = ""  # text that waits for what comes next
        self.stopped: str | None = None  # the stop string that ended the text, if one did

    def feed(self, text: str) -> str:
        """The text that can be passed on now."""
        if not self._stops:
            return text
        if self.stopped is not None:
            return ""
        pending = self.held + text
        found = self._first(pending)
        if found is not None:
            start, self.stopped = found
            self.held = ""
            return pending[:start]
        keep = self._tail(pending)
        self.held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def finish(self) -> str:
        """The end of the text: what was held back turned out to be no stop."""
        text, self.held = self.held, ""
        return text

    def _first(self, text: str) -> tuple[int, str] | None:
        """Start and stop of the match that ends first; the longest of those that end together."""
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _tail(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop."""
        longest = min(len(text), max((len(stop) for stop in self._stops), default=1) - 1)
        for length in range(longest, 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
