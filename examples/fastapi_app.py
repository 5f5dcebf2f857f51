"""Colibri inside a FastAPI application of your own: uvicorn fastapi_app:app (needs fastapi and uvicorn beside Colibri).

For many clients, `colibri serve` is the better way: it keeps the engine in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

import colibri


class Prompt(BaseModel):
    """What a client sends."""

    prompt: str = Field(max_length=20_000)
    max_tokens: int = Field(100, ge=1, le=1000)
    temperature: float = Field(0.8, ge=0, le=2)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model once; MODEL names it, by default it is the embedded one."""
    with colibri.load(os.environ.get("MODEL"), sequences=4, share_prefixes=True) as model:
        app.state.model = model
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/generate")
def generate(body: Prompt, request: Request) -> StreamingResponse:
    """The text that follows a prompt, as it is made. FastAPI runs this in a thread; generations share their steps."""
    params = colibri.SamplingParams(max_tokens=body.max_tokens, temperature=body.temperature)
    try:
        generation = request.app.state.model.generate(body.prompt, params)
    except colibri.ColibriError as error:
        raise HTTPException(400, str(error)) from None

    def text() -> Iterator[str]:
        with generation:  # also when the client leaves
            for token in generation:
                yield token.text

    return StreamingResponse(text(), media_type="text/plain; charset=utf-8")


@app.post("/infer")
def infer(body: Prompt, request: Request) -> list[tuple[str, float]]:
    """The ten likeliest next tokens and their logits."""
    model = request.app.state.model
    logits = model.infer(model.tokenizer.encode(body.prompt))[-1]
    return [(model.tokenizer.token_text(int(token)), float(logits[token])) for token in logits.argsort()[::-1][:10]]
