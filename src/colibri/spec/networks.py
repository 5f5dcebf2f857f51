"""What each token goes through alone: a dense network, or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from colibri.config import check_choice, check_integer, check_number, refuse

Score = Literal["softmax", "sigmoid", "sqrt_softplus", "identity"]
GroupScore = Literal["max", "sum_of_two"]
Activation = Literal["silu", "gelu_tanh", "gelu_erf", "relu2", "silu_clamped", "swiglu_oai"]
SharedGate = Literal["none", "sigmoid", "softmax"]

MAX_WIDTH = 1 << 24


@dataclass(frozen=True, kw_only=True)
class DenseSpec:
    """A network that every row goes through, or an expert: up and down, most with a gate.

    alpha and limit are what the clamped activations need.
    """

    width: int
    activation: Activation = "silu"
    gated: bool = True
    alpha: float = 1.702
    limit: float = 7.0

    def __post_init__(self) -> None:
        check_integer("feed-forward width", self.width, 1, MAX_WIDTH)
        check_choice("activation", self.activation, get_args(Activation))
        if not self.gated and self.activation == "swiglu_oai":
            refuse("activation", self.activation, "another one, or a network with a gate")
        check_number("activation's alpha", self.alpha, 0, 1e30, open_low=True)
        check_number("activation's limit", self.limit, 0, 1e30, open_low=True)


@dataclass(frozen=True, kw_only=True)
class RoutingSpec:
    """How the router chooses: scores of all experts, the best of them, their weights.

    softmax_of_chosen: the weights are a softmax of the chosen logits. renormalize: they are divided by
    the larger of sum_least and their sum with sum_added. scale multiplies them. groups: of the groups of neighbouring
    experts only those of the kept_groups best scores are chosen from. Biases are there where
    the checkpoint has them.
    """

    experts: int
    experts_per_token: int
    renormalize: bool = False
    score: Score = "softmax"
    softmax_of_chosen: bool = False
    sum_added: float = 0.0
    sum_least: float = 1e-20
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    group_score: GroupScore = "max"

    def __post_init__(self) -> None:
        check_integer("experts", self.experts, 1, 1 << 16)
        check_integer("experts_per_token", self.experts_per_token, 1, min(self.experts, 1 << 10))
        check_choice("score", self.score, get_args(Score))
        check_number("expert scale", self.scale, 0, 1e30, open_low=True)  # as a float32 too
        check_number("sum_added", self.sum_added, 0, 1e30)
        check_number("sum_least", self.sum_least, 0, 1e30)
        if self.renormalize and self.score == "identity" and not self.softmax_of_chosen:
            refuse("renormalize", True, "False with identity scores, whose sum may be negative")
        check_integer("groups", self.groups, 1, self.experts)
        if self.experts % self.groups:
            refuse("groups", self.groups, f"a divisor of experts ({self.experts})")
        if self.groups > 1 and self.group_score == "sum_of_two" and self.experts // self.groups < 2:
            refuse("groups", self.groups, f"groups of two experts or more, of {self.experts}, with sum_of_two")
        check_integer("kept_groups", self.kept_groups, 1, self.groups)
        if self.experts_per_token > self.kept_groups * (self.experts // self.groups):
            refuse("experts_per_token", self.experts_per_token, "no more than the kept groups have")
        check_choice("group_score", self.group_score, get_args(GroupScore))


@dataclass(frozen=True, kw_only=True)
class SharedSpec:
    """An expert that every row goes through beside those it is routed to.

    gate: what its answer is multiplied by before it is added. "none": nothing. "sigmoid": that of one logit. "softmax":
    its part of a softmax over two, of which the routed experts have the other.
    """

    network: DenseSpec
    gate: SharedGate = "none"

    def __post_init__(self) -> None:
        check_choice("shared expert's gate", self.gate, get_args(SharedGate))


@dataclass(frozen=True, kw_only=True)
class BesideSpec:
    """A dense network beside the experts, with norms of its own, before it and of its answer, by their GGUF names."""

    network: DenseSpec
    norm: str
    answer_norm: str


@dataclass(frozen=True, kw_only=True)
class MoeSpec:
    """A mixture of experts: `expert` is what each of them is.

    beside: a dense network that each row goes through, too. answer_norm: what GGUF files call the norm of the experts'
    answer, where there is one. router_scale: the router has an RMSNorm of its own, whose weight is that of GGUF files
    times this; None: it sees what the experts see. latent: how many values routed experts take and give, from and to
    which two matrices lead; 0 for the hidden size.
    """

    routing: RoutingSpec
    expert: DenseSpec
    shared: SharedSpec | None = None
    beside: BesideSpec | None = None
    answer_norm: str = ""
    router_scale: float | None = None
    latent: int = 0

    def __post_init__(self) -> None:
        if self.router_scale is not None:
            check_number("router_scale", self.router_scale, 0, 1e30, open_low=True)
        check_integer("latent width of experts", self.latent, 0, 1 << 20)
        if self.latent and self.answer_norm:
            refuse("latent width of experts", self.latent, "0 where their answer is normed")
