"""What a program hands to a model: prompts as ids, and how tokens are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set as AbstractSet
from dataclasses import fields, replace
from itertools import islice
from typing import Any

import numpy as np

from colibri.config import SamplingParams, parse_bytes, shown
from colibri.errors import ArgumentError


def known_length(ids: Any) -> int | None:
    """How many ids there are, where that can be told without going through them."""
    try:
        return len(ids)
    except (TypeError, OverflowError):  # an iterator, or something that is refused later
        return None


def check_ids(ids: Any, size: int, most: int, name: str = "prompt") -> list[int]:
    """The ids as integers, `most` + 1 at most; ArgumentError unless there are some, all below `size`."""
    if not isinstance(ids, Iterable) or isinstance(ids, str | bytes | bytearray | Mapping | AbstractSet | type):
        raise ArgumentError(f"{name}: found {shown(ids)}, expected a list of token ids")
    try:
        values = list(islice(ids, most + 1))
    except TypeError:  # an array without dimensions
        raise ArgumentError(f"{name}: found {shown(ids)}, expected a list of token ids") from None
    if not values:
        raise ArgumentError(f"{name}: found no tokens, expected at least one")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ArgumentError(f"{name}: found {shown(value)} among the ids, expected integers")
        if not 0 <= value < size:
            raise ArgumentError(f"{name}: token id {shown(value)} at position {position}, expected 0..{size - 1}")
    return [int(value) for value in values]


def check_params(params: SamplingParams | None, changes: Mapping[str, Any] | None = None) -> SamplingParams:
    """The parameters, by default SamplingParams(), with some changed by name."""
    if params is None:
        params = SamplingParams()
    if not isinstance(params, SamplingParams):
        raise ArgumentError(f"sampling_params: found {shown(params)}, expected colibri.SamplingParams(...) or None")
    names = [field.name for field in fields(SamplingParams)]
    for name in changes or ():
        if name not in names:
            raise ArgumentError(f"{name}: is no sampling parameter; there are {', '.join(names)}")
    return replace(params, **changes) if changes else params


def check_ram(ram: int | str | None) -> int | None:
    """Bytes, which a text may name as 2.5G."""
    if not isinstance(ram, str):
        return ram
    try:
        return parse_bytes(ram)
    except ValueError as error:
        raise ArgumentError(f"ram: {error}") from None


def many_prompts(prompt: Any) -> bool:
    """Whether these are several prompts: a list of texts, or of lists of ids."""
    if not isinstance(prompt, list | tuple) or not prompt:
        return False
    return all(isinstance(each, str) for each in prompt) or all(isinstance(each, list | tuple) for each in prompt)


def many_conversations(messages: Any) -> bool:
    """Whether these are several conversations: a list of lists of messages."""
    if not isinstance(messages, list | tuple) or not messages:
        return False
    return all(isinstance(each, list | tuple) for each in messages)
