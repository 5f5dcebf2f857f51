"""A chat's text as it comes from the model, taken apart into thought, answer and calls."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.server.reasoning import ReasoningSplitter
from colibri.server.tools import Call, Style, ToolParser


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of a message: one of the three."""

    content: str = ""
    reasoning: str = ""
    call: Call | None = None


class ChatText:
    """Feed text, get deltas; the deltas joined are the same however the text is cut."""

    def __init__(self, *, thinks: bool, inside_thought: bool, style: Style | None) -> None:
        self._reasoning = ReasoningSplitter(enabled=thinks, inside=inside_thought)
        self._tools = ToolParser(style) if style is not None else None

    def feed(self, text: str) -> list[Delta]:
        """What is certain now."""
        thought, answer = self._reasoning.feed(text)
        return self._deltas(thought, answer, last=False)

    def finish(self) -> list[Delta]:
        """The end of the text."""
        thought, answer = self._reasoning.finish()
        return self._deltas(thought, answer, last=True)

    def _deltas(self, thought: str, answer: str, *, last: bool) -> list[Delta]:
        deltas = [Delta(reasoning=thought)] if thought else []
        if self._tools is None:
            return [*deltas, Delta(content=answer)] if answer else deltas
        pieces = self._tools.feed(answer) if answer else []
        if last:
            pieces += self._tools.finish()
        return [*deltas, *(Delta(content=p) if isinstance(p, str) else Delta(call=p) for p in pieces)]
