"""Which expert to give up when another needs its slot: a ranking by key = layer * experts + expert.

A policy is told what each step of a layer needed and says how much every key is worth keeping; it knows nothing of
slots, files or threads, so a recorded trace replays it exactly (observe/replay.py, beside others).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_SEQUENCES = 16  # a step of more tokens is a prompt's
Values = NDArray[np.float64]
Uses = NDArray[np.integer]


class DecayedFrequency:
    """Uses of each key, a use `half_life` tokens ago counting half. The unit grows instead of all counts shrinking."""

    def __init__(self, layers: int, experts: int, half_life: float) -> None:
        self.counts = np.zeros(layers * experts)
        self.unit = 1.0
        self.tokens = 0.0  # faded number of tokens
        self._half_life = half_life
        self._layer = layers

    def touch(self, layer: int, keys: Sequence[int], uses: Uses | None, rows: int) -> None:
        """Count the uses of a step, each of its rows at its own age."""
        if layer <= self._layer:
            self._begin(rows)
        self._layer = layer
        if rows == 1:
            self.counts[keys] += self.unit
        else:
            self.counts[keys] += self.unit * self._weight(rows) * (1.0 if uses is None else uses)

    def warm(self, shares: Values, tokens: float) -> None:
        """Add so many tokens that chose each key in this share of cases."""
        self.counts += shares * tokens * self.unit
        self.tokens += tokens * self.unit

    def _begin(self, rows: int) -> None:
        growth = 2.0 ** (min(rows, 16 * self._half_life) / self._half_life)
        if self.unit * growth > 1e100:
            self.counts /= self.unit
            self.tokens /= self.unit
            self.unit = 1.0
        self.unit *= growth
        self.tokens += self.unit * self._weight(rows) * rows

    def _weight(self, rows: int) -> float:
        """What one of `rows` tokens in succession counts on average, the latest counting 1."""
        fade = 2.0 ** (-1.0 / self._half_life)
        return float((1.0 - fade**rows) / (1.0 - fade) / rows)


class NextUse:
    """Gives up what is expected to be needed last.

    Layers come round in a fixed cycle, so a key of a layer `d` steps ahead that a token chooses with probability p is
    expected after d + layers * (1/p - 1) steps. The layer just computed is the furthest away, which is what
    least-recently-used gets wrong. p is the faded frequency over `half_life` tokens with `prior` uses beforehand. A
    step of several tokens chooses with 1 - (1 - p)^tokens: in a prompt of many chunks of `chunk` tokens nearly
    everything comes again with the next chunk, and only the distance counts.
    """

    def __init__(
        self, layers: int, experts: int, half_life: float = 48.0, prior: float = 0.5, chunk: int | None = None
    ) -> None:
        self._layers, self._experts = layers, experts
        self._frequency = DecayedFrequency(layers, experts, half_life)
        self._prior = prior
        self._chunk = chunk
        self._rows = 1  # of the next step, as far as one can tell
        self._layer = 0
        self._layer_of = np.repeat(np.arange(layers), experts)
        self._values: Values | None = None  # until something changes

    def touch(self, layer: int, keys: Sequence[int], uses: Uses | None = None, rows: int = 1) -> None:
        """A step needed these experts of one layer."""
        self._frequency.touch(layer, keys, uses, rows)
        self._layer = layer
        self._values = None
        again = rows <= MOST_SEQUENCES or (self._chunk is not None and rows >= self._chunk)
        self._rows = rows if again else 1  # a prompt's last chunk is followed by single tokens

    def warm(self, shares: Values, tokens: float) -> None:
        """Uses as of those tokens."""
        self._frequency.warm(shares, tokens)
        self._values = None

    def values(self) -> Values:
        """Minus the expected number of layer steps until the next use (keys,); the lowest goes first."""
        if self._values is None:
            self._values = self._expected()
        return self._values

    def _expected(self) -> Values:
        unit = self._frequency.unit
        probability = (self._frequency.counts + self._prior * unit) / (self._frequency.tokens + unit)
        if self._rows > 1:
            probability = 1.0 - (1.0 - np.minimum(probability, 1.0)) ** self._rows
        ahead = (self._layer_of - self._layer - 1) % self._layers + 1
        result: Values = -(ahead + self._layers * (1.0 / np.minimum(probability, 1.0) - 1.0))
        return result
