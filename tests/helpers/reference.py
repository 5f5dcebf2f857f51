"""The specification of `colibri.ops` in numpy: what each op computes, without tiles, threads or vectors.

Weights are plain GGUF bytes with a type name and a shape. Sums are taken in float64 and rounded once, so a
native kernel is compared with a tolerance; integer results (block bytes, quantised activations, expert ids) are
compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from colibri.config import KvType
from colibri.conversion import calibration, dequantize as conversion
from colibri.spec import DenseSpec
from colibri.weights.block_types import BY_NAME

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]

KV_BLOCK = 256  # tokens in a block of the key-value cache
KV_LANES = 16  # keys that lie side by side in a block


class Format(NamedTuple):
    """One block format: GGUF's type code, values and bytes a block, activation format of the fast mode."""

    code: int
    values: int
    bytes: int
    activation: Literal["f32", "q32", "q256"]


ACTIVATIONS: dict[Literal["f32", "q32", "q256"], tuple[str, ...]] = {
    "f32": ("F32", "F16", "BF16", "F8_E4M3"),
    "q32": (
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "NVFP4"),
        *("IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_XXS"),
        *("INT4", "INT5", "INT8", "FP4"),
    ),
    "q256": ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"),
}
FORMATS = {
    name: Format(*BY_NAME[name][1:], activation) for activation, names in ACTIVATIONS.items() for name in names
}


# Formats of which the package has no numpy reader.
BY_GGUF = (
    *("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M"),
    *("TQ1_0", "TQ2_0", "NVFP4"),
)


class Weight(NamedTuple):
    """A matrix as GGUF stores it: `data` holds the blocks of shape[0] rows of shape[1] values."""

    type: str
    data: Any  # bytes-like
    shape: tuple[int, int]


def dequantize(type: str, data: Any, shape: Sequence[int]) -> F32:
    """Plain GGUF bytes of `type` -> float32 array of `shape` (the last dimension is a row)."""
    if type in BY_GGUF:
        rows = np.frombuffer(data, np.uint8).reshape(math.prod(shape[:-1]), -1)
        values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[type])
        return np.asarray(values, np.float32).reshape(shape)
    return conversion.dequantize(type, data, math.prod(shape[:-1]), shape[-1]).reshape(shape)


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


def head_matmul(x: F32, weight: Weight, heads: int, exact: bool = False) -> F32:
    """The first k values of each head of x (n, heads * (k + rest)) times its rows of weight (heads * rows, k).

    Returns (n, heads * (rows + rest)): what lies behind the k values of a head is kept behind its products.
    """
    k, rows = weight.shape[1], weight.shape[0] // heads
    parts = x.reshape(len(x), heads, -1)
    values = dequantize(*weight).reshape(heads, rows, k).astype(np.float64)
    activation = "f32" if exact else FORMATS[weight.type].activation
    seen = as_seen(np.ascontiguousarray(parts[..., :k]).reshape(-1, k), activation).reshape(len(x), heads, k)
    products = np.einsum("nhk,hrk->nhr", seen, values)
    return np.concatenate([products, parts[..., k:]], axis=2).reshape(len(x), -1).astype(np.float32)


def embed(table: Weight, ids: I32) -> F32:
    """Rows `ids` of the table: (n, k)."""
    if ids.size and (ids.min() < 0 or ids.max() >= table.shape[0]):
        raise IndexError(f"token id outside 0..{table.shape[0] - 1}")
    return dequantize(*table)[ids]


# ---- rows ----------------------------------------------------------------------------------------------------


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


# ---- recurrent mixers: one sequence from its first token on -----------------------------------------------------


def silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))


def softplus(x: F64) -> F64:
    return np.logaddexp(0.0, x)


def short_conv(x: F32, weight: F32, bias: F32 | None = None, activated: bool = False, gated: bool = False) -> F32:
    """Causal convolution of each channel by itself: x (n, channels), weight (taps, channels), bias (channels,).

    out[t] = bias + sum over taps of weight[tap] * x[t - taps + 1 + tap], zeros before the first; SiLU if `activated`.
    `gated`: x (n, 3 * channels) holds b, c and u; what is convolved is b * u, and the result is multiplied by c.
    """
    taps, channels = weight.shape
    wide = x.astype(np.float64).reshape(len(x), -1, channels)
    inputs = np.concatenate([np.zeros((taps - 1, channels)), wide[:, 0] * wide[:, 2] if gated else wide[:, 0]])
    out = sum(weight[tap] * inputs[tap : tap + len(x)] for tap in range(taps)) + (0 if bias is None else bias)
    out = silu(out) if activated else out
    return np.asarray(out * wide[:, 1] if gated else out, np.float32)


