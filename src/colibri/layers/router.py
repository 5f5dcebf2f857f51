"""The router of a layer: which experts a token goes to, and with what weight."""

from __future__ import annotations

from colibri import ops
from colibri.config import ModelConfig
from colibri.errors import NumericalError
from colibri.layers.linear import DenseWeights
from colibri.layers.norm import Norm


class Router:
    """The norm before it, logits of all experts, scores, the k best, their weights. The rule is in the configuration.

    Raises NumericalError, naming the tensor, when the norm's input or a logit is a NaN or an infinity.
    """

    def __init__(self, weights: DenseWeights, config: ModelConfig, layer: int, norm: Norm) -> None:
        self._name = f"blk.{layer}.ffn_gate_inp.weight"
        self._gate = weights.matrix(self._name, config.experts, config.hidden_size)
        correction = weights.optional_vector(f"blk.{layer}.exp_probs_b.bias", config.experts)
        self._routing = ops.Routing(
            config.score, renormalize=config.renormalize, scale=config.expert_scale, correction=correction
        )
        self._norm = norm

    def __call__(
        self, hidden: ops.Tensor, normed: ops.Tensor, logits: ops.Tensor, chosen: ops.Tensor, weights: ops.Tensor
    ) -> None:
        """hidden (n, hidden) -> normed (n, hidden), logits (n, experts), chosen (n, k) and weights (n, k)."""
        if ops.route(chosen, weights, logits, normed, hidden, self._norm.parameters, self._gate, self._routing):
            return
        self._norm(normed, hidden)  # raises if it was the norm
        raise bad_logit(self._name)


def bad_logit(name: str) -> NumericalError:
    """What to raise when a logit that these weights give is not finite."""
    return NumericalError(f"{name}: a router logit is a NaN or an infinity; the weights are damaged")
