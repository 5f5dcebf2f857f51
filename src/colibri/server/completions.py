"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from colibri.engine.grammar import check_grammar, lark_grammar
from colibri.server.admission import Outputs
from colibri.server.problems import json_response
from colibri.server.prompts import check_ids, encode
from colibri.server.protocol import Output, PromptLogits, Submit
from colibri.server.replies import CompletionLogprobs, Usage, joined, new_id
from colibri.server.sampling import room_left, sampling_params
from colibri.server.schema import CompletionRequest
from colibri.server.service import Service
from colibri.server.streaming import EventStream, stream, unless_left

DEFAULT_MAX_TOKENS = 16  # as in the OpenAI API


@dataclass(slots=True)
class _Prompt:
    ids: list[int]
    pieces: list[str] = field(default_factory=list)  # the text of each id, for echo


async def complete(service: Service, body: CompletionRequest, request: Request) -> Response:
    """Continue texts or ids."""
    service.check_model(body.model)
    prompts = [await _prompt(service, prompt, bool(body.echo)) for prompt in _prompts(body)]
    grammar = None
    if body.grammar is not None:
        grammar = lark_grammar(body.grammar)
        check_grammar("grammar", grammar)
    commands = [_command(service, body, prompt, index, grammar) for prompt in prompts for index in range(body.n or 1)]
    reply = _Reply(service, body, [prompt for prompt in prompts for _ in range(body.n or 1)])
    outputs = service.submit(commands)
    if body.stream:
        return EventStream(stream(outputs, reply, service.settings.keep_alive_s), outputs)
    return await unless_left(request, _whole(outputs, reply))


async def _whole(outputs: Outputs, reply: _Reply) -> Response:
    parts: list[dict[str, Any]] = []
    with outputs:
        async for index, output in outputs.all():
            parts += reply.take(index, output)
    return json_response(reply.whole(parts))


def _prompts(body: CompletionRequest) -> Sequence[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]
    return prompt


async def _prompt(service: Service, prompt: str | list[int], echo: bool) -> _Prompt:
    ids = await encode(service, prompt, add_special=True) if isinstance(prompt, str) else prompt
    check_ids(service, ids, "prompt")
    if not echo or service.tokenizer is None:
        return _Prompt(ids, [""] * len(ids))
    decoder = service.tokenizer.decoder(skip_special=True)
    pieces = [decoder.feed(token) for token in ids]
    pieces[-1] += decoder.finish()
    return _Prompt(ids, pieces)


def _command(service: Service, body: CompletionRequest, prompt: _Prompt, index: int, grammar: str | None) -> Submit:
    ready = service.ready
    wanted = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling_params(
        body, max_tokens=room_left(len(prompt.ids), ready.context, wanted), top_logprobs=body.logprobs or 0,
        index=index, vocab=service.vocab_size,
    )  # fmt: skip
    report = body.logprobs if body.echo and body.logprobs is not None else None
    return Submit(0, tuple(prompt.ids), params, continues=True, grammar=grammar, prompt_logits=report)


class _Reply:
    """Makes the chunks of a stream; a whole reply is its chunks joined."""

    def __init__(self, service: Service, body: CompletionRequest, prompts: Sequence[_Prompt]) -> None:
        self._body = body
        self._prompts = prompts
        self._usage = Usage((len(prompt.ids) for prompt in prompts[:: body.n or 1]), body.n or 1)
        self._frame = {
            "id": new_id("cmpl"), "object": "text_completion", "created": int(time.time()), "model": service.name,
        }  # fmt: skip
        self._asked = body.logprobs is not None
        self._logprobs = [CompletionLogprobs(service.tokenizer, body.logprobs or 0) for _ in prompts]
        self._known: list[list[PromptLogits]] = [[] for _ in prompts]
        self._echoed = [not body.echo] * len(prompts)

    def begin(self) -> list[dict[str, Any]]:
        """Nothing comes before the first text."""
        return []

    def take(self, index: int, output: Output) -> list[dict[str, Any]]:
        """The chunks of one output."""
        self._usage.take(index, output)
        self._known[index] += output.prompt
        chunks = []
        if not self._echoed[index] and (output.tokens or output.finish is not None):
            self._echoed[index] = True
            chunks.append(self._echo(index))
        if output.tokens or output.finish is not None:
            text = "".join(token.text for token in output.tokens)
            logprobs = self._logprobs[index].take(output.tokens) if self._asked else None
            if text or output.finish is not None or output.tokens:
                chunks.append(self._chunk(index, text, logprobs, output.finish))
        return chunks

    def _echo(self, index: int) -> dict[str, Any]:
        prompt = self._prompts[index]
        logprobs = None
        if self._asked:
            logprobs = self._logprobs[index].prompt(prompt.ids, prompt.pieces, self._known[index])
        return self._chunk(index, "".join(prompt.pieces), logprobs, None)

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if self._with_usage else {}
        return {**self._frame, "choices": [choice], **usage}

    @property
    def _with_usage(self) -> bool:
        return self._body.stream_options is not None and self._body.stream_options.include_usage

    def end(self) -> list[dict[str, Any]]:
        """The chunk of usage, where it was asked for."""
        return [{**self._frame, "choices": [], "usage": self._usage.as_dict()}] if self._with_usage else []

    def whole(self, chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The reply that is not streamed."""
        choices = []
        for index in range(len(self._prompts)):
            parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            choices.append(
                {
                    "index": index,
                    "text": "".join(part["text"] for part in parts),
                    "logprobs": joined([part["logprobs"] for part in parts]) if self._asked else None,
                    "finish_reason": parts[-1]["finish_reason"],
                }
            )
        return {**self._frame, "choices": choices, "usage": self._usage.as_dict()}
