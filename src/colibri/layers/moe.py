"""The feed-forward part of a layer: routed experts, with one that all share beside them, or one dense network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
        self._shared = SharedExpert(weights, config, layer, exact) if config.shared_expert else None
        self._activation = config.activation
        self._exact = exact

    def __call__(self, rows: Rows) -> None:
        """Add the experts' answer to rows.normed to rows.hidden."""
        self.route(rows)
        if self._shared is not None:
            self._shared.weigh(rows)
        look_ahead = self.look_ahead if self._experts.reads_ahead(rows.count) else None
        chosen = rows.chosen[self._layer]
        for part, (table, only) in enumerate(self._experts.handles(self._layer, chosen)):
            if look_ahead is not None and part == 0:  # this layer's experts are kept or on their way now
                look_ahead(rows, sure=True)
            ops.moe(rows.slots, rows.normed, table, chosen, self._activation, self._exact, only)
        ops.combine(rows.hidden, rows.slots, rows.weights)
        if self._shared is not None:
            self._shared(rows)
        if look_ahead is not None:
            look_ahead(rows, sure=False)  # a better guess, to be read during the attention


class DenseFeedForward:
    """A network that every row goes through: the same kernels, with one expert that all choose."""

    def __init__(self, weights: DenseWeights, config: ModelConfig, layer: int, exact: bool) -> None:
        self._table = _table_of_one(weights, config, f"blk.{layer}.ffn_{{}}", config.intermediate)
        self._activation = config.activation
        self._exact = exact

    def __call__(self, rows: Rows) -> None:
        """Add the network's answer to rows.normed to rows.hidden."""
        ops.moe(rows.dense_slots, rows.normed, self._table, rows.first, self._activation, self._exact)
        ops.combine(rows.hidden, rows.dense_slots, rows.ones)


class SharedExpert:
    """An expert that every row goes through; a softmax over two says what it and the routed ones count.

    DeepSpeed's residual mixture (arXiv 2201.05596).
    """

    def __init__(self, weights: DenseWeights, config: ModelConfig, layer: int, exact: bool) -> None:
        hidden, name = config.hidden_size, f"blk.{layer}.ffn_gate_inp_shexp"
        self._table = _table_of_one(weights, config, f"blk.{layer}.ffn_{{}}_shexp", config.expert_intermediate)
        self._coefficient = (weights.matrix(f"{name}.weight", 2, hidden),)
        self._bias = (weights.vector(f"{name}.bias", 2),)
        self._activation = config.activation
        self._exact = exact

    def weigh(self, rows: Rows) -> None:
        """Scale rows.weights by what the routed experts count, and keep what this one counts."""
        ops.matmul((rows.shares_logits,), rows.normed, self._coefficient, True, False, self._bias)
        ops.router(rows.shares_order, rows.shares, rows.shares_logits, "softmax", False)
        routed = rows.shares_order.numpy() == 0  # (n, 2): shares come largest first
        shares: NDArray[np.float32] = rows.shares.numpy()
        rows.weights.numpy()[...] *= shares[routed][:, None]
        rows.shared_weight.numpy()[:, 0] = shares[~routed]

    def __call__(self, rows: Rows) -> None:
        """Add its answer to rows.normed to rows.hidden."""
        ops.moe(rows.dense_slots, rows.normed, self._table, rows.first, self._activation, self._exact)
        ops.combine(rows.hidden, rows.dense_slots, rows.shared_weight)


def _table_of_one(weights: DenseWeights, config: ModelConfig, name: str, wide: int) -> ops.ExpertTable:
    """gate (where there is one), up and down with the biases that are there, as the only expert of a table."""
    hidden = config.hidden_size
    sizes = {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    names = {part: name.format(part) for part in sizes}
    gate = weights.matrix(f"{names['gate']}.weight", wide, hidden) if config.gated else None
    up, down = (weights.matrix(f"{names[part]}.weight", *sizes[part]) for part in ("up", "down"))
    biases = [weights.optional_vector(f"{names[part]}.bias", size[0]) for part, size in sizes.items()]
    table = ops.ExpertTable(1, hidden, wide)
    table.set(0, gate, up, down, *biases)
    return table
