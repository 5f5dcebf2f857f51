"""Policies of an expert cache to compare the one in use with (experts/policy.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from colibri.experts.policy import DecayedFrequency, NextUse, Uses, Values


class Policy(Protocol):
    """Ranks experts."""

    def touch(self, layer: int, keys: Sequence[int], uses: Uses | None = None, rows: int = 1) -> None:
        """A step of so many rows (tokens) needed these experts of one layer; layers come in rising order within a step.

        `uses` says how many rows chose each; None: one each.
        """

    def values(self) -> Values:
        """How much each key is worth keeping now (keys,); the lowest goes first. Not to be changed by the caller."""


class LeastRecentlyUsed:
    """Gives up what has not been needed for longest. Hits nothing when a token's experts do not all fit."""

    def __init__(self, layers: int, experts: int) -> None:
        self._last = np.zeros(layers * experts)
        self._clock = 0

    def touch(self, layer: int, keys: Sequence[int], uses: Uses | None = None, rows: int = 1) -> None:
        """A step needed these experts of one layer."""
        self._clock += 1
        self._last[keys] = self._clock

    def values(self) -> Values:
        """The clock of the last use."""
        return self._last


class LeastFrequentlyUsed:
    """Gives up what was needed least often; uses fade with a half-life in tokens."""

    def __init__(self, layers: int, experts: int, half_life: float = 512.0) -> None:
        self._frequency = DecayedFrequency(layers, experts, half_life)

    def touch(self, layer: int, keys: Sequence[int], uses: Uses | None = None, rows: int = 1) -> None:
        """A step needed these experts of one layer."""
        self._frequency.touch(layer, keys, uses, rows)

    def values(self) -> Values:
        """The faded number of uses."""
        return self._frequency.counts


class LeastRecentlyFrequentlyUsed(LeastFrequentlyUsed):
    """LRFU (Lee et al. 2001): between recency and frequency, by a short half-life of the combined count."""

    def __init__(self, layers: int, experts: int, half_life: float = 32.0) -> None:
        super().__init__(layers, experts, half_life)


POLICIES: dict[str, Callable[[int, int], Policy]] = {
    "lru": LeastRecentlyUsed,
    "lfu": LeastFrequentlyUsed,
    "lrfu": LeastRecentlyFrequentlyUsed,
    "next-use": NextUse,
}
