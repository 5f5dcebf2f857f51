"""Calls as a name and JSON between special tokens: Kimi-K2, DeepSeek-V3 and R1, DeepSeek-V3.1."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from colibri.text.formats.calls import Call, arguments_text
from colibri.text.formats.tagged import Body, CallReader, Tools, closes, skip_space


@dataclass(frozen=True, slots=True)
class Marks:
    """The special tokens of one format. head: what stands between `begin` and the JSON, with the name and the id."""

    section: str
    begin: str
    head: re.Pattern[str]
    end: str
    section_end: str


KIMI = Marks(
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
    re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*(?=\{)"),
    "<|tool_call_end|>", "<|tool_calls_section_end|>",
)  # fmt: skip
DEEPSEEK = Marks(
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",  # noqa: RUF001
    re.compile(r"\s*(?:function<｜tool▁sep｜>(?P<name>[\w.-]+)\s*```json\s*(?=\{)|"  # noqa: RUF001
               r"(?P<newer>[\w.-]+)\s*<｜tool▁sep｜>\s*(?=\{))"),  # noqa: RUF001
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",  # noqa: RUF001
)  # fmt: skip


class MarkedReader(CallReader):
    """Reads a section of calls."""

    def __init__(self, marks: Marks, tools: Tools, new_id: Callable[[], str]) -> None:
        super().__init__(tools, new_id)
        self._marks = marks
        self.openings = (marks.section,)  # type: ignore[misc]

    def body(self, text: str, last: bool) -> Body | None:
        """As the base class has it."""
        marks, calls, place = self._marks, list[Call](), 0
        while True:
            start = skip_space(text, place)
            if calls:
                end = closes(text, start, marks.section_end, last)
                if end is None or end >= 0:
                    return None if end is None else Body(calls, end)
            begun = closes(text, start, marks.begin, False)
            found = self._call(text, begun, last) if begun is not None and begun >= 0 else begun
            if isinstance(found, tuple):
                calls.append(found[0])
                place = found[1]
            elif found is None and not last:
                return None
            else:
                return Body(calls, place) if calls else Body()

    def _call(self, text: str, place: int, last: bool) -> tuple[Call, int] | int | None:
        """A call and the place behind it; None while it goes on, -1 when it is none."""
        head = self._marks.head.match(text, place)
        if head is None:
            return None if len(text) - place < 256 else -1
        end = self.json_end(text, head.end())
        arguments = arguments_text(text[head.end() : end]) if end is not None and end > 0 else None
        if end is None or arguments is None:
            return None if end is None else -1
        named = head.groupdict()
        call = Call(named.get("name") or named["newer"], arguments, named.get("id") or self.new_id())
        behind = skip_space(text, end)
        fence = closes(text, behind, "```", last)
        if fence is None:
            return None
        behind = skip_space(text, fence) if fence > 0 else behind
        closed = closes(text, behind, self._marks.end, last)
        return closed if closed is None else (call, end if closed < 0 else closed)
