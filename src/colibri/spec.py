"""What a model is made of: a list of layers, each of which has only what its kind needs.

A family's module in models/ makes these from a checkpoint's metadata; layers/ makes what runs from them. All are frozen
and checked when made: a wrong value raises ArgumentError naming the field, what was found and what was expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from colibri.config import check_choice, check_integer, check_number, refuse

Score = Literal["softmax", "sigmoid", "sqrt_softplus", "identity"]
GroupScore = Literal["max", "sum_of_two"]
Activation = Literal["silu", "gelu_tanh", "gelu_erf", "relu2", "silu_clamped", "swiglu_oai"]
NormKind = Literal["rms", "layer"]
QueryKeyNorm = Literal["none", "head", "full"]
RopeScaling = Literal["none", "linear", "yarn", "llama3", "dynamic", "proportional"]
SharedGate = Literal["none", "sigmoid", "softmax"]

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 24
# What the native ops take; native/bind checks it, too, but only when a model runs.
HEAD_DIM_STEP = 8
MAX_WINDOW = (1 << 31) - 1
LATENT_STEP = 32
MAX_TAPS = 8
LANES = 16


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary positions: `rotary` values of each head turn by position / theta^(2i/rotary), stretched by `scaling`.

    attention_factor multiplies cosine and sine; None is what the scaling's paper proposes. factors: the tensor whose
    values divide the frequencies in place of a scaling, if there is one. truncate: YaRN's bounds are whole dimensions.
    turning: with the proportional scaling only so many of the values turn, the first of both halves.
    """

    theta: float
    rotary: int
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    turning: int = 0
    factors: str | None = None

    def __post_init__(self) -> None:
        check_number("rope.theta", self.theta, 1, math.inf, open_low=True)
        check_integer("rope.rotary", self.rotary, 2)
        if self.rotary % 2:
            refuse("rope.rotary", self.rotary, "an even number")
        check_choice("rope.scaling", self.scaling, get_args(RopeScaling))
        check_number("rope.factor", self.factor, 0, math.inf, open_low=True)
        if self.scaling in ("yarn", "llama3", "dynamic"):
            check_integer("rope.original_context", self.original_context, 1)
        check_integer("rope.turning", self.turning, 0, self.rotary)
        if self.attention_factor is not None:
            check_number("rope.attention_factor", self.attention_factor, 0, math.inf, open_low=True)
        for name in ("beta_fast", "beta_slow", "low_frequency_factor", "high_frequency_factor"):
            check_number(f"rope.{name}", getattr(self, name), 0, math.inf, open_low=True)


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    """RMSNorm, or LayerNorm with a bias."""

    eps: float
    kind: NormKind = "rms"

    def __post_init__(self) -> None:
        check_number("norm.eps", self.eps, 0, 1)
        check_choice("norm.kind", self.kind, get_args(NormKind))


@dataclass(frozen=True, kw_only=True)
class KeyValues:
    """What attention keeps of a token: a key and a value for each of some heads, of which the latest `window` count.

    value_dim: 0 where values are the first dimensions of the keys, which are stored once.
    """

    heads: int
    key_dim: int
    value_dim: int
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class State:
    """What a layer keeps of a sequence however long it is: float32 tensors by name."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def nbytes(self) -> int:
        """Of one sequence."""
        return sum(4 * math.prod(shape) for _, shape in self.tensors)


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Causal attention with grouped queries.

    rope: None where positions do not turn queries and keys. window: how many latest positions a query sees, 0 for all.
    qk_norm: RMSNorm of queries and keys, for each head or over the full width. clip: the largest magnitude of queries,
    keys and values. scale: what scores are multiplied by, 1 / sqrt(head_dim) unless it is given. sinks: each head has a
    logit that takes a part of the softmax and has no value. gate: what a head answers is multiplied by the sigmoid of
    values that the projection of queries gives beside its query. value_norm: RMSNorm of each head's values, without a
    weight. values_from_keys: values are what the projection of keys gives. Biases are there where the checkpoint has
    them.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    window: int = 0
    qk_norm: QueryKeyNorm = "none"
    clip: float | None = None
    sinks: bool = False
    scale: float | None = None
    gate: bool = False
    value_norm: bool = False
    values_from_keys: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim"):
            check_integer(name, getattr(self, name), 1, 1 << 12)
        if self.head_dim % HEAD_DIM_STEP:
            refuse("head_dim", self.head_dim, f"a multiple of {HEAD_DIM_STEP}, as the kernels of attention need it")
        if self.heads % self.kv_heads:
            refuse("kv_heads", self.kv_heads, f"a divisor of heads ({self.heads})")
        if self.rope is not None and self.rope.rotary > self.head_dim:
            refuse("rope.rotary", self.rope.rotary, f"at most head_dim ({self.head_dim})")
        check_integer("window", self.window, 0, MAX_WINDOW)
        check_choice("qk_norm", self.qk_norm, get_args(QueryKeyNorm))
        for name in ("clip", "scale"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, math.inf, open_low=True)

    def __str__(self) -> str:
        window = f", the latest {self.window} tokens" if self.window else ""
        return f"{self.heads} heads, {self.kv_heads} for keys and values, of {self.head_dim}{window}"

    @property
    def score_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def query_width(self) -> int:
        """Values of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Values of all key heads, or all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def keeps(self) -> KeyValues:
        """What stays of a token for those after it."""
        return KeyValues(heads=self.kv_heads, key_dim=self.head_dim, value_dim=self.head_dim, window=self.window)


