"""A sign of life on stderr for work that takes over a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from colibri.cli.output import WIPE, terminal_columns
from colibri.config import readable
from colibri.engine.generation import Generation

PATIENCE_S = 1.0  # quicker work says nothing
REDRAW_S = 0.2
LINE_S = 10.0  # between lines where stderr is a file
BAR = 20  # characters
BESIDE_BAR = 56  # columns that bytes and seconds take


class Progress:
    """Shows `message()` and the seconds gone by on stderr, from the first second on, until the with block ends.

    On a terminal it is one line that is redrawn and wiped away; elsewhere a new line every ten seconds. `share`: the
    part that is done, 0 to 1, from which the time left is estimated.
    """

    def __init__(self, message: Callable[[], str], share: Callable[[], float] | None = None) -> None:
        self._message = message
        self._share = share
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        try:
            self._thread.start()
        except RuntimeError:  # the system refuses a thread: the work goes on without a sign of life
            self._ended.set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop showing; harmless when called again."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()

    def _show(self) -> None:
        if self._ended.wait(PATIENCE_S):
            return
        columns = terminal_columns()
        terminal = columns is not None
        before, after = (WIPE, "") if terminal else ("", "\n")
        while True:
            sys.stderr.write(f"{before}{fitted(self._message(), self._seconds(), terminal_columns())}{after}")
            sys.stderr.flush()
            if self._ended.wait(REDRAW_S if terminal else LINE_S):
                break
        if terminal:
            sys.stderr.write(before)
            sys.stderr.flush()


    def _seconds(self) -> str:
        gone = time.monotonic() - self._start
        share = self._share() if self._share is not None else 0.0
        left = f", about {gone / share - gone:.0f} s left" if share > 0 else ""
        return f"  {gone:.1f} s{left}"


def fitted(message: str, seconds: str, columns: int | None) -> str:
    """One line of a terminal, which may not wrap: it could not be wiped away. What is too long loses its beginning."""
    line = message + seconds
    return line if columns is None or len(line) < columns else "…"[: columns - 1] + line[len(line) - columns + 2 :]


def prefilling(generation: Generation) -> Progress:
    """How far the prompt is, until the first token comes."""
    tokens = len(generation.prompt_token_ids)

    def share() -> float:
        return (generation.prefilled - generation.cached) / (tokens - generation.cached)

    return Progress(lambda: f"prefilling {generation.prefilled} of {tokens} tokens", share)


def counting(what: str) -> tuple[Progress, Callable[[int, int], None]]:
    """A bar for work on bytes, and what that work calls with the bytes done and the bytes in all."""
    first: list[int] = []  # what an interrupted run had done tells nothing of the speed
    now = [0, 0]

    def count(done: int, total: int) -> None:
        now[:] = done, total
        if not first:
            first.append(done)

    def share() -> float:
        return (now[0] - first[0]) / max(1, now[1] - first[0]) if first else 0.0

    def message() -> str:
        columns = terminal_columns()
        length = BAR if columns is None else max(0, min(BAR, columns - len(what) - BESIDE_BAR))
        bar = "#" * (length * now[0] // max(1, now[1]))
        drawn = f"[{bar:.<{length}}] " if length else ""
        return f"{what} {drawn}{readable(now[0])} of {readable(now[1])}"

    return Progress(message, share), count
