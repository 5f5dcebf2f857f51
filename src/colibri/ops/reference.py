"""The specification of `colibri.ops` in numpy: what each op computes, without tiles, threads or vectors.

Weights are plain GGUF bytes with a type name and a shape. Sums are taken in float64 and rounded once, so a
native kernel is compared with a tolerance; integer results (block bytes, quantised activations, expert ids) are
compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colibri.config import KvType

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
Score = Literal["softmax", "sigmoid", "softmax_chosen", "sqrt_softplus"]
Glu = Literal["silu", "gelu_tanh", "gelu_erf", "swiglu_oai"]

KV_BLOCK = 256  # tokens in a block of the key-value cache
KV_LANES = 16  # keys that lie side by side in a block


class Format(NamedTuple):
    """One block format: GGUF's type code, values and bytes a block, activation format of the fast mode."""

    code: int
    values: int
    bytes: int
    activation: Literal["f32", "q32", "q256"]


FORMATS = {
    "F32": Format(0, 1, 4, "f32"),
    "F16": Format(1, 1, 2, "f32"),
    "BF16": Format(30, 1, 2, "f32"),
    "Q4_0": Format(2, 32, 18, "q32"),
    "Q8_0": Format(8, 32, 34, "q32"),
    "MXFP4": Format(39, 32, 17, "q32"),
    "Q4_K": Format(12, 256, 144, "q256"),
    "Q5_K": Format(13, 256, 176, "q256"),
    "Q6_K": Format(14, 256, 210, "q256"),
}
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # twice E2M1


class Weight(NamedTuple):
    """A matrix as GGUF stores it: `data` holds the blocks of shape[0] rows of shape[1] values."""

    type: str
    data: Any  # bytes-like
    shape: tuple[int, int]


# ---- block formats -------------------------------------------------------------------------------------------


def dequantize(type: str, data: Any, shape: Sequence[int]) -> F32:
    """Plain GGUF bytes of `type` -> float32 array of `shape` (the last dimension is a row).

    Layouts: the GGUF specification and the OCP microscaling formats (MXFP4).
    """
    form = FORMATS[type]
    blocks = np.frombuffer(data, np.uint8).reshape(-1, form.bytes)  # (blocks, bytes)
    if shape[-1] % form.values or blocks.shape[0] * form.values != int(np.prod(shape)):
        raise ValueError(f"{type}: {blocks.size} bytes are not a tensor of shape {tuple(shape)}")
    return _READERS[type](blocks).reshape(shape)


def _half(block_bytes: U8) -> F32:  # (blocks, 2) -> (blocks, 1)
    return np.ascontiguousarray(block_bytes).view(np.float16).astype(np.float32)


def _nibbles(packed: U8, run: int) -> U8:
    """Each run of bytes holds `run` low nibbles, then `run` high ones: (blocks, n) -> (blocks, 2n)."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(len(packed), -1)


def _f32(blocks: U8) -> F32:
    return blocks.view(np.float32)


def _f16(blocks: U8) -> F32:
    return _half(blocks)


def _bf16(blocks: U8) -> F32:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: U8) -> F32:
    return _half(blocks[:, :2]) * (_nibbles(blocks[:, 2:], 16).astype(np.float32) - 8)


def _q8_0(blocks: U8) -> F32:
    return _half(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _mxfp4(blocks: U8) -> F32:
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)  # half of 2^(e - 127)
    return (scale * MXFP4_VALUES[_nibbles(blocks[:, 1:], 16)]).astype(np.float32)


def scales_and_mins(packed: U8) -> tuple[U8, U8]:
    """The 12 bytes of a Q4_K or Q5_K block -> eight 6-bit scales and eight 6-bit mins, (blocks, 8) each."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    mins = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return scales, mins


def _scaled_offset(blocks: U8, q: U8) -> F32:
    """d * scale * q - dmin * min, one scale and min for each 32 of the 256 values."""
    scales, mins = scales_and_mins(blocks[:, 4:16])
    step = (_half(blocks[:, 0:2]) * scales.astype(np.float32))[:, :, None]  # (blocks, 8, 1)
    offset = (_half(blocks[:, 2:4]) * mins.astype(np.float32))[:, :, None]
    return (step * q.reshape(-1, 8, 32).astype(np.float32) - offset).reshape(-1, 256)