@dataclass(frozen=True, kw_only=True)
class LatentAttentionSpec:
    """Causal attention over latent vectors (MLA, arXiv 2405.04434), the matrices of keys and values absorbed.

    Of a token all heads share one key: a latent vector of kv_rank values, which are its values too, and behind them
    rope.rotary that positions turn. A head's query has nope_dim values that meet the latent vector through the head's
    matrix of keys; value_dim is what the matrix of values makes of what the head attends to.
    query_rank: the width of the vector that queries are made from, 0 where that is the hidden state. norm: of both
    kinds of vectors. scale: of the products of queries and keys.
    """

    heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    value_dim: int
    rope: RopeSpec
    scale: float
    norm: NormSpec

    def __post_init__(self) -> None:
        check_integer("query_rank", self.query_rank, 0, 1 << 16)
        for name in ("heads", "kv_rank", "nope_dim", "value_dim"):
            check_integer(name, getattr(self, name), 1, 1 << 12)
        for name, step in (("kv_rank", LATENT_STEP), ("value_dim", LANES)):
            if getattr(self, name) % step:
                refuse(name, getattr(self, name), f"a multiple of {step}, as the kernels of latent attention need it")
        if self.rope.rotary % HEAD_DIM_STEP:
            refuse("rope.rotary", self.rope.rotary, f"a multiple of {HEAD_DIM_STEP}, as the kernels need it")
        check_number("scale", self.scale, 0, math.inf, open_low=True)

    def __str__(self) -> str:
        sizes = f"{self.kv_rank} + {self.rope.rotary} values that they share"
        return f"{self.heads} heads of {self.nope_dim + self.rope.rotary}, {sizes} (latent)"

    @property
    def query_dim(self) -> int:
        """Values of a head's query."""
        return self.nope_dim + self.rope.rotary

    @property
    def key_dim(self) -> int:
        """Values of the key that all heads share."""
        return self.kv_rank + self.rope.rotary

    @property
    def keeps(self) -> KeyValues:
        """What stays of a token for those after it."""
        return KeyValues(heads=1, key_dim=self.key_dim, value_dim=0)


