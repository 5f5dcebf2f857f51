"""The skeleton of a decoder: embedding, blocks of attention and feed-forward, final norm, output.

An architecture's file gives the configuration; every rule in which architectures differ is a field of it.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.kv import KeyValueCache
from colibri.config import ModelConfig, RopeConfig
from colibri.experts.residency import Residency
from colibri.layers.attention import Attention
from colibri.layers.linear import DenseWeights
from colibri.layers.moe import DenseFeedForward, MixtureOfExperts
from colibri.layers.norm import Norm
from colibri.layers.rope import RopeTables, rope_tables
from colibri.layers.workspace import LOGIT_ROWS, Rows, Workspace


class Tap(Protocol):
    """Sees every layer of every step."""

    def begin(self, rows: Rows) -> None:
        """A step begins."""

    def attended(self, layer: int, rows: Rows) -> None:
        """rows.normed went into q, k and v, rows.attended into the output."""

    def fed_forward(self, layer: int, rows: Rows) -> None:
        """rows.normed went to the experts rows.chosen_array[layer], which is NO_EXPERT in a dense layer."""


class Block(NamedTuple):
    """One layer: attention over the cache, then experts or a dense network, each with a norm before it."""

    attention: Attention
    ffn: MixtureOfExperts | DenseFeedForward


class Decoder:
    """A model's layers with their weights, ready to run rows of one or several sequences."""

    def __init__(
        self, config: ModelConfig, weights: DenseWeights, experts: Residency, workspace: Workspace, *,
        context: int, exact: bool,
    ) -> None:  # fmt: skip
        self.config = config
        self.workspace = workspace
        self.layer = 0  # being computed, or the last that was
        self.tap: Tap | None = None  # is told of every step
        self._exact = exact
        self._experts = experts
        hidden, vocabulary = config.hidden_size, config.vocab_size
        self._embedding = weights.matrix("token_embd.weight", vocabulary, hidden)
        self._positions = (
            weights.matrix("position_embd.weight", config.context_length, hidden) if config.learned_positions else None
        )
        rope = None if config.rope is None else rope_tables(config.rope, context, _factors(weights, config.rope))
        self._blocks = [self._block(weights, layer, rope) for layer in range(config.layers)]
        for block, following in itertools.pairwise(self._blocks):
            if isinstance(block.ffn, MixtureOfExperts) and isinstance(following.ffn, MixtureOfExperts):
                block.ffn.following = following.ffn
        self._norm = _norm(weights, config, "output_norm")
        tied = not weights.has("output.weight")
        self._output = (self._embedding if tied else weights.matrix("output.weight", vocabulary, hidden),)

    def _block(self, weights: DenseWeights, layer: int, rope: RopeTables | None) -> Block:
        config, exact = self.config, self._exact
        attention_norm, ffn_norm = (_norm(weights, config, f"blk.{layer}.{part}_norm") for part in ("attn", "ffn"))
        attention = Attention(weights, config, layer, attention_norm, rope, exact)
        ffn: MixtureOfExperts | DenseFeedForward
        if self._experts.store.has(layer):
            ffn = MixtureOfExperts(weights, config, layer, ffn_norm, self._experts, exact)
        else:
            ffn = DenseFeedForward(weights, config, f"blk.{layer}.ffn_{{}}", config.intermediate, exact, ffn_norm)
        return Block(attention, ffn)

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
        tap = self.tap
        if tap is not None:
            tap.begin(rows)
        for layer, block in enumerate(self._blocks):
            self.layer = layer
            block.attention(rows, batch, cache.layers[layer])
            if tap is not None:
                tap.attended(layer, rows)
            block.ffn(rows)
            if tap is not None:
                tap.fed_forward(layer, rows)
        self._experts.routing.record(rows.chosen_array)

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
