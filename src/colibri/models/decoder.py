"""The skeleton of a decoder: embedding, the layers that a spec lists, final norm, output."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.kv import KeyValueCache
from colibri.experts.residency import Residency
from colibri.layers import kinds
from colibri.layers.build import Build, FeedForward, Mixer
from colibri.layers.linear import DenseWeights
from colibri.layers.moe import MixtureOfExperts
from colibri.layers.nothing import Nothing
from colibri.layers.residual import Residual, made_apart, residuals
from colibri.layers.rope import RopeTables, rope_tables
from colibri.layers.workspace import LOGIT_ROWS, Rows, Workspace
from colibri.spec import LayerSpec, ModelSpec


class Tap(Protocol):
    """Sees every layer of every step."""

    def begin(self, rows: Rows) -> None:
        """A step begins."""

    def mixed(self, layer: int, mixer: Mixer, rows: Rows) -> None:
        """The mixer of a layer has run; mixer.inputs(rows) is what its weights were applied to."""

    def fed_forward(self, layer: int, rows: Rows) -> None:
        """rows.normed went to the experts rows.chosen_array[layer], which is NO_EXPERT in a dense layer."""


class Block(NamedTuple):
    """One layer; after each part what adds its answer, where it is not added as it is."""

    mixer: Mixer
    add_mixed: Residual | None
    ffn: FeedForward
    add_fed: Residual | None


class Decoder:
    """A model's layers with their weights, ready to run rows of one or several sequences."""

    def __init__(
        self, spec: ModelSpec, weights: DenseWeights, experts: Residency, workspace: Workspace, *,
        context: int, exact: bool,
    ) -> None:  # fmt: skip
        self.workspace = workspace
        self.layer = 0  # being computed, or the last that was
        self.layers = len(spec.layers)
        self.tap: Tap | None = None  # is told of every step
        self._exact = exact
        self._embedding_scale, self._logit_scale = np.float32(spec.embedding_scale), np.float32(spec.logit_scale)
        self._logit_cap = spec.logit_cap
        self._experts = experts
        hidden, vocabulary = spec.hidden_size, spec.vocab_size
        build = Build(weights, workspace, experts, _rope_tables(spec, weights, context), hidden, exact)
        self._embedding = weights.matrix("token_embd.weight", vocabulary, hidden)
        self._positions = (
            weights.matrix("position_embd.weight", spec.context_length, hidden) if spec.learned_positions else None
        )
        apart = made_apart(spec)
        self._blocks = [_block(layer, number, build, apart) for number, layer in enumerate(spec.layers)]
        parts = (block.ffn for block in self._blocks if not isinstance(block.ffn, Nothing))
        for part, following in itertools.pairwise(parts):
            if isinstance(part, MixtureOfExperts) and isinstance(following, MixtureOfExperts):
                part.following = following
        self._norm = build.norm(spec.final_norm, spec.norm)
        tied = not weights.has("output.weight")
        self._output = (self._embedding if tied else weights.matrix("output.weight", vocabulary, hidden),)
        weights.check_all_given()

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
        self._embed(rows, batch)
        rows.clear_answer()
        tap = self.tap
        if tap is not None:
            tap.begin(rows)
        for layer, block in enumerate(self._blocks):
            self.layer = layer
            block.mixer(rows, batch, cache.layers[layer])
            if tap is not None:
                tap.mixed(layer, block.mixer, rows)
            if block.add_mixed is not None:
                block.add_mixed(rows)
            block.ffn(rows)
            if block.add_fed is not None:
                block.add_fed(rows)
            if tap is not None:
                tap.fed_forward(layer, rows)

    def record(self, rows: Rows, without: Sequence[int] = ()) -> None:
        """Count what the rows of a step chose, but for those that were computed for nothing."""
        chosen = rows.chosen_array
        self._experts.routing.record(np.delete(chosen, without, axis=1) if without else chosen)

    def _embed(self, rows: Rows, batch: ops.Batch) -> None:
        ops.embed(rows.hidden, self._embedding, rows.ids)
        if self._embedding_scale != 1:
            rows.hidden.numpy()[...] *= self._embedding_scale
        if self._positions is not None:
            ops.embed_positions(rows.normed, self._positions, batch)
            ops.add(rows.hidden, rows.normed)

    def states(self, rows: Rows, first: int, last: int) -> NDArray[np.float32]:
        """What logits are made from, of rows first..last: a view (last - first, hidden) valid until the next call."""
        return self._normed(rows, first, last).numpy()

    def _normed(self, rows: Rows, first: int, last: int) -> ops.Tensor:
        normed = rows.normed.rows(first, last)
        self._norm(normed, rows.hidden.rows(first, last))
        return normed

    def logits(self, rows: Rows, first: int, last: int) -> NDArray[np.float32]:
        """Logits of rows first..last, at most LOGIT_ROWS: a view (last - first, vocab) valid until the next call."""
        assert 0 < last - first <= LOGIT_ROWS
        normed = self._normed(rows, first, last)
        count = last - first
        logits = self.workspace.logits.rows(0, count)
        ops.matmul((logits,), normed, self._output, self._exact)
        array = self.workspace.logits_array[:count]
        if self._logit_scale != 1:
            array *= self._logit_scale
        if self._logit_cap is not None:
            ops.soft_cap(logits, self._logit_cap)
        return array


def _block(spec: LayerSpec, number: int, build: Build, apart: bool) -> Block:
    mixer, ffn = kinds.mixer(spec, number, build), kinds.feed_forward(spec, number, build)
    add_mixed, add_fed = residuals(spec, number, build) if apart else (None, None)
    return Block(mixer, add_mixed, ffn, add_fed)


def _rope_tables(spec: ModelSpec, weights: DenseWeights, context: int) -> RopeTables:
    """One pair of tables for all layers that turn alike."""
    tables = {}
    for rope in spec.ropes:
        factors = None if rope.factors is None else weights.vector(rope.factors, rope.rotary // 2).numpy()
        tables[rope] = rope_tables(rope, context, None if factors is None else factors.astype(np.float64))
    return tables
