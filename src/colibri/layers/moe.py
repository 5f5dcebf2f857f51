"""The feed-forward part of a layer: routed experts, or one dense network."""

from __future__ import annotations

from colibri import ops
from colibri.config import ModelConfig
from colibri.experts.residency import Residency
from colibri.layers.linear import DenseWeights
from colibri.layers.look_ahead import LookAhead
from colibri.layers.router import Router
from colibri.layers.workspace import Rows


class MixtureOfExperts:
    """Routes each row, computes its experts wherever they are, adds them to the residual stream in slot order."""

    def __init__(
        self, weights: DenseWeights, config: ModelConfig, layer: int, experts: Residency, exact: bool
    ) -> None:
        self._layer = layer
        self.route = Router(weights, config, layer)
        self.look_ahead: LookAhead | None = None  # of the next layer
        self._experts = experts
        self._activation = config.activation
        self._exact = exact

    def __call__(self, rows: Rows) -> None:
        """Add the experts' answer to rows.normed to rows.hidden."""
        self.route(rows)
        look_ahead = self.look_ahead if self._experts.reads_ahead(rows.count) else None
        if look_ahead is not None:
            look_ahead(rows, sure=True)  # to be read while this layer's experts are computed
        chosen = rows.chosen[self._layer]
        for table, only in self._experts.handles(self._layer, chosen):
            ops.moe(rows.slots, rows.normed, table, chosen, self._activation, self._exact, only)
        ops.combine(rows.hidden, rows.slots, rows.weights)
        if look_ahead is not None:
            look_ahead(rows, sure=False)  # a better guess, to be read during the attention


class DenseFeedForward:
    """A gated network that every row goes through: the same kernels, with one expert that all choose."""

    def __init__(self, weights: DenseWeights, config: ModelConfig, layer: int, exact: bool) -> None:
        hidden, wide = config.hidden_size, config.intermediate
        gate, up = (weights.matrix(f"blk.{layer}.ffn_{part}.weight", wide, hidden) for part in ("gate", "up"))
        self._table = ops.ExpertTable(1, hidden, wide)
        self._table.set(0, gate, up, weights.matrix(f"blk.{layer}.ffn_down.weight", hidden, wide))
        self._activation = config.activation
        self._exact = exact

    def __call__(self, rows: Rows) -> None:
        """Add the network's answer to rows.normed to rows.hidden."""
        ops.moe(rows.dense_slots, rows.normed, self._table, rows.first, self._activation, self._exact)
        ops.combine(rows.hidden, rows.dense_slots, rows.ones)