def delta_net(q: F32, k: F32, v: F32, beta: F32, dt: F32, decay: F32, dt_bias: F32, eps: float = 1e-6,
              tiled: bool = False) -> tuple[F32, F64]:  # fmt: skip
    """The gated delta rule (Yang and others 2024, as in Qwen3-Next) -> out (n, heads, value_size), last state.

    q, k (n, key_heads, key_size), v (n, heads, value_size), beta, dt (n, heads), decay (below 0) and dt_bias (heads,).
    Head h reads key head h // group, or h % key_heads if `tiled`. state (heads, key_size, value_size).
    """
    heads, key_heads, size = v.shape[1], k.shape[1], k.shape[2]
    chosen = [h % key_heads if tiled else h // (heads // key_heads) for h in range(heads)]
    q, k = (x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).sum(-1, keepdims=True) + eps) for x in (q, k))
    q, k = q[:, chosen] * size**-0.5, k[:, chosen]  # (n, heads, key_size)
    kept = np.exp(decay * softplus(dt.astype(np.float64) + dt_bias))
    rate = 1 / (1 + np.exp(-beta.astype(np.float64)))
    state, out = np.zeros((heads, size, v.shape[2])), np.zeros(v.shape)
    for t in range(len(v)):
        state *= kept[t, :, None, None]
        change = rate[t, :, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], state))
        state += np.einsum("hk,hv->hkv", k[t], change)
        out[t] = np.einsum("hk,hkv->hv", q[t], state)
    return out.astype(np.float32), state


def mamba2(x: F32, b: F32, c: F32, dt: F32, decay: F32, dt_bias: F32, skip: F32 | None = None,
           limits: tuple[float, float] = (0.0, math.inf)) -> tuple[F32, F64]:  # fmt: skip
    """The state space of Mamba2 (Dao and Gu 2024) -> out (n, heads, head_dim), last state.

    x (n, heads, head_dim), b and c (n, groups, state_size), dt (n, heads), decay (below 0), dt_bias and skip (heads,);
    a group serves neighbouring heads. The step, softplus(dt + dt_bias), is put within `limits`.
    state (heads, state_size, head_dim).
    """
    group = x.shape[1] // b.shape[1]
    b, c = (np.repeat(y.astype(np.float64), group, axis=1) for y in (b, c))  # (n, heads, state_size)
    step = np.clip(softplus(dt.astype(np.float64) + dt_bias), *limits)
    kept = np.exp(decay * step)
    state, out = np.zeros((x.shape[1], b.shape[2], x.shape[2])), np.zeros(x.shape)
    for t in range(len(x)):
        state = state * kept[t, :, None, None] + np.einsum("hs,hd->hsd", b[t], step[t, :, None] * x[t])
        out[t] = np.einsum("hs,hsd->hd", c[t], state)
    return (out if skip is None else out + skip[:, None] * x).astype(np.float32), state


def gated_norm(x: F32, gate: F32, weight: F32, eps: float, groups: int, gate_first: bool = False) -> F32:
    """RMSNorm of each of `groups` parts of a row, times SiLU of the gate, after it or `gate_first`.

    x and gate (n, width), weight (width / groups,) for every part or (width,) for all.
    """
    parts, opened = (y.astype(np.float64).reshape(len(x), groups, -1) for y in (x, silu(gate.astype(np.float64))))
    parts = parts * opened if gate_first else parts
    normed = parts / np.sqrt((parts**2).mean(axis=-1, keepdims=True) + eps) * weight.reshape(-1, parts.shape[2])
    return np.asarray((normed if gate_first else normed * opened).reshape(x.shape), np.float32)


# ---- mixture of experts --------------------------------------------------------------------------------------


def _softmax(x: F64) -> F64:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


Score = Literal["softmax", "sigmoid", "sqrt_softplus", "identity"]  # of a router's logits


class Routing(NamedTuple):
    """How experts are chosen and weighed, see `router`."""

    score: Score = "softmax"
    softmax_of_chosen: bool = False
    renormalize: bool = False
    sum_added: float = 0.0
    sum_least: float = 1e-20
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    group_score: Literal["max", "sum_of_two"] = "max"
    bias: F32 | None = None
    correction: F32 | None = None
    expert_scale: F32 | None = None


def scores_of(logits: F64, score: Score) -> F64:
    """Scores of logits (n, experts)."""
    if score == "softmax":
        return _softmax(logits)
    if score == "sigmoid":
        return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))
    return np.sqrt(np.logaddexp(0.0, logits)) if score == "sqrt_softplus" else logits


