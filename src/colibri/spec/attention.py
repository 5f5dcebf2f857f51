"""Mixers that keep something of every token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from colibri.config import check_choice, check_integer, check_number, refuse
from colibri.spec.parts import KeyValues, NormSpec, RopeSpec

QueryKeyNorm = Literal["none", "head", "full"]

# What the native ops take; native/bind checks it, too, but only when a model runs.
HEAD_DIM_STEP = 8
MAX_WINDOW = (1 << 31) - 1
LATENT_STEP = 32
VALUE_STEP = 16


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
        for name, step in (("kv_rank", LATENT_STEP), ("value_dim", VALUE_STEP)):
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
