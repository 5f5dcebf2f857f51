"""A tool call, and how JSON becomes one."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_DECODER = json.JSONDecoder(strict=False)  # models write line ends into strings as they are


def long_id() -> str:
    """An id as the OpenAI API has them."""
    return f"call_{uuid.uuid4().hex[:24]}"


def nine_letters() -> str:
    """An id as Mistral's templates ask for."""
    return uuid.uuid4().hex[:9]


@dataclass(frozen=True, slots=True)
class Call:
    """One call; arguments are JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=long_id)

    def as_dict(self) -> dict[str, Any]:
        """As in a message of the API."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


Piece = str | Call


def json_value(text: str) -> Any:
    """The value at the beginning of a text; None for what is no JSON.

    Templates that teach `{{"name": ..}}` (Qwen2.5) get their braces back doubled.
    """
    for start in (0, 1) if text.startswith("{{") else (0,):
        try:
            return _DECODER.raw_decode(text, start)[0]
        except (ValueError, RecursionError):
            continue
    return None


def calls_in(text: str, new_id: Callable[[], str] = long_id) -> list[Call]:
    """The calls that a JSON text consists of; none when it is anything else."""
    value = json_value(text)
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    calls = [_call(item, new_id) for item in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call is not None] if None not in calls else []


def _call(value: Any, new_id: Callable[[], str]) -> Call | None:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    given = [key for key in ("arguments", "parameters") if key in value]
    arguments = arguments_text(value[given[0]]) if given else None
    return None if arguments is None else Call(value["name"], arguments, new_id())


def arguments_text(arguments: Any) -> str | None:
    """Arguments (an object, its JSON text, or null) as JSON text; None for anything else."""
    if isinstance(arguments, str):
        arguments = json_value(arguments.strip()) if arguments.strip() else {}
    elif arguments is None:
        arguments = {}
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else None


class JsonEnd:
    """Finds where a JSON object or list ends in a text that grows; each character is looked at once."""

    _IN_STRING = re.compile(r'[^"\\]*')
    _BETWEEN = re.compile(r"[\s\w.,:+-]*")

    def __init__(self, start: int) -> None:
        self.place = start
        self._depth = 0
        self._in_string = False
        self._found: int | None = None

    def find(self, text: str) -> int | None:
        """The place after it; None while it goes on; -1 when it cannot be JSON."""
        while self._found is None:
            pattern = self._IN_STRING if self._in_string else self._BETWEEN
            self.place = pattern.match(text, self.place).end()  # type: ignore[union-attr]
            if self.place == len(text) or (text[self.place] == "\\" and self.place + 1 == len(text)):
                return None
            if not self._step(text[self.place]):
                self._found = -1
            elif not self._depth:
                self._found = self.place
        return self._found

    def _step(self, letter: str) -> bool:
        if letter == '"':
            self._in_string = not self._in_string
        elif self._in_string:  # a backslash and what it escapes
            self.place += 1
        elif letter in "{[":
            self._depth += 1
        elif letter in "}]":
            self._depth -= 1
        else:
            return False
        self.place += 1
        return True
