"""The router of a layer: which experts a token goes to, and with what weight."""

from __future__ import annotations

from colibri import ops
from colibri.config import ModelConfig
from colibri.errors import NumericalError
from colibri.layers.linear import DenseWeights


class Router:
    """Logits of all experts, scores, the k best, their weights. The rule is in the configuration.

    Raises NumericalError, naming the tensor, when a logit is a NaN or an infinity.
    """

    def __init__(self, weights: DenseWeights, config: ModelConfig, layer: int) -> None:
        self._name = f"blk.{layer}.ffn_gate_inp.weight"
        self._weight = (weights.matrix(self._name, config.experts, config.hidden_size),)
        self._correction = weights.optional_vector(f"blk.{layer}.exp_probs_b.bias", config.experts)
        self._score = config.score
        self._renormalize = config.renormalize
        self._scale = config.expert_scale

    def __call__(self, normed: ops.Tensor, logits: ops.Tensor, chosen: ops.Tensor, weights: ops.Tensor) -> None:
        """normed (n, hidden) -> logits (n, experts), chosen (n, k) and weights (n, k)."""
        ops.matmul((logits,), normed, self._weight, True)  # a choice between experts is worth float32
        if not ops.router(
            chosen, weights, logits, self._score, self._renormalize, self._correction, self._scale
        ):
            raise NumericalError(f"{self._name}: a router logit is a NaN or an infinity; the weights are damaged")
