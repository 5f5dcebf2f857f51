"""What a program hands to a model: prompts as ids, and how tokens are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set as AbstractSet
from itertools import islice
from typing import Any

import numpy as np

from colibri.config import SamplingParams, shown
from colibri.errors import ArgumentError


def known_length(ids: Any) -> int | None:
    """How many ids there are, where that can be told without going through them."""
    try:
        return len(ids)
    except (TypeError, OverflowError):  # an iterator, or something that is refused later
        return None


def check_ids(ids: Any, size: int, most: int) -> list[int]:
    """The ids as integers, `most` + 1 at most; ArgumentError unless there are some, all below `size`."""
    if not isinstance(ids, Iterable) or isinstance(ids, str | bytes | bytearray | Mapping | AbstractSet | type):
        raise ArgumentError(f"prompt: found {shown(ids)}, expected a list of token ids")
    try:
        values = list(islice(ids, most + 1))
    except TypeError:  # an array without dimensions
        raise ArgumentError(f"prompt: found {shown(ids)}, expected a list of token ids") from None
    if not values:
        raise ArgumentError("prompt: found no tokens, expected at least one")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ArgumentError(f"prompt: found {shown(value)} among the ids, expected integers")
        if not 0 <= value < size:
            raise ArgumentError(f"prompt: token id {shown(value)} at position {position}, expected 0..{size - 1}")
    return [int(value) for value in values]


def check_params(params: SamplingParams | None) -> SamplingParams:
    """The parameters, by default SamplingParams()."""
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise ArgumentError(f"params: found {shown(params)}, expected colibri.SamplingParams(...) or None")
    return params
