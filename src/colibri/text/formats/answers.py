"""An answer as it comes from the model, taken apart into thought, content and calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from colibri.text.formats.calls import Call
from colibri.text.formats.reasoning import ReasoningSplitter
from colibri.text.formats.tagged import CallReader


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of an answer: one of the three."""

    content: str = ""
    reasoning: str = ""
    call: Call | None = None


class AnswerReader(Protocol):
    """Feed text, get deltas; the deltas joined are the same however the text is cut."""

    def feed(self, text: str) -> list[Delta]:
        """What is certain now."""

    def finish(self) -> list[Delta]:
        """The end of the text."""


class ThoughtThenAnswer:
    """What most models write: a thought between marks or none, then text with calls in it."""

    def __init__(self, thoughts: ReasoningSplitter, calls: CallReader | None) -> None:
        self._thoughts = thoughts
        self._calls = calls

    def feed(self, text: str) -> list[Delta]:
        """What is certain now."""
        thought, answer = self._thoughts.feed(text)
        return self._deltas(thought, answer, last=False)

    def finish(self) -> list[Delta]:
        """The end of the text."""
        thought, answer = self._thoughts.finish()
        return self._deltas(thought, answer, last=True)

    def _deltas(self, thought: str, answer: str, *, last: bool) -> list[Delta]:
        deltas = [Delta(reasoning=thought)] if thought else []
        if self._calls is None:
            return [*deltas, Delta(content=answer)] if answer else deltas
        pieces = self._calls.feed(answer) if answer else []
        if last:
            pieces += self._calls.finish()
        return [*deltas, *(Delta(content=p) if isinstance(p, str) else Delta(call=p) for p in pieces)]
