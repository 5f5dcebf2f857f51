"""The part that formats of tool calls have in common: text, an opening mark, what is to be read behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from colibri.text.formats.calls import Call, JsonEnd, Piece, long_id
from colibri.text.formats.reasoning import partial

Tools = Sequence[dict[str, Any]]
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Body:
    """What was read behind an opening mark: calls, and how many characters they took. No call: the mark was text."""

    calls: Sequence[Call] = ()
    used: int = 0


class CallReader:
    """Feed text, get pieces of text and calls, in order; nothing is lost when a call is malformed or unclosed.

    The pieces joined do not depend on how the text is cut. A format says its opening marks and reads what is behind
    one in `body`.
    """

    openings: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tools: Tools = (), new_id: Callable[[], str] = long_id) -> None:
        self.tools = tools
        self.new_id = new_id
        self._held = ""
        self._opening: str | None = None  # the mark behind which `_held` begins
        self._after_call = False
        self._ends: dict[int, JsonEnd] = {}

    def body(self, text: str, last: bool) -> Body | None:
        """What `text`, which follows an opening mark, holds; None while it may be decided later, never at the last."""
        raise NotImplementedError

    def feed(self, text: str) -> list[Piece]:
        """What is certain now."""
        self._held += text
        return list(self._pieces(last=False))

    def finish(self) -> list[Piece]:
        """The end of the text: an unclosed call is a call if it is complete, else text."""
        return list(self._pieces(last=True))

    def json_end(self, text: str, start: int) -> int | None:
        """Where the JSON value that begins at `start` ends; None while it goes on, -1 when it is none."""
        return self._ends.setdefault(start, JsonEnd(start)).find(text)

    def open(self, mark: str) -> None:
        """What is held begins behind this mark."""
        self._opening, self._ends = mark, {}

    def _pieces(self, last: bool) -> Iterator[Piece]:
        while True:
            if self._opening is not None:
                found = self.body(self._held, last)
                if found is None:
                    return
                if found.calls:
                    self._after_call = True
                    yield from found.calls
                else:
                    yield from self._text(self._opening)
                self._held, self._opening = self._held[found.used :], None
            place, mark = self._next_opening()
            if mark is None:
                break
            yield from self._text(self._held[:place])
            self._held = self._held[place + len(mark) :]
            self.open(mark)
        keep = 0 if last else max((partial(self._held, mark) for mark in self.openings), default=0)
        text = self._held[: len(self._held) - keep]
        if self._after_call and not text.strip() and not last:
            return  # white space between calls waits for what follows
        self._held = self._held[len(text) :]
        yield from self._text(text)

    def _next_opening(self) -> tuple[int, str | None]:
        found = [(place, mark) for mark in self.openings if (place := self._held.find(mark)) >= 0]
        return min(found, default=(0, None))

    def _text(self, text: str) -> Iterator[Piece]:
        if text and not (self._after_call and not text.strip()):
            self._after_call = False
            yield text


def skip_space(text: str, place: int) -> int:
    """The next place with a letter."""
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]


def closes(text: str, place: int, mark: str, last: bool) -> int | None:
    """The place behind a closing mark at `place`, which a text that ends need not have whole.

    None while it may still come; -1 when something else stands there.
    """
    if text.startswith(mark, place):
        return place + len(mark)
    if mark.startswith(text[place:]):
        return len(text) if last else None
    return -1
