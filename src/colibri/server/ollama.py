"""The part of Ollama's API that clients use: /api/chat, generate, tags, show, ps, version.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from colibri import __version__
from colibri.engine.model import model_path
from colibri.server.chat import Plan
from colibri.server.problems import bad_request, json_response
from colibri.server.schema import ChatRequest, Strict
from colibri.server.service import Service
from colibri.server.streaming import Wire
from colibri.server.turn import Part, Turn, answer, chat_request

Fields = dict[str, Any]
# Ollama's options under the names that they have in a chat; all others are ignored.
_OPTIONS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed", "stop": "stop",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty", "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}  # fmt: skip
_UNLIMITED = -1
_NO_LIMITS = (-1, -2)


class Common(Strict):
    """What both kinds of requests have in common. think: whether, or how much."""

    model: str
    stream: bool | None = None
    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: str | float | None = None


class OllamaChatRequest(Common):
    """POST /api/chat."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class GenerateRequest(Common):
    """POST /api/generate."""

    prompt: str | None = None
    system: str | None = None
    suffix: None = None
    template: None = None
    raw: bool | None = None
    images: None = None


class ShowRequest(Strict):
    """POST /api/show."""

    model: str | None = None
    name: str | None = None


class OllamaError(BaseModel):
    """What an error looks like on these paths."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {kind: {"model": OllamaError} for kind in ("4XX", "5XX")}
WIRE = Wire(
    lambda value: json.dumps(value, separators=(",", ":")) + "\n",
    lambda error: json.dumps(error.body("/api/")) + "\n",
    "", "", "application/x-ndjson",
)  # fmt: skip


async def chat(service: Service, body: OllamaChatRequest, request: Request) -> Response:
    """The next message of a conversation; without messages, whether the model is there."""
    if not body.messages:
        service.check_model(_name(body.model))
        empty = {"role": "assistant", "content": ""}
        return json_response(_head(service, {"message": empty, "done": True, "done_reason": "load"}))
    turns = [_turn(index, message) for index, message in enumerate(body.messages)]
    return await _answer(service, request, body, {"messages": turns, "tools": body.tools or None}, _message)


async def generate(service: Service, body: GenerateRequest, request: Request) -> Response:
    """An answer to one prompt."""
    if body.raw:
        raise bad_request("raw: not supported here; use /v1/completions", "raw")
    if not body.prompt:
        service.check_model(_name(body.model))
        return json_response(_head(service, {"response": "", "done": True, "done_reason": "load"}))
    system = [{"role": "system", "content": body.system}] if body.system else []
    turns = [*system, {"role": "user", "content": body.prompt}]
    return await _answer(service, request, body, {"messages": turns}, _response)


def _name(model: str) -> str:
    return model.removesuffix(":latest")


def _turn(index: int, message: Fields) -> Fields:
    """Calls without ids belong to the results that follow, in order."""
    if message.get("images"):
        raise bad_request(f"messages[{index}].images: found an image, but this model takes text only")
    turn = {key: message[key] for key in ("role", "content") if message.get(key) is not None}
    if message.get("thinking") is not None:
        turn["reasoning_content"] = message["thinking"]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        turn["tool_calls"] = [{**call, "type": "function"} for call in calls if isinstance(call, dict)]
    if message.get("tool_name") is not None:
        turn["name"] = message["tool_name"]
    if message.get("tool_call_id") is not None:
        turn["tool_call_id"] = message["tool_call_id"]
    return turn


def _chat(body: Common, fields: Fields) -> ChatRequest:
    given = body.options or {}
    options = {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS}
    if options.get("max_tokens") in _NO_LIMITS:
        options["max_tokens"] = _UNLIMITED
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if type(options.get(name)) is int:
            options[name] = float(options[name])
    thinking = {"reasoning_effort": body.think} if isinstance(body.think, str) else {"enable_thinking": body.think}
    wanted: Fields | None = None
    if body.format == "json" or isinstance(body.format, dict):
        wanted = {"type": "json_object", "schema": None if body.format == "json" else body.format}
    elif body.format:
        raise bad_request(f"format: found {body.format[:80]!r}, expected 'json' or a schema", "format")
    everything = {**options, **thinking, **fields, "response_format": wanted}
    return chat_request({"model": _name(body.model), "stream": body.stream is not False, **everything})


async def _answer(
    service: Service, request: Request, body: Common, fields: Fields, shape: Callable[[list[Part]], Fields]
) -> Response:
    return await answer(service, request, _chat(body, fields), lambda plan: _Answer(service, plan, shape), WIRE)


# ---- and back --------------------------------------------------------------------------------------------------------


def _head(service: Service, fields: Fields) -> Fields:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": service.name, "created_at": now, **fields}


def _joined(parts: list[Part], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


def _message(parts: list[Part]) -> Fields:
    message: Fields = {"role": "assistant", "content": _joined(parts, "text")}
    thought = _joined(parts, "thought")
    calls = [part.call for part in parts if part.call is not None]
    if thought:
        message["thinking"] = thought
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in calls
        ]
    return {"message": message}


def _response(parts: list[Part]) -> Fields:
    thought = _joined(parts, "thought")
    return {"response": _joined(parts, "text"), **({"thinking": thought} if thought else {})}


class _Answer(Turn):
    """Lines of which the last says how long it took, in nanoseconds."""

    def __init__(self, service: Service, plan: Plan, shape: Callable[[list[Part]], Fields]) -> None:
        super().__init__(service, plan)
        self._shape = shape
        self._began = time.monotonic_ns()
        self._first = 0

    def grow_part(self, part: Part, text: str) -> list[Fields]:
        """A line with what is new."""
        self._first = self._first or time.monotonic_ns()
        return [_head(self.service, {**self._shape([Part(part.kind, text, part.call)]), "done": False})]

    def end(self) -> list[Fields]:
        """The last line says nothing new."""
        return [_head(self.service, {**self._shape([]), **self._done()})]

    def whole(self) -> Fields:
        """All that was said, in one."""
        return _head(self.service, {**self._shape(self.parts), **self._done()})

    def _done(self) -> Fields:
        now = time.monotonic_ns()
        first = self._first or now
        return {
            "done": True, "done_reason": "length" if self.choice.finish == "length" else "stop",
            "total_duration": now - self._began, "load_duration": 0,
            "prompt_eval_count": self.usage["prompt_tokens"], "prompt_eval_duration": first - self._began,
            "eval_count": self.usage["completion_tokens"], "eval_duration": now - first,
        }  # fmt: skip


# ---- the model -------------------------------------------------------------------------------------------------------


def version() -> Fields:
    """GET /api/version."""
    return {"version": __version__}


def _entry(service: Service) -> Fields:
    path = model_path(service.settings.load.path)
    size = path.stat().st_size if path.is_file() else 0
    return {"name": service.name, "model": service.name, "digest": "", "size": size, "details": _details(service)}


def _details(service: Service) -> Fields:
    facts = service.ready.model
    size = f"{facts['parameters'] / 1e9:.1f}B" if facts["parameters"] >= 1e9 else f"{facts['parameters'] / 1e6:.1f}M"
    return {
        "parent_model": "", "format": "gguf", "family": facts["architecture"], "families": [facts["architecture"]],
        "parameter_size": size, "quantization_level": str(facts["quantization"]).upper(),
    }  # fmt: skip


def tags(service: Service) -> Fields:
    """GET /api/tags."""
    made = datetime.fromtimestamp(service.created, UTC).isoformat()
    return {"models": [{**_entry(service), "modified_at": made}]}


def running(service: Service) -> Fields:
    """GET /api/ps."""
    never = datetime.fromtimestamp(service.created + (1 << 31), UTC).isoformat()
    more = {"expires_at": never, "size_vram": 0, "context_length": service.ready.context}
    return {"models": [{**_entry(service), **more}]}


async def show(service: Service, body: ShowRequest, _: Request) -> Response:
    """What is known of the model."""
    service.check_model(_name(body.model or body.name or service.name))
    ready = service.ready
    family = ready.model["architecture"]
    template = service.text.chat_template or "" if service.tokenizer is not None else ""
    abilities = ["completion", "tools", *(["thinking"] if "think" in template else [])]
    return json_response(
        {
            "modelfile": "", "parameters": "", "template": template, "details": _details(service),
            "capabilities": abilities,
            "model_info": {"general.architecture": family, f"{family}.context_length": ready.context},
        }
    )  # fmt: skip