def router(logits: F32, k: int, r: Routing) -> tuple[I32, F32]:
    """The k experts of each token and their weights, both (n, k), from logits (n, experts).

    Experts are chosen by score(logits + bias) + correction and ordered by it, descending, the lower id first on ties,
    from `kept_groups` of `groups`: those with the largest, or the largest sum of two. A weight is the expert's score,
    or the softmax of the chosen logits, divided by max(sum + sum_added, sum_least) if `renormalize`, times `scale` and
    `expert_scale`. Scores are float32, so that ties are those of the native op's precision.
    """
    wide = (logits if r.bias is None else logits + r.bias).astype(np.float64)
    scores = scores_of(wide, r.score)
    choice = scores.astype(np.float32) + (0 if r.correction is None else r.correction)
    choice = _of_kept_groups(choice, r)
    ids = np.argsort(-choice, axis=1, kind="stable")[:, :k].astype(np.int32)
    weights = np.take_along_axis(wide if r.softmax_of_chosen else scores, ids, axis=1)
    if r.softmax_of_chosen:
        weights = _softmax(weights)
    if r.renormalize:
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True) + r.sum_added, r.sum_least)
    if r.expert_scale is not None:
        weights = weights * r.expert_scale[ids]
    return ids, (weights * r.scale).astype(np.float32)


def _of_kept_groups(choice: F32, r: Routing) -> F32:
    """choice (n, experts), minus infinity for experts of other groups."""
    groups = np.sort(choice.reshape(len(choice), r.groups, -1), axis=2)
    value = groups[..., -2:].sum(axis=2) if r.group_score == "sum_of_two" else groups[..., -1]
    kept = np.argsort(-value, axis=1, kind="stable")[:, : r.kept_groups]
    is_kept = (kept[:, :, None] == np.arange(r.groups)).any(axis=1)  # (n, groups)
    return np.where(is_kept.repeat(choice.shape[1] // r.groups, axis=1), choice, np.float32(-np.inf))


class Expert(NamedTuple):
    """gate (None: without), up (intermediate, hidden); down (hidden, intermediate); biases as the rows or None."""

    gate: Weight | None
    up: Weight
    down: Weight
    gate_bias: F32 | None = None
    up_bias: F32 | None = None
    down_bias: F32 | None = None


class Activation(NamedTuple):
    """What an expert does between its matrices, see `glu`."""

    name: str = "silu"
    alpha: float = 1.702
    limit: float = 7.0


SILU = Activation()


def glu(activation: Activation, gate: F32, up: F32 | None) -> F32:
    """f(gate) * up, without a gate (up None) f(gate); "clamped" and gpt-oss' clamp both before."""
    name, alpha, limit = activation
    kind: Any = name
    spec = DenseSpec(width=1, activation=kind, gated=up is not None, alpha=alpha, limit=limit)
    return calibration.glu(spec, gate, up)


def expert(x: F32, e: Expert, activation: Activation = SILU, exact: bool = False) -> F32:
    """x (n, hidden) -> (n, hidden): down(glu(gate x, up x)), without a gate down(glu(up x)).

    Fast mode quantises x and the activated row alike.
    """
    up = matmul(x, e.up, exact, e.up_bias)
    inner = glu(activation, up, None) if e.gate is None else glu(activation, matmul(x, e.gate, exact, e.gate_bias), up)
    return matmul(inner, e.down, exact, e.down_bias)


def moe(x: F32, experts: Sequence[Expert | None], ids: I32, activation: Activation = SILU, exact: bool = False,
        input_weights: F32 | None = None) -> F32:  # fmt: skip
    """One row for each (token, slot): x (n, hidden), ids (n, k) -> slots (n * k, hidden). None: not resident.

    input_weights (n, k): what x is multiplied by before anything else.
    """
    slots = np.zeros((ids.size, x.shape[1]), np.float32)
    for place, number in enumerate(ids.reshape(-1).tolist()):
        chosen = experts[number]
        if chosen is None:
            raise ValueError(f"expert {number} is not set")
        token = place // ids.shape[1]
        row = x[token : token + 1]
        if input_weights is not None:
            row = row * input_weights.reshape(-1)[place]
        slots[place] = expert(row, chosen, activation, exact)[0]
    return slots


def sigmoid_gate(out: F32, gate: F32) -> F32:
    """out * sigmoid(gate)."""
    return np.asarray(out * np.exp(-np.logaddexp(0.0, -gate.astype(np.float64))), np.float32)


def soft_cap(x: F32, cap: float) -> F32:
    """cap * tanh(x / cap); a NaN where x is not finite."""
    capped = cap * np.tanh(x.astype(np.float64) / cap)
    return np.asarray(np.where(np.isfinite(x), capped, np.nan), np.float32)


def combine(out: F32, slots: F32, weights: F32) -> F32:
    """out (n, hidden) + the token's slots times their weights (n, k), added in slot order in float32."""
    total = out.copy()
    rows = slots.reshape(*weights.shape, -1)  # (n, k, hidden)
    for slot in range(weights.shape[1]):
        total += weights[:, slot, None] * rows[:, slot]
    return total
