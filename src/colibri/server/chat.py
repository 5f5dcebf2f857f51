"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from colibri.config import Token
from colibri.engine.grammar import check_grammar, json_grammar, lark_grammar
from colibri.server.admission import Outputs
from colibri.server.constraints import forced_schema
from colibri.server.problems import bad_request, json_response
from colibri.server.prompts import check_ids, check_length
from colibri.server.protocol import Output, Submit
from colibri.server.replies import Usage, chat_logprobs, new_id
from colibri.server.sampling import room_left, sampling_params
from colibri.server.schema import ChatRequest, Message, NamedTool, TextPart
from colibri.server.service import Service
from colibri.server.streaming import EventStream, stream, unless_left
from colibri.text.formats import Delta, Reading, reading_of

# Templates know three efforts.
_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}


MOST_LETTERS = 16  # of a prediction, for each token of the context


@dataclass(frozen=True, slots=True)
class Plan:
    """How a chat goes to the model and comes back."""

    ids: tuple[int, ...]
    grammar: str | None
    reading: Reading
    keep_special: bool
    prediction: tuple[int, ...] = ()
    one_call: bool = False  # what a reply has after its first call is left out


async def chat(service: Service, body: ChatRequest, request: Request) -> Response:
    """The next message of a conversation."""
    plan, outputs = await begin(service, body)
    reply = _Reply(service, body, plan)
    if body.stream:
        return EventStream(stream(outputs, reply, service.settings.keep_alive_s), outputs)
    return await unless_left(request, _whole(outputs, reply))


async def begin(service: Service, body: ChatRequest) -> tuple[Plan, Outputs]:
    """Put a chat into the queue."""
    plan = await plan_of(service, body)
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    most = room_left(len(plan.ids), service.ready.context, wanted)
    commands = [
        Submit(
            0, plan.ids,
            sampling_params(
                body, max_tokens=most, top_logprobs=body.top_logprobs or 0, index=index, vocab=service.vocab_size
            ),
            keep_special=plan.keep_special, grammar=plan.grammar, prediction=plan.prediction,
        )
        for index in range(body.n or 1)
    ]  # fmt: skip
    return plan, service.submit(commands)


async def plan_of(service: Service, body: ChatRequest) -> Plan:
    """What goes to the model, checked."""
    service.check_model(body.model)
    plan = await asyncio.to_thread(_plan, service, body)
    check_ids(service, plan.ids, "messages")
    return plan


async def _whole(outputs: Outputs, reply: _Reply) -> Response:
    with outputs:
        async for index, output in outputs.all():
            reply.take(index, output)
    return json_response(reply.whole())


# ---- to the model ----------------------------------------------------------------------------------------------------


def _plan(service: Service, body: ChatRequest) -> Plan:
    """Render and encode; runs beside the event loop, as a template may take its time."""
    tokenizer = service.text
    offered = [] if body.tool_choice == "none" else [tool.model_dump(exclude_none=True) for tool in body.tools or []]
    grammar = _grammar(body, offered)
    prompt = tokenizer.chat_prompt(messages_of(body.messages), offered, variables=_variables(body))
    reading = reading_of(prompt, offered, forced=grammar is not None)
    text = prompt.text + reading.suffix
    check_length(service, text)
    ids = tokenizer.encode(text, add_special=False)
    marks = (tokenizer.token_id(mark) for mark in reading.marks)
    keep_special = any(mark is not None and tokenizer.is_special(mark) for mark in marks)
    one_call = body.parallel_tool_calls is False
    return Plan(tuple(ids), grammar, reading, keep_special, _prediction(service, body), one_call)


def _prediction(service: Service, body: ChatRequest) -> tuple[int, ...]:
    """The ids of what the answer is expected to be like; the beginning, where it is longer than a context."""
    if body.prediction is None:
        return ()
    context = service.ready.context
    text = body.prediction.text[: MOST_LETTERS * context]
    return tuple(service.text.encode(text, add_special=False)[:context])


def _variables(body: ChatRequest) -> dict[str, Any]:
    """What the template is told: how much to think, under the names that templates have for it."""
    found: dict[str, Any] = {}
    effort = body.reasoning_effort
    if effort is not None:
        found["reasoning_effort"] = _EFFORTS.get(effort, effort)
    thinks = effort not in ("none", "minimal") if body.enable_thinking is None else body.enable_thinking
    if effort is not None or body.enable_thinking is not None:
        found |= {"enable_thinking": thinks, "thinking": thinks}
    return {**found, **(body.chat_template_kwargs or {})}


def messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Plain messages as templates take them."""
    return [_plain(message) for message in messages]


def _plain(message: Message) -> dict[str, Any]:
    plain = message.model_dump(
        exclude_none=True, exclude={"content", "refusal", "audio", "function_call", "reasoning", "tool_calls"}
    )
    if message.role == "developer":
        plain["role"] = "system"
    if message.reasoning is not None and message.reasoning_content is None:
        plain["reasoning_content"] = message.reasoning
    calls = [call.model_dump(exclude_none=True, exclude={"index"}) for call in message.tool_calls or []]
    if message.function_call is not None:
        calls.append({"function": message.function_call.model_dump(exclude_none=True)})
    if calls:
        plain["tool_calls"] = [{"type": "function", **call} for call in calls]
    if isinstance(message.content, list):
        texts = [part.text if isinstance(part, TextPart) else part.refusal for part in message.content]
        plain["content"] = [{"type": "text", "text": text} for text in texts]
    elif message.content is not None or message.refusal is not None:
        plain["content"] = message.content or message.refusal or ""
    return plain


def _grammar(body: ChatRequest, offered: Sequence[dict[str, Any]]) -> str | None:
    """What the reply must match, checked."""
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        if choice.function.name not in {tool["function"]["name"] for tool in offered}:
            raise bad_request(f"tool_choice: no tool is called {choice.function.name!r}", "tool_choice")
        return _checked("tools", _json_grammar(forced_schema(offered, choice.function.name)))
    if choice == "required":
        return _checked("tools", _json_grammar(forced_schema(offered, None)))
    if body.grammar is not None:
        return _checked("grammar", lark_grammar(body.grammar))
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    schema = wanted.schema_ if wanted.json_schema is None else wanted.json_schema.schema_
    if schema is None:
        return _json_grammar({"type": "object"})
    return _checked("response_format", _json_grammar(schema))


def _json_grammar(schema: dict[str, Any] | bool) -> str:
    return json_grammar(json.dumps(schema), "response_format.json_schema.schema")


def _checked(name: str, grammar: str) -> str:
    check_grammar(name, grammar)
    return grammar


# ---- and back --------------------------------------------------------------------------------------------------------


class Choice:
    """One reply as it grows."""

    def __init__(self, plan: Plan) -> None:
        self.text = plan.reading.reader()
        self._one_call = plan.one_call
        self.deltas: list[Delta] = []
        self.tokens: list[Token] = []
        self.calls = 0
        self.finish: str | None = None
        self.stop: str | None = None  # the stop string that ended it

    def take(self, output: Output) -> list[Delta]:
        """What an output adds."""
        deltas = self.text.feed("".join(token.text for token in output.tokens))
        if output.finish is not None:
            deltas += self.text.finish()
        if self._one_call:
            deltas = self._until_first_call(deltas)
        self.deltas += deltas
        self.tokens += output.tokens
        self.calls += sum(delta.call is not None for delta in deltas)
        if output.finish is not None:
            self.stop = output.stop
            called = self.calls and (output.finish == "stop" or self._one_call)
            self.finish = "tool_calls" if called else output.finish
        return deltas

    def _until_first_call(self, deltas: list[Delta]) -> list[Delta]:
        if self.calls:
            return []
        first = next((index for index, delta in enumerate(deltas) if delta.call is not None), len(deltas))
        return deltas[: first + 1]


class _Reply:
    """Makes the chunks of a stream, or the whole reply."""

    def __init__(self, service: Service, body: ChatRequest, plan: Plan) -> None:
        self._service = service
        self._body = body
        self._choices = [Choice(plan) for _ in range(body.n or 1)]
        self._usage = Usage([len(plan.ids)], body.n or 1)
        self._frame = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": service.name}
        self._called = [0] * len(self._choices)

    def begin(self) -> list[dict[str, Any]]:
        """The role comes first."""
        first = {"role": "assistant", "content": ""}
        return [self._chunk(index, first, None, None) for index in range(len(self._choices))]

    def take(self, index: int, output: Output) -> list[dict[str, Any]]:
        """The chunks of one output."""
        self._usage.take(index, output)
        choice = self._choices[index]
        deltas = choice.take(output)
        self._usage.reasoning += len(output.tokens) if deltas and all(delta.reasoning for delta in deltas) else 0
        chunks = [self._chunk(index, self._delta(index, delta), None, None) for delta in deltas]
        if self._body.logprobs and output.tokens:
            logprobs = chat_logprobs(self._service.text, output.tokens, self._body.top_logprobs or 0)
            if chunks:
                chunks[0]["choices"][0]["logprobs"] = logprobs
            else:
                chunks = [self._chunk(index, {}, logprobs, None)]
        if output.finish is not None:
            chunks.append(self._chunk(index, {}, None, choice.finish))
        return chunks

    def _delta(self, index: int, delta: Delta) -> dict[str, Any]:
        if delta.call is not None:
            number = self._called[index]
            self._called[index] += 1
            return {"tool_calls": [{"index": number, **delta.call.as_dict()}]}
        return {"reasoning_content": delta.reasoning} if delta.reasoning else {"content": delta.content}

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if self._with_usage else {}
        return {**self._frame, "object": "chat.completion.chunk", "choices": [choice], **usage}

    @property
    def _with_usage(self) -> bool:
        return self._body.stream_options is not None and self._body.stream_options.include_usage

    def end(self) -> list[dict[str, Any]]:
        """The chunk of usage, where it was asked for."""
        if not self._with_usage:
            return []
        return [{**self._frame, "object": "chat.completion.chunk", "choices": [], "usage": self._usage.as_dict()}]

    def whole(self) -> dict[str, Any]:
        """The reply that is not streamed."""
        choices = [self._message(index, choice) for index, choice in enumerate(self._choices)]
        return {**self._frame, "object": "chat.completion", "choices": choices, "usage": self._usage.as_dict()}

    def _message(self, index: int, choice: Choice) -> dict[str, Any]:
        content = "".join(delta.content for delta in choice.deltas)
        thought = "".join(delta.reasoning for delta in choice.deltas)
        calls = [delta.call.as_dict() for delta in choice.deltas if delta.call is not None]
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        logprobs = None
        if self._body.logprobs:
            logprobs = chat_logprobs(self._service.text, choice.tokens, self._body.top_logprobs or 0)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}
