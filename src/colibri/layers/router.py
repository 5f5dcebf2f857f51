"""The router of a layer: which experts a token goes to, and with what weight."""

from __future__ import annotations

from colibri import ops
from colibri.errors import NumericalError
from colibri.layers.build import Build
from colibri.layers.norm import Norm
from colibri.spec import RoutingSpec


class Router:
    """The norm before it, logits of all experts, scores, the k best, their weights. The rule is in the spec.

    Raises NumericalError, naming the tensor, when the norm's input or a logit is a NaN or an infinity.
    """

    def __init__(self, spec: RoutingSpec, layer: int, norm: Norm, build: Build) -> None:
        self._name = f"blk.{layer}.ffn_gate_inp.weight"
        self._gate = build.weights.matrix(self._name, spec.experts, build.hidden)
        vectors = {
            "bias": f"blk.{layer}.ffn_gate_inp.bias",
            "correction": f"blk.{layer}.exp_probs_b.bias",
            "expert_scale": f"blk.{layer}.ffn_down_exps.scale",
        }
        self._routing = ops.Routing(
            spec.score, renormalize=spec.renormalize, sum_added=spec.sum_added, sum_least=spec.sum_least,
            softmax_of_chosen=spec.softmax_of_chosen, scale=spec.scale, groups=spec.groups,
            kept_groups=spec.kept_groups, group_score=spec.group_score,
            **{field: build.weights.optional_vector(name, spec.experts) for field, name in vectors.items()},
        )  # fmt: skip
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
