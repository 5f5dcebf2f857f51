"""Items of the Responses API as messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colibri.server.problems import bad_request

Item = dict[str, Any]
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def as_turns(given: str | Sequence[Item]) -> list[dict[str, Any]]:
    """Messages. A thought and the calls beside it belong to one message of the assistant."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    turns: list[dict[str, Any]] = []
    thought = ""
    for index, item in enumerate(given):
        where = f"input[{index}]"
        kind = item.get("type", "message")
        if kind == "reasoning":
            thought += texts_of(f"{where}.content", item.get("content") or item.get("summary") or [])
            continue
        turn = _turn(where, kind, item)
        if turn["role"] == "assistant" and thought:
            turn["reasoning_content"], thought = thought, ""
        last = turns[-1] if turns else None
        if last is not None and "tool_calls" in turn and last["role"] == "assistant":
            last["tool_calls"] = [*last.get("tool_calls", ()), *turn["tool_calls"]]
        else:
            turns.append(turn)
    return turns


def _turn(where: str, kind: Any, item: Item) -> dict[str, Any]:
    if kind == "message":
        content = item.get("content") or ""
        return {"role": _string(where, item, "role"), "content": texts_of(f"{where}.content", content)}
    if kind == "function_call":
        function = {"name": _string(where, item, "name"), "arguments": _string(where, item, "arguments")}
        call = {"id": _string(where, item, "call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        output = texts_of(f"{where}.output", item.get("output") or "")
        return {"role": "tool", "tool_call_id": _string(where, item, "call_id"), "content": output}
    wanted = "expected message, function_call or function_call_output"
    raise bad_request(f"{where}.type: found {str(kind)[:80]!r}, {wanted}", f"{where}.type")


def _string(where: str, item: Item, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{where}.{name}: found {str(value)[:80]!r}, expected a string", f"{where}.{name}")
    return value


def texts_of(where: str, content: Any) -> str:
    """The text of a string or of parts."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in (*_TEXTS, "refusal") or not isinstance(text, str):
            raise bad_request(f"{where}: found a part of type {str(kind)[:80]!r}; this model takes text only", where)
        texts.append(text)
    return "\n".join(texts)