def _q4_k(blocks: U8) -> F32:
    return _scaled_offset(blocks, _nibbles(blocks[:, 16:144], 32))


def _q5_k(blocks: U8) -> F32:
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    return _scaled_offset(blocks, (_nibbles(blocks[:, 48:176], 32) | fifth << 4).astype(np.uint8))


def _q6_k(blocks: U8) -> F32:
    low = _nibbles(blocks[:, 0:128], 64)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = (low | pairs.reshape(-1, 256) << 4).astype(np.float32) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    step = (_half(blocks[:, 208:210]) * scales)[:, :, None]  # (blocks, 16, 1)
    return (step * q.reshape(-1, 16, 16)).reshape(-1, 256)


_READERS = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "Q4_0": _q4_0, "Q8_0": _q8_0, "MXFP4": _mxfp4,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


# ---- activations ---------------------------------------------------------------------------------------------


class Quantized(NamedTuple):
    """Blocks of int8: x ~ scale * q. `sums` are those of q over a block of 32, or over each 16 of 256."""

    scale: F32  # (n, blocks)
    q: NDArray[np.int8]  # (n, blocks, 32 or 256)
    sums: I32  # (n, blocks, 1 or 16)


def quantize_activations(x: F32, block: Literal[32, 256]) -> Quantized:
    """x (n, k) -> int8 blocks: scale = max|x| / 127, q = x * (127 / max|x|) rounded half to even, all in float32."""
    groups = x.astype(np.float32).reshape(len(x), -1, block)
    peak = np.abs(groups).max(axis=2, keepdims=True)  # (n, blocks, 1)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    q = np.clip(np.rint(groups * inverse), -127, 127).astype(np.int8)
    run = 32 if block == 32 else 16
    sums = q.reshape(len(x), groups.shape[1], -1, run).sum(axis=3, dtype=np.int32)
    return Quantized((peak / np.float32(127))[:, :, 0], q, sums)


def as_seen(x: F32, activation: str) -> F64:
    """x (n, k) after a round trip through an activation format, in float64."""
    if activation == "f32":
        return x.astype(np.float64)
    blocks = quantize_activations(x, 32 if activation == "q32" else 256)
    return (blocks.q.astype(np.float64) * blocks.scale[:, :, None]).reshape(x.shape)


def matmul(x: F32, weight: Weight, exact: bool = False, bias: F32 | None = None) -> F32:
    """x (n, k), weight (rows, k) -> (n, rows). `exact`: x in float32, not in the weight's format."""
    seen = x.astype(np.float64) if exact else as_seen(x, FORMATS[weight.type].activation)
    y = seen @ dequantize(*weight).astype(np.float64).T
    return (y if bias is None else y + bias).astype(np.float32)


def embed(table: Weight, ids: I32) -> F32:
    """Rows `ids` of the table: (n, k)."""
    if ids.size and (ids.min() < 0 or ids.max() >= table.shape[0]):
        raise IndexError(f"token id outside 0..{table.shape[0] - 1}")
    return dequantize(*table)[ids]


# ---- rows ----------------------------------------------------------------------------------------------------


def _sigmoid(x: F64) -> F64:
    return np.exp(-np.logaddexp(0.0, -x))


