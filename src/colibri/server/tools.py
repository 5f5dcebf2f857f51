"""Tool calls in a model's text: Hermes and Qwen tags, Mistral's marker, plain JSON. What is no call stays text."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from colibri.server.reasoning import partial

Style = Literal["hermes", "mistral", "json"]

MISTRAL = "[TOOL_CALLS]"
MISTRAL_ARGUMENTS = "[ARGS]"
_TAGS = {"hermes": ("<tool_call>", "</tool_call>"), "mistral": (MISTRAL, MISTRAL)}


@dataclass(frozen=True, slots=True)
class Call:
    """One call; arguments are JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def as_dict(self) -> dict[str, Any]:
        """As in a message of the API."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


Piece = str | Call


def style_of(template: str | None) -> Style:
    """How the model that a chat template belongs to writes its calls."""
    if template is not None and MISTRAL in template:
        return "mistral"
    if template is not None and "<tool_call>" in template:
        return "hermes"
    return "json"


def takes_tools(template: str | None) -> bool:
    """Whether a chat template shows the tools to the model."""
    return template is not None and "tools" in template


class ToolParser:
    """Feed text, get pieces of text and calls, in order; nothing is lost when a call is malformed or unclosed."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._held = ""
        self._inside = False
        self._after_call = False

    def feed(self, text: str) -> list[Piece]:
        """What is certain now."""
        self._held += text
        return list(self._plain() if self._style == "json" else self._tagged())

    def finish(self) -> list[Piece]:
        """The end of the text: an unclosed call is a call if it is complete JSON, else text."""
        rest, self._held = self._held, ""
        if not self._inside:
            return [rest] if rest and not (self._after_call and not rest.strip()) else []
        opening = "" if self._style == "json" else _TAGS[self._style][0]
        calls = self._calls(rest)
        return list(calls) or [opening + rest]

    def _calls(self, body: str) -> Sequence[Piece]:
        if self._style == "mistral" and MISTRAL_ARGUMENTS in body:
            name, _, arguments = body.partition(MISTRAL_ARGUMENTS)
            return calls_in(json.dumps({"name": name.strip(), "arguments": arguments.strip()}))
        return calls_in(body)

    def _plain(self) -> Iterator[Piece]:
        """A reply that begins like JSON is kept until its end; every other one is text at once."""
        begun = self._held.lstrip()
        if self._inside or not begun:
            return
        if begun[0] in "{[" or "```json".startswith(begun[:7]):
            self._inside = True
            return
        self._inside, self._style = False, "hermes"  # prose: only tags could still be calls
        yield from self._tagged()

    def _tagged(self) -> Iterator[Piece]:
        opening, closing = _TAGS[self._style]
        while True:
            if self._inside:
                place = self._held.find(closing)
                if place < 0:
                    return
                body, self._held = self._held[:place], self._held[place + len(closing) :]
                if self._style == "mistral":  # the marker of the next call closes this one
                    self._held = opening + self._held
                self._inside = False
                calls = self._calls(body)
                yield from calls or [opening + body + (closing if self._style == "hermes" else "")]
                self._after_call = bool(calls)
            place = self._held.find(opening)
            if place >= 0:
                yield from self._text(self._held[:place])
                self._held, self._inside = self._held[place + len(opening) :], True
                continue
            keep = partial(self._held, opening)
            text = self._held[: len(self._held) - keep]
            if self._after_call and not text.strip():
                return  # white space between calls waits for what follows
            self._held = self._held[len(text) :]
            yield from self._text(text)
            return

    def _text(self, text: str) -> Iterator[Piece]:
        if text and not (self._after_call and not text.strip()):
            self._after_call = False
            yield text


def calls_in(text: str) -> list[Call]:
    """The calls that a JSON text consists of; none when it is anything else."""
    text = text.strip()
    if text.startswith("```json"):
        text = text.removeprefix("```json").removesuffix("```").strip()
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return []
    if text[end:].strip():
        return []
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    calls = [_call(item) for item in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call is not None] if calls and None not in calls else []


def _call(value: Any) -> Call | None:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    given = [key for key in ("arguments", "parameters") if key in value]
    if not given:
        return None
    arguments = value[given[0]]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def forced_schema(tools: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """The JSON schema of one call of the named tool, or of any."""
    functions = [tool["function"] for tool in tools]
    choices = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
        if name is None or function["name"] == name
    ]
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def tools_as_text(tools: Sequence[dict[str, Any]]) -> str:
    """Instructions for a model whose template knows no tools."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You may call these functions:\n" + lines + "\nTo call one, reply with nothing but a JSON object: "
        '{"name": <function name>, "arguments": <arguments object>}'
    )
