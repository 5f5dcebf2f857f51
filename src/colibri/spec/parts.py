"""What layers of several kinds are described by: rotary positions, norms, what stays of a token or a sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from colibri.config import check_choice, check_integer, check_number, refuse

NormKind = Literal["rms", "layer"]
RopeScaling = Literal["none", "linear", "yarn", "llama3", "dynamic", "proportional"]


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
