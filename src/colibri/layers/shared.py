"""The expert that every row goes through beside those it is routed to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.layers.build import Build
from colibri.layers.dense import Network
from colibri.layers.router import bad_logit
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import SharedSpec

_LOGITS = {"sigmoid": 1, "softmax": 2}  # of a gate: the second of a softmax is what this expert counts


class SharedExpert:
    """A network whose answer is added to that of the routed experts, as it is or times what a gate says."""

    def __init__(self, spec: SharedSpec, layer: int, build: Build) -> None:
        self._network = Network(spec.network, f"blk.{layer}.ffn_{{}}_shexp", build)
        self._gate = None if spec.gate == "none" else SharedGate(spec.gate, layer, build)

    @staticmethod
    def scratch(spec: SharedSpec, hidden: int) -> Scratch:
        """Buffers of the gate and of the network."""
        network = Network.scratch(spec.network, hidden)
        gate = () if spec.gate == "none" else _buffers(_LOGITS[spec.gate])
        return Scratch((*gate, *network.buffers), network.native_bytes)

    def weigh(self, rows: Rows, weights: ops.Tensor) -> None:
        """Ask the gate, which may scale the weights (n, k) of the routed experts.

        Raises NumericalError, naming the tensor, when a logit is a NaN or an infinity.
        """
        if self._gate is not None:
            self._gate.weigh(rows, weights)

    def __call__(self, rows: Rows) -> None:
        """Add its answer to rows.normed to rows.answer."""
        self._network(rows, None if self._gate is None else rows.views[self._gate.weight])


class SharedGate:
    """What the shared expert counts: a sigmoid of one logit, or its part of a softmax over two.

    Of the softmax the routed experts have the other part (DeepSpeed's residual mixture, arXiv 2201.05596).
    """

    def __init__(self, gate: str, layer: int, build: Build) -> None:
        name, count = f"blk.{layer}.ffn_gate_inp_shexp", _LOGITS[gate]
        self._name = f"{name}.weight"
        self._matrix = (build.weights.matrix(self._name, count, build.hidden),)
        self._bias = (build.weights.optional_vector(f"{name}.bias", count),)
        self._score = ops.Routing(gate)
        self._of_two = gate == "softmax"
        self._shares, self._logits, self._order, second = build.places(_buffers(count))
        self.weight = second if self._of_two else self._shares

    def weigh(self, rows: Rows, weights: ops.Tensor) -> None:
        """Fill the buffer `weight` with what the shared expert counts; a softmax scales `weights` of the others."""
        logits, order, shares = (rows.views[place] for place in (self._logits, self._order, self._shares))
        ops.matmul((logits,), rows.normed, self._matrix, True, False, self._bias)
        if not ops.router(order, shares, logits, self._score):
            raise bad_logit(self._name)
        if self._of_two:
            routed = order.numpy() == 0  # (n, 2): shares come largest first
            largest: NDArray[np.float32] = shares.numpy()
            weights.numpy()[...] *= largest[routed][:, None]
            rows.views[self.weight].numpy()[:, 0] = largest[~routed]


def _buffers(count: int) -> tuple[Buffer, ...]:
    return (
        Buffer("shares", count),
        Buffer("shares_logits", count),
        Buffer("shares_order", count, "I32"),
        Buffer("shared_weight", 1),
    )
