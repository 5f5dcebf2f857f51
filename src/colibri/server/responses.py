"""POST /v1/responses: OpenAI's newer API (https://platform.openai.com/docs/api-reference/responses)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from colibri.server.chat import Plan
from colibri.server.problems import ApiError, bad_request
from colibri.server.replies import new_id
from colibri.server.response_items import as_turns
from colibri.server.response_store import Stored
from colibri.server.schema import MAX_INT, ChatRequest, Strict
from colibri.server.service import Service
from colibri.server.streaming import Wire
from colibri.server.turn import Part, Turn, answer, chat_request


class Tool(Strict):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Strict):
    type: Literal["function"]
    name: str


class Reasoning(Strict):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: str | None = None


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(Strict):
    format: TextFormat | None = None


class ResponsesRequest(Strict):
    """POST /v1/responses. previous_response_id: the conversation goes on from there; store: false forgets this one."""

    model: str | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    metadata: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None


def _write(value: dict[str, Any]) -> str:
    return f"event: {value['type']}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"


def _error(error: ApiError) -> str:
    return _write({"type": "error", "sequence_number": 0, **error.body()["error"]} | {"type": "error"})


WIRE = Wire(_write, _error, "")


async def respond(service: Service, body: ResponsesRequest, request: Request) -> Response:
    """The next response of a conversation."""
    before = [] if body.previous_response_id is None else service.responses.turns(body.previous_response_id)
    turns = [*before, *as_turns(body.input)]
    chat = _chat(body, turns)
    return await answer(service, request, chat, lambda plan: _Response(service, plan, body, turns), WIRE)


def _chat(body: ResponsesRequest, turns: Sequence[dict[str, Any]]) -> ChatRequest:
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    tools = [_tool(index, tool) for index, tool in enumerate(body.tools or [])]
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        named: Any = {"type": "function", "function": {"name": choice.name}}
    else:
        named = choice
    wanted = body.text.format if body.text is not None else None
    return chat_request(
        {
            "model": body.model, "messages": [*instructions, *turns], "stream": body.stream, "top_p": body.top_p,
            "temperature": body.temperature, "max_tokens": body.max_output_tokens, "tools": tools or None,
            "tool_choice": named, "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
            "response_format": None if wanted is None else _format(wanted),
            "parallel_tool_calls": body.parallel_tool_calls,
        }
    )  # fmt: skip


def _format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    schema = {"name": wanted.name or "answer", "schema": wanted.schema_}
    return {"type": "json_schema", "json_schema": schema}


def _tool(index: int, tool: Tool) -> dict[str, Any]:
    if tool.type != "function":
        raise bad_request(f"tools[{index}].type: found {tool.type[:80]!r}, expected 'function'", f"tools[{index}].type")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


# ---- and back --------------------------------------------------------------------------------------------------------

_KINDS = {"text": "message", "thought": "reasoning", "call": "function_call"}
_PREFIXES = {"text": "msg", "thought": "rs", "call": "fc"}
_LOGPROBS: dict[str, dict[str, list[Any]]] = {"text": {"logprobs": []}, "thought": {}}
_CONTENTS = {"text": "output_text", "thought": "reasoning_text"}


class _Response(Turn):
    """A response object, and the events by which it grows."""

    def __init__(self, service: Service, plan: Plan, body: ResponsesRequest, turns: list[dict[str, Any]]) -> None:
        super().__init__(service, plan)
        self._body = body
        self._turns = turns
        self._id = new_id("resp").replace("-", "_")
        self._created = time.time()
        self._ids: list[str] = []
        self._number = 0

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number - 1, **fields}

    def _at(self, content: bool = False) -> dict[str, Any]:
        place = {"item_id": self._ids[-1], "output_index": len(self.parts) - 1}
        return {**place, "content_index": 0} if content else place

    def begin(self) -> list[dict[str, Any]]:
        """The response without output."""
        started = self._object("in_progress")
        return [self._event("created", response=started), self._event("in_progress", response=started)]

    def open_part(self, part: Part) -> list[dict[str, Any]]:
        """An item without content."""
        self._ids.append(new_id(_PREFIXES[part.kind]).replace("-", "_"))
        item = self._item(len(self._ids) - 1, Part(part.kind, "", part.call), "in_progress")
        made = [self._event("output_item.added", output_index=len(self.parts) - 1, item=item)]
        if part.kind != "call":
            empty = _content(Part(part.kind))
            made.append(self._event("content_part.added", **self._at(content=True), part=empty))
        return made

    def grow_part(self, part: Part, text: str) -> list[dict[str, Any]]:
        """What an item has more."""
        if part.kind == "call":
            return [self._event("function_call_arguments.delta", **self._at(), delta=text)]
        kind = f"{_CONTENTS[part.kind]}.delta"
        return [self._event(kind, **self._at(content=True), delta=text, **_LOGPROBS[part.kind])]

    def close_part(self, part: Part) -> list[dict[str, Any]]:
        """An item is whole."""
        item = self._item(len(self._ids) - 1, part, "completed")
        if part.call is not None:
            fields = {"arguments": part.text, "name": part.call.name}
            made = [self._event("function_call_arguments.done", **self._at(), **fields)]
        else:
            place, kind = self._at(content=True), f"{_CONTENTS[part.kind]}.done"
            made = [
                self._event(kind, **place, text=part.text, **_LOGPROBS[part.kind]),
                self._event("content_part.done", **place, part=_content(part)),
            ]
        return [*made, self._event("output_item.done", output_index=len(self.parts) - 1, item=item)]

    def end(self) -> list[dict[str, Any]]:
        """The whole response."""
        closed = self.close()
        whole = self.whole()
        return [*closed, self._event(whole["status"], response=whole)]

    def whole(self) -> dict[str, Any]:
        """The whole response, which is kept for those that go on from it."""
        whole = self._object("incomplete" if self.choice.finish == "length" else "completed")
        if self._body.store is not False:
            turns = [*self._turns, *as_turns(whole["output"])]
            self.service.responses.keep(self._id, Stored(turns, whole))
        return whole

    def _object(self, status: str) -> dict[str, Any]:
        body, ended = self._body, status != "in_progress"
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        shown = body.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self._id, "object": "response", "created_at": self._created, "status": status, "error": None,
            "incomplete_details": cut, "model": self.service.name, "instructions": body.instructions,
            "output": self._output(status) if ended else [], "usage": _counts(self.usage) if ended else None,
            "previous_response_id": body.previous_response_id, "tools": shown.get("tools", []),
            "tool_choice": shown.get("tool_choice", "auto"), "text": shown.get("text", {"format": {"type": "text"}}),
            "parallel_tool_calls": body.parallel_tool_calls is not False, "metadata": body.metadata or {},
            "reasoning": shown.get("reasoning", {"effort": None, "summary": None}), "truncation": "disabled",
            "temperature": 1.0 if body.temperature is None else body.temperature, "store": body.store is not False,
            "top_p": 1.0 if body.top_p is None else body.top_p, "max_output_tokens": body.max_output_tokens,
        }  # fmt: skip

    def _output(self, status: str) -> list[dict[str, Any]]:
        return [self._item(index, part, status if part is self.parts[-1] else "completed")
                for index, part in enumerate(self.parts)]  # fmt: skip

    def _item(self, index: int, part: Part, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._ids[index], "type": _KINDS[part.kind], "status": status}
        if part.call is not None:
            return {**item, "call_id": part.call.id, "name": part.call.name, "arguments": part.text}
        content = [_content(part)] if part.text else []
        return {**item, "content": content, **({"role": "assistant"} if part.kind == "text" else {"summary": []})}


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"], "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"], "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }  # fmt: skip


def _content(part: Part) -> dict[str, Any]:
    more: dict[str, list[Any]] = {"annotations": [], "logprobs": []} if part.kind == "text" else {}
    return {"type": _CONTENTS[part.kind], "text": part.text, **more}
