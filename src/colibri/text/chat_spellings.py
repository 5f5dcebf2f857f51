"""The ways to write a conversation with tools down, of which a chat template may take only one.

Templates disagree on whether a message of tool calls has its content missing, null or empty, whether arguments are an
object or JSON text, which ids calls may have, and how many calls a message. A template that knows no tools gets
them in words: in the first system or user message, the calls as the JSON that was asked for, the results as what the
user says. One that knows no system message gets its text before the first user's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
ID_LENGTH = 9  # of Mistral's calls
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
_RESULT = "result"  # a note of our own
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Spelling:
    """Messages and tools as a template gets them."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)


def spellings(messages: list[Message], tools: list[dict[str, Any]]) -> Iterator[Spelling]:
    """Every spelling, the one that is nearest to what was sent first."""
    has_tools = bool(tools) or any(_functions(message) or is_result(message) for message in messages)
    for shape in _shapes(messages):
        yield Spelling(shape, tools)
    if has_tools:
        for shape in _shapes(_with_short_ids(messages)):
            yield Spelling(shape, tools)
        for shape in _shapes(_with_short_ids(_one_call_each(messages))):
            yield Spelling(shape, tools)
        messages = _in_words(messages, tools)
        yield Spelling(_without_notes(messages))
    if (messages and messages[0]["role"] == "system") or has_tools:
        yield Spelling(_without_notes(_folded(messages)))


def _shapes(messages: list[Message]) -> Iterator[list[Message]]:
    without_content = any("content" not in message for message in messages)
    contents: list[Message] = [{}, {"content": None}, {"content": ""}] if without_content else [{}]
    objects = any(isinstance(call["arguments"], dict) for message in messages for call in _functions(message))
    doubly = any(_functions(message) and "content" in message and _thought(message) for message in messages)
    for no_thought in (False, True) if doubly else (False,):
        for as_text in (False, True) if objects else (False,):
            for content in contents:
                yield [{**content, **_shaped(message, as_text, no_thought)} for message in messages]


def _shaped(message: Message, as_text: bool, no_thought: bool) -> Message:
    if not _functions(message):
        return message
    if as_text:
        message = {**message, "tool_calls": [_with_text_arguments(call) for call in message["tool_calls"]]}
    if no_thought and "content" in message:  # some refuse a message that thinks, says and calls
        message = {key: value for key, value in message.items() if key not in _THOUGHTS}
    return message


def _thought(message: Message) -> bool:
    return any(message.get(name) for name in _THOUGHTS)


def _functions(message: Message) -> list[dict[str, Any]]:
    return [call.get("function", call) for call in message.get("tool_calls", ())]


def is_result(message: Message) -> bool:
    """Whether a message is what a tool answered."""
    return message["role"] in ("tool", "function")


def _with_text_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    if not isinstance(function["arguments"], dict):
        return call
    changed = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    return {**call, "function": changed} if "function" in call else changed


# ---- ids -------------------------------------------------------------------------------------------------------------


def short_id(given: str) -> str:
    """Nine letters or digits, the same for the same id; an id that is nine already stays."""
    if len(given) == ID_LENGTH and given.isascii() and given.isalnum():
        return given
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "replace")).digest())
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(ID_LENGTH))


def _with_short_ids(messages: list[Message]) -> list[Message]:
    """Ids of nine for all; results without one belong to the calls before them, in order."""
    changed, waiting, number = [], [], 0
    for message in messages:
        if _functions(message):
            calls = []
            for call in message["tool_calls"]:
                number += 1
                calls.append({**call, "id": short_id(str(call.get("id") or f"call {number}"))})
            waiting = [call["id"] for call in calls]
            message = {**message, "tool_calls": calls}
        elif is_result(message):
            given = message.get("tool_call_id")
            name = short_id(given) if given else waiting[0] if waiting else short_id("call")
            waiting = [other for other in waiting if other != name]
            message = {**message, "tool_call_id": name}
        changed.append(message)
    return changed


def _one_call_each(messages: list[Message]) -> list[Message]:
    """Calls that were made at once as calls made one after another, each with its result."""
    changed: list[Message] = []
    moved: set[int] = set()
    for index, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            changed += [message] if index not in moved else []
            continue
        results = _results_after(messages, index)
        for place, call in enumerate(calls):
            first = message if not place else {"role": message["role"]}
            changed.append({**first, "tool_calls": [call]})
            for at in results:
                if at not in moved and messages[at].get("tool_call_id") == call.get("id"):
                    moved.add(at)
                    changed.append(messages[at])
    return changed


def _results_after(messages: Sequence[Message], index: int) -> list[int]:
    found = []
    for at in range(index + 1, len(messages)):
        if not is_result(messages[at]):
            break
        found.append(at)
    return found


# ---- in words --------------------------------------------------------------------------------------------------------


def tools_in_words(tools: Sequence[dict[str, Any]]) -> str:
    """Instructions for a model whose template knows no tools."""
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return (
        "You may call these functions:\n" + lines + "\nTo call one, reply with nothing but a JSON object: "
        '{"name": <function name>, "arguments": <arguments object>}'
    )


def _in_words(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    names: dict[str, str] = {}
    changed: list[Message] = []
    for message in messages:
        if _functions(message):
            names |= {str(call.get("id")): call.get("function", call)["name"] for call in message["tool_calls"]}
            changed.append(_calls_in_words(message))
        elif is_result(message):
            name = message.get("name") or names.get(str(message.get("tool_call_id")), "the function")
            said = prefixed(f"Result of {name}:\n", message["content"])
            if changed and changed[-1].get(_RESULT):
                said = prefixed(f"{_text(changed[-1]['content'])}\n\n", said)
                changed.pop()
            changed.append({"role": "user", "content": said, _RESULT: True})
        else:
            changed.append(message)
    if not tools:
        return changed
    words = tools_in_words(tools)
    if changed and changed[0]["role"] == "system":
        return [{**changed[0], "content": prefixed(f"{words}\n\n", changed[0]["content"])}, *changed[1:]]
    return [{"role": "system", "content": words}, *changed]


def _calls_in_words(message: Message) -> Message:
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in _functions(message)]
    text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
    said = _text(message.get("content") or "")
    return {"role": message["role"], "content": f"{said}\n{text}" if said else text}


def _folded(messages: list[Message]) -> list[Message]:
    """The system message as the beginning of the first user message, and a result as that of the message after it."""
    changed: list[Message] = []
    for message in messages:
        last = changed[-1] if changed else None
        joins = last is not None and ((last["role"] == "system" and len(changed) == 1) or bool(last.get(_RESULT)))
        if last is not None and joins and message["role"] == "user":
            changed[-1] = {**message, "content": prefixed(f"{_text(last['content'])}\n\n", message["content"])}
        else:
            changed.append(message)
    return changed


def _without_notes(messages: list[Message]) -> list[Message]:
    return [{key: value for key, value in message.items() if key != _RESULT} for message in messages]


def prefixed(text: str, content: Any) -> Any:
    """Content, a string or a list of parts, with a text before it."""
    return text + content if isinstance(content, str) else [{"type": "text", "text": text}, *content]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
