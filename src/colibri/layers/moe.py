"""The feed-forward part of a layer: routed experts, with one that all share beside them, or one dense network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.config import ModelConfig
from colibri.experts.residency import Residency
from colibri.layers.linear import DenseWeights
from colibri.layers.norm import Norm
from colibri.layers.router import Router, bad_logit
from colibri.layers.workspace import Rows


class MixtureOfExperts:
    """Routes each row, computes its experts wherever they are, adds them to the residual stream in slot order."""

    def __init__(
        self, weights: DenseWeights, config: ModelConfig, layer: int, norm: Norm, experts: Residency, exact: bool
    ) -> None:
        self.layer = layer
        self.route = Router(weights, config, layer, norm)
        self.following: MixtureOfExperts | None = None  # the next layer's, to look ahead
        self._experts = experts
        self._shared = SharedExpert(weights, config, layer, exact) if config.shared_expert else None
        self._activation = config.activation
        self._exact = exact

    def __call__(self, rows: Rows) -> None:
        """Norm rows.hidden into rows.normed and add the experts' answer to rows.hidden."""
        chosen = rows.chosen[self.layer]
        self.route(rows.hidden, rows.normed, rows.router_logits, chosen, rows.weights)
        if self._shared is not None:
            self._shared.weigh(rows)
        following = self.following if self._experts.reads_ahead(rows.count) else None
        for part, (table, only) in enumerate(self._experts.handles(self.layer, chosen)):
            if following is not None and part == 0:  # this layer's experts are kept or on their way now
                self._look_ahead(rows, following, sure=True)
            ops.moe(rows.slots, rows.normed, table, chosen, self._activation, self._exact, only)
        ops.combine(rows.hidden, rows.slots, rows.weights)
        if self._shared is not None:
            self._shared(rows)
        if following is not None:
            self._look_ahead(rows, following, sure=False)  # a better guess, to be read during the attention

    def _look_ahead(self, rows: Rows, following: MixtureOfExperts, sure: bool) -> None:
        """Begin to read what the next layer's router would choose for the hidden states as they are now.

        sure: only the likelier half of each row's. Changes nothing but what is in memory: the results are in buffers
        that are free at the time.
        """
        layer = following.layer
        chosen = rows.chosen[layer]
        following.route(rows.hidden, rows.dense_slots, rows.router_logits, chosen, rows.guessed_weights)
        k = chosen.shape[1]
        ids = rows.chosen_array[layer, :, : (k + 1) // 2 if sure else k]
        self._experts.prefetch(layer, dict.fromkeys(ids.T.ravel().tolist()))  # every row's likeliest first


class DenseFeedForward:
    """A network that every row goes through: the same kernels, with one expert that all choose."""

    def __init__(
        self, weights: DenseWeights, config: ModelConfig, name: str, width: int, exact: bool, norm: Norm | None = None
    ) -> None:
        """`name` has a place for gate, up and down; without a norm rows are normed already."""
        self._norm = norm
        self._table = _table_of_one(weights, config, name, width)
        self._activation = config.activation
        self._exact = exact

    def __call__(self, rows: Rows, weights: ops.Tensor | None = None) -> None:
        """Norm rows.hidden into rows.normed and add the network's answer to rows.hidden, times `weights` (n, 1)."""
        if self._norm is not None:
            self._norm(rows.normed, rows.hidden)
        ops.moe(rows.dense_slots, rows.normed, self._table, rows.first, self._activation, self._exact)
        ops.combine(rows.hidden, rows.dense_slots, rows.ones if weights is None else weights)


class SharedExpert:
    """An expert that every row goes through; a softmax over two says what it and the routed ones count.

    DeepSpeed's residual mixture (arXiv 2201.05596).
    """

    def __init__(self, weights: DenseWeights, config: ModelConfig, layer: int, exact: bool) -> None:
        hidden, name = config.hidden_size, f"blk.{layer}.ffn_gate_inp_shexp"
        self._name = f"{name}.weight"
        self._expert = DenseFeedForward(
            weights, config, f"blk.{layer}.ffn_{{}}_shexp", config.expert_intermediate, exact
        )
        self._coefficient = (weights.matrix(self._name, 2, hidden),)
        self._bias = (weights.vector(f"{name}.bias", 2),)
        self._softmax = ops.Routing("softmax")

    def weigh(self, rows: Rows) -> None:
        """Scale rows.weights by what the routed experts count, and keep what this one counts.

        Raises NumericalError, naming the tensor, when one of the two logits is a NaN or an infinity.
        """
        ops.matmul((rows.shares_logits,), rows.normed, self._coefficient, True, False, self._bias)
        if not ops.router(rows.shares_order, rows.shares, rows.shares_logits, self._softmax):
            raise bad_logit(self._name)
        routed = rows.shares_order.numpy() == 0  # (n, 2): shares come largest first
        shares: NDArray[np.float32] = rows.shares.numpy()
        rows.weights.numpy()[...] *= shares[routed][:, None]
        rows.shared_weight.numpy()[:, 0] = shares[~routed]

    def __call__(self, rows: Rows) -> None:
        """Add its answer to rows.normed to rows.hidden."""
        self._expert(rows, rows.shared_weight)


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
