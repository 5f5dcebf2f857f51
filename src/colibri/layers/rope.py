"""Tables of cosines and sines for rotary positions, with the scalings that stretch a context.

Sources: RoFormer (arXiv 2104.09864); YaRN (2309.00071); the NTK and llama3 formulas as transformers'
modeling_rope_utils has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.spec import RopeSpec

F64 = NDArray[np.float64]
RopeTables = Mapping[RopeSpec, tuple[ops.Tensor, ops.Tensor]]
"""Cosine and sine of every position, F32 (context, rotary/2) each."""
PART = 4096  # positions


def inverse_frequencies(rope: RopeSpec, context: int, factors: F64 | None = None) -> F64:
    """Radians a position for each pair, (rotary/2,).

    `factors` (rotary/2,) divide the frequencies; a GGUF file may hold them as rope_freqs.weight, in place of a scaling.
    """
    plain = _plain(rope, rope.theta)
    if factors is not None:
        return plain / factors
    return _SCALINGS[rope.scaling](rope, plain, context)


def attention_factor(rope: RopeSpec) -> float:
    """What cosine and sine are multiplied with: YaRN's temperature, 1 for the others."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.scaling == "yarn" and rope.factor > 1:
        return 0.1 * math.log(rope.factor) + 1
    return 1.0


def rope_tables(rope: RopeSpec, context: int, factors: F64 | None = None) -> tuple[ops.Tensor, ops.Tensor]:
    """Cosine and sine of every position, F32 (context, rotary/2) each."""
    frequencies, scale = inverse_frequencies(rope, context, factors), attention_factor(rope)
    shape = context, rope.rotary // 2
    tables = ops.tensor("F32", shape), ops.tensor("F32", shape)
    for first in range(0, context, PART):  # the angles of a long context are larger than its tables
        last = min(first + PART, context)
        angles = np.outer(np.arange(first, last, dtype=np.float64), frequencies)
        tables[0].numpy()[first:last] = np.cos(angles) * scale
        tables[1].numpy()[first:last] = np.sin(angles) * scale
    return tables


def table_bytes(ropes: Iterable[RopeSpec], context: int) -> int:
    """Bytes of the tables of all."""
    return sum(2 * context * (rope.rotary // 2) * 4 for rope in ropes)


def _plain(rope: RopeSpec, theta: float) -> F64:
    exponents: F64 = np.arange(0, rope.rotary, 2, dtype=np.float64) / rope.rotary
    return theta**-exponents


def _linear(rope: RopeSpec, plain: F64, context: int) -> F64:
    return plain / rope.factor


def _dynamic(rope: RopeSpec, plain: F64, context: int) -> F64:
    """NTK for the longest sequence of this context: a table that changed as a sequence grows would betray its cache."""
    longest = max(context, rope.original_context)
    stretch = rope.factor * longest / rope.original_context - (rope.factor - 1)
    return _plain(rope, rope.theta * stretch ** (rope.rotary / (rope.rotary - 2)))


def _llama3(rope: RopeSpec, plain: F64, context: int) -> F64:
    turns = rope.original_context * plain / (2 * math.pi)  # within the original context
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - smooth) * plain / rope.factor + smooth * plain


def _yarn(rope: RopeSpec, plain: F64, context: int) -> F64:
    low, high = _yarn_dimension(rope, rope.beta_fast), _yarn_dimension(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary - 1)
    ramp: F64 = np.clip((np.arange(rope.rotary // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _yarn_dimension(rope: RopeSpec, turns: float) -> float:
    """The dimension that makes this many turns within the original context."""
    return rope.rotary * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _proportional(rope: RopeSpec, plain: F64, context: int) -> F64:
    return np.where(np.arange(rope.rotary // 2) < rope.turning // 2, plain / rope.factor, 0)


_SCALINGS: dict[str, Callable[[RopeSpec, F64, int], F64]] = {
    "none": lambda rope, plain, context: plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "proportional": _proportional,
}
