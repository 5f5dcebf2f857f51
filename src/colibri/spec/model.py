"""A layer, and a model as the list of its layers."""

from __future__ import annotations

from dataclasses import dataclass, field

from colibri.config import check_integer, check_number, refuse
from colibri.spec.attention import AttentionSpec, LatentAttentionSpec
from colibri.spec.networks import DenseSpec, MoeSpec, RoutingSpec
from colibri.spec.parts import KeyValues, NormSpec, RopeSpec, State
from colibri.spec.recurrent import DeltaNetSpec, Mamba2Spec, ShortConvSpec

Mixer = AttentionSpec | LatentAttentionSpec | DeltaNetSpec | Mamba2Spec | ShortConvSpec
FeedForward = MoeSpec | DenseSpec

MAX_LAYERS = 1024


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