def glu(activation: Glu, gate: F32, up: F32) -> F32:
    """The gated activation of an expert. swiglu_oai is gpt-oss's, with its limits of 7 and its slope of 1.702."""
    g, u = gate.astype(np.float64), up.astype(np.float64)
    if activation == "silu":
        out = g * _sigmoid(g) * u
    elif activation == "gelu_tanh":
        out = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u
    elif activation == "gelu_erf":
        out = 0.5 * g * (1 + np.vectorize(math.erf)(g / np.sqrt(2))) * u
    else:
        g, u = np.minimum(g, 7), np.clip(u, -7, 7)
        out = g * _sigmoid(1.702 * g) * (u + 1)
    return out.astype(np.float32)


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x (..., dim) / sqrt(mean of x^2 + eps) * weight."""
    wide = x.astype(np.float64)
    root = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)
    return np.asarray(wide / root * weight, np.float32)


def layer_norm(x: F32, weight: F32, bias: F32, eps: float) -> F32:
    """x (..., dim), its mean taken off / sqrt(variance + eps) * weight + bias."""
    wide = x.astype(np.float64)
    wide -= wide.mean(axis=-1, keepdims=True)
    root = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)
    return np.asarray(wide / root * weight + bias, np.float32)


def rope(x: F32, positions: I32, cosine: F32, sine: F32) -> F32:
    """x (n, heads, head_dim) turned by half-split pairs (i, i + rotary/2); cosine and sine (context, rotary/2)."""
    half = cosine.shape[1]
    cos, sin = cosine[positions][:, None].astype(np.float64), sine[positions][:, None].astype(np.float64)
    first, second = x[..., :half].astype(np.float64), x[..., half : 2 * half].astype(np.float64)
    turned = [first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :].astype(np.float64)]
    return np.concatenate(turned, axis=-1).astype(np.float32)


def sample(logits: F32, settings: Sequence[float]) -> tuple[int, float]:
    """A token, and ln of the sum of exp(logits) (vocab,), NaN when one is not finite; settings as in `kept`, uniform.

    The first id at which the running sum of what the filters let in passes `uniform` of the whole.
    """
    *filters, uniform = settings
    ids, weights = kept(logits, *filters)
    order = np.argsort(ids)
    place = int(np.searchsorted(np.cumsum(weights[order]), uniform * weights.sum(), side="right"))
    wide = logits.astype(np.float64)
    norm = np.log(np.exp(wide - wide.max()).sum()) + wide.max() if np.isfinite(logits).all() else np.nan
    return int(ids[order[min(place, len(ids) - 1)]]), float(norm)


def kept(logits: F32, temperature: float, top_k: float, top_p: float, min_p: float) -> tuple[NDArray[np.int64], F64]:
    """The tokens that the filters let in, likeliest first, the lower id first on ties, and their weights."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    wide = logits[order].astype(np.float64)
    weights = np.exp((wide - wide[0]) / temperature) if temperature else np.eye(1, len(wide))[0]
    if top_k:
        order, weights = order[: int(top_k)], weights[: int(top_k)]
    inside = (np.cumsum(weights) - weights < top_p * weights.sum()) & (weights >= min_p)
    inside[0] = True
    return order[inside], weights[inside]


# ---- attention -----------------------------------------------------------------------------------------------


def kv_append(keys: NDArray[np.float16], values: NDArray[np.float16], k: F32, v: F32, positions: I32,
              table: I32) -> None:  # fmt: skip
    """Store k, v (n, kv_heads, head_dim) of one sequence as float16 in the blocks that `table` names.

    values (blocks, kv_heads, KV_BLOCK, head_dim). keys (blocks, kv_heads, KV_BLOCK/16, head_dim, 16): a group of 16
    tokens lies with the tokens innermost.
    """
    for row, position in enumerate(positions):
        block, token = table[position // KV_BLOCK], position % KV_BLOCK
        keys[block, :, token // KV_LANES, :, token % KV_LANES] = k[row]
        values[block, :, token] = v[row]


def stored(x: F32, kv_type: KvType) -> F64:
    """Keys or values (..., head_dim) as a cache gives them back.

    q8_0: each 32 dimensions of a head are int8 with one scale, largest magnitude / 127, kept as a float16.
    """
    if kv_type == "f16":
        return x.astype(np.float16).astype(np.float64)
    dim = x.shape[-1]
    blocks = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -dim % 32)]).reshape(*x.shape[:-1], -1, 32)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    q = np.rint(blocks * (np.float32(127) / np.where(peak > 1e-35, peak, np.float32(np.inf))))
    scale = (peak / np.float32(127)).astype(np.float16)
    return np.asarray((q * scale.astype(np.float64)).reshape(*x.shape[:-1], -1)[..., :dim], np.float64)


