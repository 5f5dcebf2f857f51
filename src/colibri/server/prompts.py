"""Prompts as token ids, and whether they fit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from colibri.server.problems import bad_request, context_exceeded
from colibri.server.service import Service


async def encode(service: Service, text: str, *, add_special: bool) -> list[int]:
    """Ids of a prompt, without holding up other requests. Raises ApiError when it cannot fit into the context."""
    await asyncio.to_thread(check_length, service, text)
    ids = await asyncio.to_thread(service.text.encode, text, add_special)
    if not ids and add_special and service.text.bos_id is not None:
        return [service.text.bos_id]
    return ids


def check_length(service: Service, text: str) -> None:
    """Raise ApiError for a prompt that is too long for the context however it is encoded, without encoding it."""
    context = service.ready.context
    least = service.text.least_tokens(text, context)
    if least > context:
        raise context_exceeded(least, context, estimate=True)


def check_ids(service: Service, ids: Sequence[int], field: str) -> None:
    """Raise ApiError for ids that the model does not know."""
    size = service.vocab_size
    for position, value in enumerate(ids):
        if value >= size:
            raise bad_request(f"{field}: token id {value} at position {position}, expected 0..{size - 1}", field)
    if not ids:
        raise bad_request(f"{field}: found no tokens, expected at least one", field)