@dataclass(frozen=True, kw_only=True)
class DeltaNetSpec:
    """The gated delta rule (arXiv 2412.06464) behind a short convolution, with a gated norm of the answers.

    Each of `heads` has a state (key_size, value_size) and shares its query and key with the others of its key head:
    its neighbours, or if `tiled` those at a distance of key_heads.
    """

    heads: int
    key_heads: int
    key_size: int
    value_size: int
    taps: int = 4
    tiled: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "key_heads", "key_size", "value_size"):
            check_integer(f"delta net's {name}", getattr(self, name), 1, 1 << 12)
        check_integer("delta net's taps", self.taps, 2, MAX_TAPS)
        if self.heads % self.key_heads:
            refuse("delta net's key_heads", self.key_heads, f"a divisor of heads ({self.heads})")

    def __str__(self) -> str:
        sizes = f"{self.key_size} x {self.value_size}"
        return f"{self.heads} states of {sizes}, {self.key_heads} heads for queries and keys (gated delta net)"

    @property
    def key_width(self) -> int:
        """Values of all queries, or all keys."""
        return self.key_heads * self.key_size

    @property
    def value_width(self) -> int:
        """Values of all heads."""
        return self.heads * self.value_size

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def keeps(self) -> State:
        """What stays of the tokens so far; the kernels hold values in whole lanes."""
        lanes = -(-self.value_size // LANES) * LANES
        heads = (self.heads, self.key_size * lanes)
        return State(tensors=(("heads", heads), ("convolution", (self.taps - 1, self.channels))))


@dataclass(frozen=True, kw_only=True)
class Mamba2Spec:
    """The state space of Mamba2 (arXiv 2405.21060) behind a short convolution, with a norm of its gated answers.

    Each of `heads` has a state (state_size, head_dim); those of a group share what goes into it and what reads it.
    least_step: the shortest step in time.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    taps: int = 4
    least_step: float = 0.0

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "groups", "state_size"):
            check_integer(f"Mamba2's {name}", getattr(self, name), 1, 1 << 12)
        check_integer("Mamba2's taps", self.taps, 2, MAX_TAPS)
        check_number("Mamba2's least_step", self.least_step, 0, 1e30)
        if self.heads % self.groups:
            refuse("Mamba2's groups", self.groups, f"a divisor of heads ({self.heads})")

    def __str__(self) -> str:
        sizes = f"{self.state_size} x {self.head_dim}"
        return f"{self.heads} states of {sizes} in groups of {self.heads // self.groups} (Mamba2)"

    @property
    def width(self) -> int:
        """Values of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: values, and for each group what goes into states and what reads them."""
        return self.width + 2 * self.groups * self.state_size

    @property
    def keeps(self) -> State:
        """What stays of the tokens so far; the kernels hold values in whole lanes."""
        lanes = -(-self.head_dim // LANES) * LANES
        heads = (self.heads, self.state_size * lanes)
        return State(tensors=(("heads", heads), ("convolution", (self.taps - 1, self.channels))))


@dataclass(frozen=True, kw_only=True)
class ShortConvSpec:
    """A gated short convolution (LFM2): c times the convolution of b times x, all three linear in the input."""

    channels: int
    taps: int

    def __post_init__(self) -> None:
        check_integer("convolution's channels", self.channels, 1, MAX_WIDTH)
        check_integer("convolution's taps", self.taps, 2, MAX_TAPS)

    def __str__(self) -> str:
        return f"a convolution over {self.taps} tokens (gated)"

    @property
    def keeps(self) -> State:
        """What stays of the tokens so far: the inputs of the latest."""
        return State(tensors=(("convolution", (self.taps - 1, self.channels)),))


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


Mixer = AttentionSpec | LatentAttentionSpec | DeltaNetSpec | Mamba2Spec | ShortConvSpec
FeedForward = MoeSpec | DenseSpec


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """A layer: what mixes the tokens of a sequence, then what each goes through alone, with a norm before each.

    Either may be None, not both. ffn_norm: what GGUF files call the second norm. residual_scale: what both answers are
    multiplied by before they are added to the residual stream. answer_norms: what GGUF files call the norms of both
    answers, where there are such.
    """

    mixer: Mixer | None
    ffn: FeedForward | None
    norm: NormSpec
    ffn_norm: str = "ffn_norm"
    residual_scale: float = 1.0
    answer_norms: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if self.mixer is None and self.ffn is None:
            refuse("layer", "neither a mixer nor a feed-forward part", "one of them or both")
        check_number("residual_scale", self.residual_scale, 0, 1e30, open_low=True)

    @property
    def keeps(self) -> KeyValues | State | None:
        """What stays of a token or a sequence for the tokens after it."""
        return None if self.mixer is None else self.mixer.keeps

    @property
    def answers_apart(self) -> bool:
        """Whether answers are made in a buffer of their own before they are added to the residual stream."""
        beside = isinstance(self.ffn, MoeSpec) and self.ffn.beside is not None
        return self.residual_scale != 1 or self.answer_norms is not None or beside


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder.

    learned_positions: a vector for each position is added to the embedding. embedding_scale and logit_scale: what
    embeddings and logits are multiplied by. logit_cap: logits are bent to stay below it. final_norm: what GGUF files
    call the last norm.
    """

    architecture: str
    name: str
    hidden_size: int
    vocab_size: int
    context_length: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    learned_positions: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    final_norm: str = "output_norm"
    routing: RoutingSpec = field(init=False)  # of all its mixtures

    def __post_init__(self) -> None:
        check_integer("hidden_size", self.hidden_size, 1, 1 << 20)
        check_integer("vocab_size", self.vocab_size, 1, 1 << 28)
        check_integer("context_length", self.context_length, 1, 1 << 40)
        check_integer("layers", len(self.layers), 1, MAX_LAYERS)
        for name in ("embedding_scale", "logit_scale"):
            check_number(name, getattr(self, name), 0, 1e30, open_low=True)
        if self.logit_cap is not None:
            check_number("logit_cap", self.logit_cap, 0, 1e30, open_low=True)
        routings = [layer.ffn.routing for layer in self.layers if isinstance(layer.ffn, MoeSpec)]
        sizes = sorted({(routing.experts, routing.experts_per_token) for routing in routings})
        if len(sizes) != 1:
            refuse("mixtures", sizes, "experts of one number, of which a token takes one number, in one layer or more")
        object.__setattr__(self, "routing", routings[0])

    @property
    def experts(self) -> int:
        """Experts of a layer that has any."""
        return self.routing.experts

    @property
    def experts_per_token(self) -> int:
        """How many of them a token goes to."""
        return self.routing.experts_per_token

    @property
    def ropes(self) -> set[RopeSpec]:
        """The different rotary positions."""
        found = {getattr(layer.mixer, "rope", None) for layer in self.layers}
        return {rope for rope in found if isinstance(rope, RopeSpec)}
