"""The skeleton of a decoder: embedding, blocks of attention and feed-forward, final norm, output.

An architecture's file gives the configuration; every rule in which architectures differ is a field of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.kv import KeyValueCache
from colibri.config import ModelConfig, RopeConfig
from colibri.experts.residency import Residency
from colibri.layers.attention import Attention
from colibri.layers.linear import DenseWeights
from colibri.layers.look_ahead import LookAhead
from colibri.layers.moe import DenseFeedForward, MixtureOfExperts
from colibri.layers.norm import Norm
from colibri.layers.rope import RopeTables, rope_tables
from colibri.layers.workspace import LOGIT_ROWS, Rows, Workspace


@dataclass(frozen=True, slots=True)
class LayerTrace:
    """What one layer did in a step: the experts of each row (n, k), empty for a dense layer, and its time.

    expert_milliseconds is the part of it that routing, reading and computing the experts took.
    """

    layer: int
    experts: NDArray[np.int32]
    milliseconds: float
    expert_milliseconds: float


Watcher = Callable[[LayerTrace], None]


class Tap(Protocol):
    """Sees what goes into the matrices of every layer."""

    def attention(self, layer: int, rows: Rows) -> None:
        """rows.normed went into q, k and v, rows.attended into the output."""

    def experts(self, layer: int, rows: Rows) -> None:
        """rows.normed went to the experts rows.chosen_array[layer]."""


class Block:
    """One layer."""

    def __init__(
        self, attention_norm: Norm, attention: Attention, ffn_norm: Norm, ffn: MixtureOfExperts | DenseFeedForward
    ) -> None:
        self._attention_norm, self._attention = attention_norm, attention
        self.ffn_norm, self.ffn = ffn_norm, ffn
        self.routed = isinstance(ffn, MixtureOfExperts)

    def __call__(self, rows: Rows, batch: ops.Batch, cache: KeyValueCache, layer: int) -> None:
        """Add this layer's part to rows.hidden."""
        self.attend(rows, batch, cache, layer)
        self.feed_forward(rows)

    def attend(self, rows: Rows, batch: ops.Batch, cache: KeyValueCache, layer: int) -> None:
        """The first half: attention over the cache."""
        self._attention_norm(rows.normed, rows.hidden)
        self._attention(rows, batch, cache.layers[layer])

    def feed_forward(self, rows: Rows) -> None:
        """The second half: experts, or a dense network."""
        self.ffn_norm(rows.normed, rows.hidden)
        self.ffn(rows)


class Decoder:
    """A model's layers with their weights, ready to run rows of one or several sequences."""

    def __init__(
        self, config: ModelConfig, weights: DenseWeights, experts: Residency, workspace: Workspace, *,
        context: int, exact: bool,
    ) -> None:  # fmt: skip
        self.config = config
        self.workspace = workspace
        self.layer = 0  # being computed, or the last that was
        self.watcher: Watcher | None = None
        self.tap: Tap | None = None
        self._exact = exact
        self._experts = experts
        hidden, vocabulary = config.hidden_size, config.vocab_size
        self._embedding = weights.matrix("token_embd.weight", vocabulary, hidden)
        self._positions = (
            weights.matrix("position_embd.weight", config.context_length, hidden) if config.learned_positions else None
        )
        rope = None if config.rope is None else rope_tables(config.rope, context, _factors(weights, config.rope))
        self._blocks = [self._block(weights, layer, rope, experts) for layer in range(config.layers)]
        for layer, (block, following) in enumerate(itertools.pairwise(self._blocks)):
            if isinstance(block.ffn, MixtureOfExperts) and isinstance(following.ffn, MixtureOfExperts):
                route = following.ffn.route
                block.ffn.look_ahead = LookAhead(layer + 1, following.ffn_norm, route, experts)
        self._norm = _norm(weights, config, "output_norm")
        tied = not weights.has("output.weight")
        self._output = (self._embedding if tied else weights.matrix("output.weight", vocabulary, hidden),)

    def _block(
        self, weights: DenseWeights, layer: int, rope: RopeTables | None, experts: Residency
    ) -> Block:
        config, exact = self.config, self._exact
        norms = [_norm(weights, config, f"blk.{layer}.{name}") for name in ("attn_norm", "ffn_norm")]
        attention = Attention(weights, config, layer, rope, exact)
        if not experts.store.has(layer):
            return Block(norms[0], attention, norms[1], DenseFeedForward(weights, config, layer, exact))
        ffn = MixtureOfExperts(weights, config, layer, experts, exact)
        return Block(norms[0], attention, norms[1], ffn)

    @property
    def weights_version(self) -> int:
        """Changes whenever an expert was replaced."""
        return self._experts.store.version

    def refresh(self) -> int:
        """Take up what was replaced since; the version then."""
        self._experts.refresh()
        return self.weights_version

    def forward(self, rows: Rows, batch: ops.Batch, cache: KeyValueCache) -> None:
        """Take rows.ids through all layers; rows.hidden holds the result."""
        ops.embed(rows.hidden, self._embedding, rows.ids)
        if self._positions is not None:
            ops.embed_positions(rows.normed, self._positions, batch)
            ops.add(rows.hidden, rows.normed)
        if self.tap is not None:
            self._forward_tapped(rows, batch, cache, self.tap)
        elif self.watcher is not None:
            self._forward_watched(rows, batch, cache, self.watcher)
        else:
            for layer, block in enumerate(self._blocks):
                self.layer = layer
                block(rows, batch, cache, layer)
        self._experts.routing.record(rows.chosen_array)

    def _forward_watched(self, rows: Rows, batch: ops.Batch, cache: KeyValueCache, watcher: Watcher) -> None:
        nothing = np.empty((rows.count, 0), np.int32)
        for layer, block in enumerate(self._blocks):
            self.layer = layer
            start = time.perf_counter()
            block.attend(rows, batch, cache, layer)
            middle = time.perf_counter()
            block.feed_forward(rows)
            end = time.perf_counter()
            experts = rows.chosen_array[layer].copy() if block.routed else nothing
            watcher(LayerTrace(layer, experts, 1000 * (end - start), 1000 * (end - middle)))

    def _forward_tapped(self, rows: Rows, batch: ops.Batch, cache: KeyValueCache, tap: Tap) -> None:
        for layer, block in enumerate(self._blocks):
            block.attend(rows, batch, cache, layer)
            tap.attention(layer, rows)
            block.feed_forward(rows)
            if block.routed:
                tap.experts(layer, rows)

    def logits(self, rows: Rows, first: int, last: int) -> NDArray[np.float32]:
        """Logits of rows first..last, at most LOGIT_ROWS: a view (last - first, vocab) valid until the next call."""
        assert 0 < last - first <= LOGIT_ROWS
        normed = rows.normed.rows(first, last)
        self._norm(normed, rows.hidden.rows(first, last))
        count = last - first
        ops.matmul((self.workspace.logits.rows(0, count),), normed, self._output, self._exact)
        return self.workspace.logits_array[:count]


def _norm(weights: DenseWeights, config: ModelConfig, name: str) -> Norm:
    weight = weights.vector(f"{name}.weight", config.hidden_size)
    bias = weights.vector(f"{name}.bias", config.hidden_size) if config.norm == "layer" else None
    return Norm(f"{name}.weight", weight, config.norm_eps, bias)


def _factors(weights: DenseWeights, rope: RopeConfig) -> NDArray[np.float64] | None:
    factors = weights.optional_vector("rope_freqs.weight", rope.rotary // 2)
    return None if factors is None else factors.numpy().astype(np.float64)
