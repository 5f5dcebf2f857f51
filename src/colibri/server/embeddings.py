"""POST /v1/embeddings: the mean of the last hidden states of a text, after the final norm, of length 1."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from colibri.config import SamplingParams
from colibri.server.admission import Outputs
from colibri.server.problems import bad_request, context_exceeded, json_response
from colibri.server.prompts import check_ids, encode
from colibri.server.protocol import Submit
from colibri.server.schema import Ids, Strict
from colibri.server.service import Service
from colibri.server.streaming import unless_left

POOLING = "mean of the last hidden states, after the final norm, of length 1"


class EmbeddingsRequest(Strict):
    """POST /v1/embeddings."""

    input: str | Ids | Annotated[list[str], Field(min_length=1, max_length=256)] | Annotated[
        list[Ids], Field(min_length=1, max_length=256)
    ]  # fmt: skip
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    user: str | None = None


async def embed(service: Service, body: EmbeddingsRequest, request: Request) -> Response:
    """One vector for each text. The model was trained to go on with texts, not to compare them: the answer says so."""
    service.check_model(body.model)
    given = body.input
    texts = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    prompts = [await encode(service, text, add_special=True) if isinstance(text, str) else text for text in texts]
    commands = []
    for ids in prompts:
        check_ids(service, ids, "input")
        if len(ids) > service.ready.context:
            raise context_exceeded(len(ids), service.ready.context)
        commands.append(Submit(0, tuple(ids), SamplingParams(max_tokens=0), pooled=True))
    vectors = await unless_left(request, _vectors(service.submit(commands), len(commands)))
    if body.dimensions not in (None, len(vectors[0])):
        raise bad_request(f"dimensions: found {body.dimensions}, expected {len(vectors[0])} or none", "dimensions")
    shown = [_encoded(vector, body.encoding_format) for vector in vectors]
    count = sum(map(len, prompts))
    return json_response(
        {
            "object": "list", "model": service.name, "pooling": POOLING,
            "data": [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(shown)],
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
    )  # fmt: skip


async def _vectors(outputs: Outputs, count: int) -> list[Any]:
    found: list[Any] = [None] * count
    with outputs:
        async for index, output in outputs.all():
            for pooled in output.prompt:
                assert pooled.logits is not None
                vector = np.frombuffer(pooled.logits, np.float32)
                found[index] = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return found


def _encoded(vector: Any, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.astype(float).round(7).tolist()
