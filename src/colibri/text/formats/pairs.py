"""Calls as names and values between tags, without quotes: Qwen3-Coder and Qwen3.5, GLM-4.5, MiniMax-M2.

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>

Values are not escaped, so a closing tag ends one only where the next parameter or the end of the call follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from colibri.text.formats.calls import Call
from colibri.text.formats.hermes import HermesReader
from colibri.text.formats.tagged import Body, CallReader, Tools, closes, skip_space
from colibri.text.formats.typed import parameters_of, typed


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one format. begin: what every call begins with; end: what closes it, before `closing`."""

    openings: tuple[str, ...]
    begin: str
    call: re.Pattern[str]
    parameter: re.Pattern[str]
    parameter_begin: str
    value_end: str
    end: str
    closing: str


CODER = Tags(
    ("<tool_call>", "<function="), "<function=", re.compile(r"<function=([^<>\n]+)>"),
    re.compile(r"<parameter=([^<>\n]+)>"), "<parameter=", "</parameter>", "</function>", "</tool_call>",
)  # fmt: skip
GLM = Tags(
    ("<tool_call>",), "", re.compile(r"([\w.-]+)"), re.compile(r"<arg_key>([^<]+)</arg_key>\s*<arg_value>"),
    "<arg_key>", "</arg_value>", "</tool_call>", "",
)  # fmt: skip
MINIMAX = Tags(
    ("<minimax:tool_call>",), "<invoke name=", re.compile(r'<invoke name="?([^"<>\n]+)"?>'),
    re.compile(r'<parameter name="?([^"<>\n]+)"?>'), "<parameter name=", "</parameter>", "</invoke>",
    "</minimax:tool_call>",
)  # fmt: skip


class PairsReader(CallReader):
    """Reads calls of one kind of tags."""

    def __init__(self, tags: Tags, tools: Tools, new_id: Callable[[], str]) -> None:
        super().__init__(tools, new_id)
        self._tags = tags
        self.openings = tags.openings  # type: ignore[misc]
        self._seen = 0  # of what is held: no end of a call before it
        self._json: HermesReader | None = None

    def open(self, mark: str) -> None:
        """As the base class has it."""
        super().open(mark)
        self._seen = 0

    def body(self, text: str, last: bool) -> Body | None:
        """As the base class has it; a mark that belongs to the call itself is read again with it."""
        again = self._opening if self._opening == self._tags.begin else ""
        found = self._section(f"{again}{text}", last)
        return found if not again or found is None else Body(found.calls, max(0, found.used - len(again)))

    def _section(self, text: str, last: bool) -> Body | None:
        start, tags = skip_space(text, 0), self._tags
        if text.startswith("{", start) and self.openings[0] == HermesReader.openings[0]:
            return self._as_json(text, last)
        if not text.startswith(tags.begin, start):
            return None if tags.begin.startswith(text[start:]) and not last else Body()
        if not last:
            place = text.find(tags.end, self._seen)
            if place < 0:
                self._seen = max(0, len(text) - len(tags.end))
                return None
            self._seen = place + 1
        return self._calls(text, last)

    def _as_json(self, text: str, last: bool) -> Body | None:
        """Some models fall back to the older way."""
        if self._json is None or not self._ends:
            self._json = HermesReader(self.tools, self.new_id)
            self._ends = self._json._ends
        return self._json.body(text, last)

    def _calls(self, text: str, last: bool) -> Body | None:
        calls: list[Call] = []
        place, tags = 0, self._tags
        while True:
            start = skip_space(text, place)
            if calls:
                end = closes(text, start, tags.closing, last)
                if end is None or end >= 0:
                    return None if end is None else Body(calls, end)
                if not text.startswith(tags.begin, start):
                    return None if tags.begin.startswith(text[start:]) and not last else Body(calls, place)
            found = self._call(text, start)
            if found is None:
                return None if not last else Body(calls, place) if calls else Body()
            if isinstance(found, str):
                return Body(calls, place) if calls else Body()
            call, place = found
            calls.append(call)

    def _call(self, text: str, place: int) -> tuple[Call, int] | str | None:
        """A call and the place behind it; None while it goes on, a reason when it is none."""
        tags = self._tags
        head = tags.call.match(text, place)
        if head is None:
            return "no name"
        name, place = head[1].strip(), head.end()
        schema = parameters_of(self.tools, name)
        arguments: dict[str, Any] = {}
        while True:
            start = skip_space(text, place)
            if text.startswith(tags.end, start):
                return Call(name, json.dumps(arguments, ensure_ascii=False), self.new_id()), start + len(tags.end)
            parameter = tags.parameter.match(text, start)
            if parameter is None:
                more = any(mark.startswith(text[start:]) for mark in (tags.parameter_begin, tags.end))
                return None if more or text.startswith(tags.parameter_begin, start) else "no parameter"
            found = self._value_end(text, parameter.end())
            if found is None:
                return None
            value, place = found
            arguments[parameter[1].strip()] = typed(value, parameter[1].strip(), schema)

    def _value_end(self, text: str, start: int) -> tuple[str, int] | None:
        """A value without the line ends around it, and the place behind its closing tag; None while it goes on."""
        tags, place = self._tags, start
        while (place := text.find(tags.value_end, place)) >= 0:
            behind = place + len(tags.value_end)
            following = skip_space(text, behind)
            if any(text.startswith(mark, following) for mark in (tags.parameter_begin, tags.end)):
                return text[start:place].removeprefix("\n").removesuffix("\n"), behind
            place = behind
        return None
