"""The feed-forward part of a layer with routed experts, and with one that all share beside them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.layers.build import QUANTIZED_BYTES, Build
from colibri.layers.dense import Network, activation
from colibri.layers.router import Router, bad_logit
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import LayerSpec, MoeSpec, SharedSpec


class MixtureOfExperts:
    """Routes each row, computes its experts wherever they are, adds them to the residual stream in slot order."""

    def __init__(self, spec: MoeSpec, layer: int, whole: LayerSpec, build: Build) -> None:
        self.layer = layer
        self.route = Router(spec.routing, layer, build.norm(f"blk.{layer}.{whole.ffn_norm}", whole.norm), build)
        self.following: MixtureOfExperts | None = None  # the next layer's, to look ahead
        self._experts = build.experts
        self._shared = SharedExpert(spec.shared, layer, build) if spec.shared is not None else None
        self._activation = activation(spec.expert)
        self._logits, self._weights, self._guessed, self._slots, self._normed = build.places(
            _buffers(spec, build.hidden)
        )
        self._exact = build.exact

    @staticmethod
    def scratch(spec: MoeSpec, hidden: int) -> Scratch:
        """Its own buffers and those of what runs beside; the native code keeps each chosen expert's activations."""
        beside = Scratch() if spec.shared is None else SharedExpert.scratch(spec.shared, hidden)
        own = Network.native_bytes(spec.expert, spec.routing.experts_per_token) + QUANTIZED_BYTES * hidden
        return Scratch((*_buffers(spec, hidden), *beside.buffers), max(own, beside.native_bytes))

    def __call__(self, rows: Rows) -> None:
        """Norm rows.hidden into rows.normed and add the experts' answer to rows.hidden."""
        chosen, slots, weights = rows.chosen[self.layer], rows.views[self._slots], rows.views[self._weights]
        self.route(rows.hidden, rows.normed, rows.views[self._logits], chosen, weights)
        if self._shared is not None:
            self._shared.weigh(rows, weights)
        following = self.following if self._experts.reads_ahead(rows.count) else None
        for part, (table, only) in enumerate(self._experts.handles(self.layer, chosen)):
            if following is not None and part == 0:  # this layer's experts are kept or on their way now
                self._look_ahead(rows, following, sure=True)
            ops.moe(slots, rows.normed, table, chosen, self._activation, self._exact, only)
        ops.combine(rows.hidden, slots, weights)
        if self._shared is not None:
            self._shared(rows)
        if following is not None:
            self._look_ahead(rows, following, sure=False)  # a better guess, to be read during the attention

    def _look_ahead(self, rows: Rows, following: MixtureOfExperts, sure: bool) -> None:
        """Begin to read what the next layer's router would choose for the hidden states as they are now.

        sure: only the likelier half of each row's. Changes nothing but what is in memory: the results are in buffers
        that are free at the time.
        """
        layer, views = following.layer, rows.views
        chosen = rows.chosen[layer]
        following.route(rows.hidden, views[self._normed], views[self._logits], chosen, views[self._guessed])
        k = chosen.shape[1]
        ids = rows.chosen_array[layer, :, : (k + 1) // 2 if sure else k]
        self._experts.prefetch(layer, dict.fromkeys(ids.T.ravel().tolist()))  # every row's likeliest first


def _buffers(spec: MoeSpec, hidden: int) -> tuple[Buffer, ...]:
    """Logits, weights, weights of a guess at the next layer's experts, their answers; normed rows for such a guess."""
    k = spec.routing.experts_per_token
    return (
        Buffer("router_logits", spec.routing.experts),
        Buffer("weights", k),
        Buffer("guessed_weights", k),
        Buffer("slots", hidden, rows=k),
        Buffer("slots", hidden),
    )


class SharedExpert:
    """An expert that every row goes through; a softmax over two says what it and the routed ones count.

    DeepSpeed's residual mixture (arXiv 2201.05596).
    """

    def __init__(self, spec: SharedSpec, layer: int, build: Build) -> None:
        name = f"blk.{layer}.ffn_gate_inp_shexp"
        self._name = f"{name}.weight"
        self._network = Network(spec.network, f"blk.{layer}.ffn_{{}}_shexp", build)
        self._coefficient = (build.weights.matrix(self._name, 2, build.hidden),)
        self._bias = (build.weights.vector(f"{name}.bias", 2),)
        self._softmax = ops.Routing("softmax")
        self._shares, self._logits, self._order, self._weight = build.places(_SHARES)

    @staticmethod
    def scratch(spec: SharedSpec, hidden: int) -> Scratch:
        """Buffers of its part and of the network."""
        network = Network.scratch(spec.network, hidden)
        return Scratch((*_SHARES, *network.buffers), network.native_bytes)

    def weigh(self, rows: Rows, weights: ops.Tensor) -> None:
        """Scale the weights (n, k) of the routed experts by what they count, and keep what this one counts.

        Raises NumericalError, naming the tensor, when one of the two logits is a NaN or an infinity.
        """
        logits, order, largest = (rows.views[place] for place in (self._logits, self._order, self._shares))
        ops.matmul((logits,), rows.normed, self._coefficient, True, False, self._bias)
        if not ops.router(order, largest, logits, self._softmax):
            raise bad_logit(self._name)
        routed = order.numpy() == 0  # (n, 2): shares come largest first
        shares: NDArray[np.float32] = largest.numpy()
        weights.numpy()[...] *= shares[routed][:, None]
        rows.views[self._weight].numpy()[:, 0] = shares[~routed]

    def __call__(self, rows: Rows) -> None:
        """Add its answer to rows.normed to rows.hidden."""
        self._network(rows, rows.views[self._weight])


_SHARES = Buffer("shares", 2), Buffer("shares_logits", 2), Buffer("shares_order", 2, "I32"), Buffer("shared_weight", 1)
