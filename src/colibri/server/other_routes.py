"""/infer, /tokenize, /detokenize."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from colibri.config import SamplingParams
from colibri.server.chat import messages_of
from colibri.server.problems import context_exceeded, json_response
from colibri.server.prompt_logits import ALL
from colibri.server.prompts import check_ids, encode
from colibri.server.protocol import PromptLogits, Submit
from colibri.server.replies import token_name
from colibri.server.schema import DetokenizeRequest, InferRequest, TokenizeRequest
from colibri.server.service import Service
from colibri.server.streaming import EventStream, Wire, unless_left

WHOLE = Wire(media_type="application/json")


async def infer(service: Service, body: InferRequest, request: Request) -> Response:
    """One pass over a prompt: the logits of the last position or of all, or the likeliest next tokens."""
    service.check_model(body.model)
    ids = await encode(service, body.prompt, add_special=True) if isinstance(body.prompt, str) else body.prompt
    check_ids(service, ids, "prompt")
    if len(ids) > service.ready.context:
        raise context_exceeded(len(ids), service.ready.context)
    every = body.positions == "all"
    report = ALL if body.top_k is None else min(body.top_k, service.vocab_size)
    params = SamplingParams(max_tokens=0)
    command = Submit(0, tuple(ids), params, prompt_logits=report, last_only=not every)
    return await unless_left(request, _infer(service, command))


async def _infer(service: Service, command: Submit) -> Response:
    """What is known counts against the bound of all reports until the client has taken it."""
    known: list[PromptLogits] = []
    body: dict[str, Any] = {"model": service.name, "tokens": list(command.ids), "vocab_size": service.vocab_size}
    with contextlib.ExitStack() as until_taken:
        outputs = until_taken.enter_context(service.submit([command]))
        async for _, output in outputs.all():
            known += output.prompt
        if not command.last_only:
            return EventStream(_pieces(service, body, known), until_taken.pop_all(), WHOLE)
    body |= {"position": len(command.ids) - len(known), **_position(service, known[0])}
    return await asyncio.to_thread(json_response, body)


async def _pieces(service: Service, body: dict[str, Any], known: list[PromptLogits]) -> AsyncGenerator[str, None]:
    """The reply in pieces, since numbers as text and as objects are many times as large as they came."""
    yield json.dumps(body)[:-1] + ', "positions": ['
    for position, found in enumerate(known):
        piece = await asyncio.to_thread(lambda: json.dumps({"position": position, **_position(service, found)}))  # noqa: B023
        yield ", " * (position > 0) + piece
    yield "]}"


def _position(service: Service, found: PromptLogits) -> dict[str, Any]:
    if found.logits is not None:
        return {"logits": np.frombuffer(found.logits, np.float32).astype(float).round(6).tolist()}
    return {
        "top": [
            {"id": token, "token": token_name(service.tokenizer, token), "logprob": logprob}
            for token, logprob in found.top
        ]
    }


async def tokenize(service: Service, body: TokenizeRequest, _: Request) -> Response:
    """Ids of a text or of a rendered chat."""
    service.check_model(body.model)
    tokenizer = service.text
    if body.messages is not None:
        messages = messages_of(body.messages)
        text = (await asyncio.to_thread(tokenizer.chat_prompt, messages)).text
        ids = await asyncio.to_thread(tokenizer.encode, text, False)
    else:
        ids = await asyncio.to_thread(tokenizer.encode, body.text or "", body.add_special)
    result: dict[str, Any] = {"tokens": ids, "count": len(ids), "context": service.ready.context}
    if body.pieces:
        result["pieces"] = [token_name(tokenizer, token) for token in ids]
    return json_response(result)


async def detokenize(service: Service, body: DetokenizeRequest, _: Request) -> Response:
    """Text of ids."""
    service.check_model(body.model)
    check_ids(service, body.ids, "ids")
    return json_response({"text": service.text.decode(body.ids)})
