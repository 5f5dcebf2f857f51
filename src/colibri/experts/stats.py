"""What the router asked for and what the residency did about it. Watches; never sits in the way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Trace = NDArray[np.signedinteger[Any]]  # (tokens, layers, k) of `trace_type`; NO_EXPERT where a layer has none
BUFFER_ROWS = 64  # rows that are gathered before they are counted: counting each step would cost more than the copy
NO_EXPERT = -1


@dataclass(slots=True)
class ResidencyCounters:
    """Totals since the start. A hit or a miss is one distinct expert that one layer needed in one step."""

    hits: int = 0
    misses: int = 0
    prefetched: int = 0
    prefetch_used: int = 0
    evicted: int = 0
    bytes_read: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def trace_type(experts: int) -> np.dtype[np.signedinteger[Any]]:
    """The smallest type for the ids of so many experts and NO_EXPERT, two bytes at least."""
    return np.promote_types(np.int16, np.min_scalar_type(-experts))


class RoutingStats:
    """Routing counts and the latest part of the per-token trace.

    `trace_tokens` bounds the trace; None keeps it all. Layers count from 0 as in the model; in the trace a layer
    without experts holds NO_EXPERT.
    """

    def __init__(self, layers: int, experts: int, experts_per_token: int, trace_tokens: int | None = 4096) -> None:
        self.layers, self.experts, self.experts_per_token = layers, experts, experts_per_token
        self.trace_tokens = trace_tokens
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._counts = np.zeros((self.layers, self.experts), np.int64)
        self._blocks: deque[Trace] = deque()
        self._held = 0
        self._start_block(BUFFER_ROWS)

    def record(self, chosen: Ids) -> None:
        """Note the choices of one step: ids (layers, n, k), NO_EXPERT in layers without experts."""
        rows = chosen.shape[1]
        if self._filled + rows > len(self._buffer):
            self._flush()
            if rows > len(self._buffer):
                self._start_block(rows)
        self._buffer[self._filled : self._filled + rows] = chosen.swapaxes(0, 1)
        self._filled += rows

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each expert was chosen: (layers, experts)."""
        self._flush()
        return self._counts.copy()

    @property
    def experts_touched(self) -> int:
        """Experts, over all layers, that were chosen at least once."""
        return int(np.count_nonzero(self.counts))

    def trace(self) -> Trace:
        """The kept part of the per-token choices: (tokens, layers, k), oldest first."""
        self._flush()
        empty = np.empty((0, self.layers, self.experts_per_token), trace_type(self.experts))
        whole = np.concatenate([empty, *self._blocks])
        return whole if self.trace_tokens is None else whole[max(0, len(whole) - self.trace_tokens) :]

    def entropy(self) -> NDArray[np.float64]:
        """Entropy of each layer's choices in bits; log2(experts) is an even load. (layers,)"""
        return entropy(self.counts)

    def co_activation(self, layer: int) -> NDArray[np.int64]:
        """How many tokens of the trace chose each pair of experts in one layer: (experts, experts)."""
        return co_activation(self.trace()[:, layer], self.experts)

    def _start_block(self, rows: int) -> None:
        self._buffer: Trace = np.empty((rows, self.layers, self.experts_per_token), trace_type(self.experts))
        self._filled = 0  # rows

    def _flush(self) -> None:
        """Count everything recorded so far; called between steps."""
        self._keep(self._buffer[: self._filled])
        self._filled = 0

    def _keep(self, block: Trace) -> None:
        if not len(block):
            return
        for layer in range(self.layers):
            chosen = block[:, layer].ravel()
            self._counts[layer] += np.bincount(chosen[chosen >= 0], minlength=self.experts)
        self._blocks.append(block.copy())
        self._held += len(block)
        most = self.trace_tokens
        while most is not None and self._blocks and self._held - len(self._blocks[0]) >= most:
            self._held -= len(self._blocks.popleft())


def entropy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Entropy in bits of each row of counts."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(share > 0, share * np.log2(share), 0.0)
    result: NDArray[np.float64] = -terms.sum(axis=1)
    return result


def co_activation(chosen: Trace, experts: int) -> NDArray[np.int64]:
    """Pairs chosen together by (tokens, k) rows of one layer: (experts, experts); the diagonal counts choices."""
    pairs = np.zeros((experts, experts), np.int64)
    rows = chosen[(chosen >= 0).all(axis=1)].astype(np.int64)
    for slot in range(rows.shape[1]):
        for other in range(rows.shape[1]):
            np.add.at(pairs, (rows[:, slot], rows[:, other]), 1)
    return pairs


def frequent_pairs(chosen: Trace, experts: int, most: int) -> list[tuple[int, int, int]]:
    """(one, other, how often) of those that (tokens, k) rows of one layer chose together most often, most first."""
    rows = np.sort(chosen[(chosen >= 0).all(axis=1)].astype(np.int64), axis=1)
    ones, others = np.triu_indices(rows.shape[1], 1)
    pairs, counts = np.unique(rows[:, ones] * experts + rows[:, others], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return [(*divmod(int(pairs[place]), experts), int(counts[place])) for place in order]
