"""POST /v1/messages: Anthropic's API, as its clients speak it (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from colibri.server.chat import plan_of
from colibri.server.problems import bad_request, json_response
from colibri.server.replies import new_id
from colibri.server.schema import MAX_INT, ChatRequest, Strict
from colibri.server.service import Service
from colibri.server.streaming import Wire
from colibri.server.turn import Part, Turn, answer, chat_request

Blocks = list[dict[str, Any]]
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageParam(Strict):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class ToolParam(Strict):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None


class ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class CountRequest(Strict):
    """POST /v1/messages/count_tokens."""

    model: str | None = None
    messages: Annotated[list[MessageParam], Field(min_length=1)]
    system: str | Blocks | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None


def _write(value: dict[str, Any]) -> str:
    return f"event: {value['type']}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"


WIRE = Wire(_write, lambda error: _write(error.body("/v1/messages")), "", _write({"type": "ping"}))


async def messages(service: Service, body: MessagesRequest, request: Request) -> Response:
    """The next message of a conversation."""
    return await answer(service, request, _chat(body), lambda plan: _Message(service, plan), WIRE)


async def count_tokens(service: Service, body: CountRequest, _: Request) -> Response:
    """How many tokens the prompt of a conversation has."""
    plan = await plan_of(service, _chat(body))
    return json_response({"input_tokens": len(plan.ids)})


# ---- to a chat -------------------------------------------------------------------------------------------------------


def _chat(body: CountRequest) -> ChatRequest:
    turns: list[dict[str, Any]] = []
    if body.system:
        turns.append({"role": "system", "content": _texts("system", body.system)})
    for index, message in enumerate(body.messages):
        turns += _turns(f"messages[{index}].content", message)
    sampling = body.model_dump(include={"max_tokens", "temperature", "top_p", "top_k", "stream"})
    thinking = None if body.thinking is None else body.thinking.type != "disabled"
    choice = body.tool_choice
    tools = [_tool(index, tool) for index, tool in enumerate(body.tools or [])]
    return chat_request(
        {
            **sampling, "model": body.model, "messages": turns, "enable_thinking": thinking, "tools": tools or None,
            "stop": getattr(body, "stop_sequences", None) or None, "tool_choice": choice and _choice(choice),
            "parallel_tool_calls": None if choice is None else not choice.disable_parallel_tool_use,
        }
    )  # fmt: skip


def _tool(index: int, tool: ToolParam) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise bad_request(f"tools[{index}].type: found {tool.type!r}, which runs elsewhere; give tools of your own")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _choice(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return choice.type


def _turns(where: str, message: MessageParam) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own, before what the user says with them."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    said: Blocks = []
    calls: list[dict[str, Any]] = []
    thought = ""
    for index, block in enumerate(message.content):
        kind, place = block.get("type"), f"{where}[{index}]"
        if kind == "tool_result":
            content = _texts(f"{place}.content", block.get("content") or "")
            yield {"role": "tool", "tool_call_id": _string(place, block, "tool_use_id"), "content": content}
        elif kind == "tool_use":
            function = {"name": _string(place, block, "name"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": _string(place, block, "id"), "type": "function", "function": function})
        elif kind == "thinking":
            thought += _string(place, block, "thinking")
        elif kind != "redacted_thinking":  # which nobody else can read
            said.append(_text(place, block))
    turn: dict[str, Any] = {"role": message.role}
    if said:
        turn["content"] = said
    if calls:
        turn["tool_calls"] = calls
    if thought:
        turn["reasoning_content"] = thought
    if len(turn) > 1:
        yield turn


def _string(where: str, block: dict[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{where}.{name}: found {str(value)[:80]!r}, expected a string", where)
    return value


def _text(where: str, block: dict[str, Any]) -> dict[str, Any]:
    if block.get("type") != "text":
        raise bad_request(f"{where}: found a part of type {block.get('type')!r}; this model takes text only", where)
    return {"type": "text", "text": _string(where, block, "text")}


def _texts(where: str, content: Any) -> str | Blocks:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise bad_request(f"{where}: found {type(content).__name__}, expected a string or a list of parts", where)
    return [_text(f"{where}[{index}]", block) for index, block in enumerate(content)]


# ---- and back --------------------------------------------------------------------------------------------------------


class _Message(Turn):
    """A message object, and the events by which it grows."""

    def begin(self) -> list[dict[str, Any]]:
        """The message without content."""
        self._id = new_id("msg").replace("-", "_")
        return [{"type": "message_start", "message": self._object([], None)}]

    def open_part(self, part: Part) -> list[dict[str, Any]]:
        """A block without content."""
        empty = {"thinking": "", "text": "", "input": {}}
        block = {key: empty.get(key, value) for key, value in _block(part).items()}
        return [{"type": "content_block_start", "index": len(self.parts) - 1, "content_block": block}]

    def grow_part(self, part: Part, text: str) -> list[dict[str, Any]]:
        """What a block has more."""
        kind, key = _DELTAS[part.kind]
        return [{"type": "content_block_delta", "index": len(self.parts) - 1, "delta": {"type": kind, key: text}}]

    def close_part(self, part: Part) -> list[dict[str, Any]]:
        """A block is whole."""
        return [{"type": "content_block_stop", "index": len(self.parts) - 1}]

    def end(self) -> list[dict[str, Any]]:
        """Why it ended, and what it took."""
        done = {"stop_reason": self._stop_reason(), "stop_sequence": self.choice.stop}
        last = {"type": "message_delta", "delta": done, "usage": self._counts()}
        return [*self.close(), last, {"type": "message_stop"}]

    def whole(self) -> dict[str, Any]:
        """The whole message."""
        self._id = new_id("msg").replace("-", "_")
        return self._object([_block(part) for part in self.parts], self._stop_reason())

    def _stop_reason(self) -> str | None:
        if self.choice.stop is not None:
            return "stop_sequence"
        return _STOPS.get(self.choice.finish or "stop", "end_turn")

    def _counts(self) -> dict[str, Any]:
        usage = self.usage
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0, "output_tokens": usage["completion_tokens"],
        }  # fmt: skip

    def _object(self, content: Blocks, reason: str | None) -> dict[str, Any]:
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self.service.name, "content": content,
            "stop_reason": reason, "stop_sequence": self.choice.stop, "usage": self._counts(),
        }  # fmt: skip


_DELTAS = {
    "text": ("text_delta", "text"),
    "thought": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _block(part: Part) -> dict[str, Any]:
    if part.call is not None:
        return {
            "type": "tool_use", "id": part.call.id, "name": part.call.name, "input": json.loads(part.call.arguments),
        }  # fmt: skip
    if part.kind == "thought":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "text", "text": part.text}