def attention(q: F32, keys: F32, values: F32, positions: I32, scale: float, window: int = 0,
              sinks: F32 | None = None, kv_type: KvType = "f16") -> F32:  # fmt: skip
    """Causal attention of one sequence with grouped heads; keys and values are rounded as the cache does.

    q (n, heads, head_dim); keys, values (tokens, kv_heads, head_dim); a query at position p sees keys p-window+1..p
    (window 0: all up to p). sinks (heads,): one more logit in each softmax's denominator. Returns (n, heads, head_dim).
    """
    group = q.shape[1] // keys.shape[1]
    k = np.repeat(stored(keys, kv_type), group, axis=1)  # (tokens, heads, head_dim)
    v = np.repeat(stored(values, kv_type), group, axis=1)
    scores = np.einsum("nhd,thd->nht", q.astype(np.float64), k) * scale
    back = positions[:, None] - np.arange(len(keys))[None, :]  # how far a key lies before the query
    seen = (back >= 0) & ((back < window) if window else True)
    scores = np.where(seen[:, None, :], scores, -np.inf)
    peak = scores.max(axis=2, keepdims=True)
    if sinks is not None:
        peak = np.maximum(peak, sinks[None, :, None])
    weights = np.exp(scores - peak)
    total = weights.sum(axis=2, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[None, :, None] - peak)
    return np.asarray(np.einsum("nht,thd->nhd", weights / total, v), np.float32)


# ---- mixture of experts --------------------------------------------------------------------------------------


def _softmax(x: F64) -> F64:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


_SCORES: dict[Score, Callable[[F64], F64]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "softmax_chosen": lambda logits: logits,
    "sqrt_softplus": lambda logits: np.sqrt(np.logaddexp(0.0, logits)),
}


def router(logits: F32, k: int, score: Score, renormalize: bool, bias: F32 | None = None,
           scale: float = 1.0) -> tuple[I32, F32]:  # fmt: skip
    """The k experts of each token and their weights, both (n, k), from logits (n, experts).

    Experts are chosen by score + bias and ordered by it, descending, the lower id first on ties; the weight is the
    score without the bias, divided by their sum if `renormalize`, times `scale`. softmax_chosen chooses by logit
    and takes the softmax over the chosen. Scores are float32, so that ties are those of the native op's precision.
    """
    wide = logits.astype(np.float64)
    scores = _SCORES[score](wide)
    choice = scores.astype(np.float32) if bias is None else scores.astype(np.float32) + bias
    ids = np.argsort(-choice, axis=1, kind="stable")[:, :k].astype(np.int32)
    weights = np.take_along_axis(scores, ids, axis=1)
    if score == "softmax_chosen":
        weights = _softmax(weights)
    if renormalize:
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-20)
    return ids, (weights * scale).astype(np.float32)


class Expert(NamedTuple):
    """gate (None: without), up (intermediate, hidden); down (hidden, intermediate); biases as the rows or None."""

    gate: Weight | None
    up: Weight
    down: Weight
    gate_bias: F32 | None = None
    up_bias: F32 | None = None
    down_bias: F32 | None = None


def expert(x: F32, e: Expert, activation: Glu = "silu", exact: bool = False) -> F32:
    """x (n, hidden) -> (n, hidden): down(glu(gate x, up x)), without a gate down(glu(up x, 1)).

    Fast mode quantises x and the activated row alike.
    """
    up = matmul(x, e.up, exact, e.up_bias)
    gate, up = (up, np.ones_like(up)) if e.gate is None else (matmul(x, e.gate, exact, e.gate_bias), up)
    return matmul(glu(activation, gate, up), e.down, exact, e.down_bias)


def moe(x: F32, experts: Sequence[Expert | None], ids: I32, activation: Glu = "silu", exact: bool = False) -> F32:
    """One row for each (token, slot): x (n, hidden), ids (n, k) -> slots (n * k, hidden). None: not resident."""
    slots = np.zeros((ids.size, x.shape[1]), np.float32)
    for place, number in enumerate(ids.reshape(-1).tolist()):
        chosen = experts[number]
        if chosen is None:
            raise ValueError(f"expert {number} is not set")
        token = place // ids.shape[1]
        slots[place] = expert(x[token : token + 1], chosen, activation, exact)[0]
    return slots


def combine(out: F32, slots: F32, weights: F32) -> F32:
    """out (n, hidden) + the token's slots times their weights (n, k), added in slot order in float32."""
    total = out.copy()
    rows = slots.reshape(*weights.shape, -1)  # (n, k, hidden)
    for slot in range(weights.shape[1]):
        total += weights[:, slot, None] * rows[:, slot]
    return total
