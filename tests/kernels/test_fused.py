"""Ops that do what several do: the same bits, and nothing after an input that is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_weights import plain
from numpy.typing import NDArray

from colibri import ops

F32 = NDArray[np.float32]
HIDDEN, EXPERTS, K = 256, 24, 3


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def weight(rows: int, kind: str = "F32") -> ops.Tensor:
    tensor = ops.tensor(kind, (rows, HIDDEN), tiled=True)
    values = normal(rows, HIDDEN, seed=rows)
    ops.tile(tensor, (values if kind == "F32" else ops.quantize(kind, values)).tobytes())
    return tensor


def bytes_of(*tensors: ops.Tensor) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("n", [1, 50])
@pytest.mark.parametrize("with_bias", [False, True])
def test_norm_matmul(n: int, with_bias: bool) -> None:
    bias = plain(normal(HIDDEN, seed=9)) if with_bias else None
    x, norm = plain(normal(n, HIDDEN) + 1), ops.Norm(plain(normal(HIDDEN, seed=1)), 1e-5, bias)
    weights, biases = (weight(40, "Q4_K"), weight(17)), (plain(normal(40, seed=2)), None)

    def run(fused: bool) -> list[bytes]:
        normed, outs = ops.tensor("F32", (n, HIDDEN)), (ops.tensor("F32", (n, 40)), ops.tensor("F32", (n, 17)))
        if fused:
            assert ops.norm_matmul(outs, normed, x, norm, weights, biases=biases)
        else:
            assert ops.norm(normed, x, norm)
            ops.matmul(outs, normed, weights, biases=biases)
        return bytes_of(normed, *outs)

    assert run(True) == run(False)


@pytest.mark.parametrize("n", [1, 50])
def test_route(n: int) -> None:
    x, norm, gate = plain(normal(n, HIDDEN)), ops.Norm(plain(normal(HIDDEN, seed=1)), 1e-5), weight(EXPERTS)
    routing = ops.Routing("sigmoid", renormalize=True, correction=plain(normal(EXPERTS, seed=3)), scale=2.5)

    def run(fused: bool) -> list[bytes]:
        normed, logits = ops.tensor("F32", (n, HIDDEN)), ops.tensor("F32", (n, EXPERTS))
        ids, weights = ops.tensor("I32", (n, K)), ops.tensor("F32", (n, K))
        if fused:
            assert ops.route(ids, weights, logits, normed, x, norm, gate, routing)
        else:
            assert ops.norm(normed, x, norm)
            ops.matmul((logits,), normed, (gate,), True)
            assert ops.router(ids, weights, logits, routing)
        return bytes_of(normed, logits, ids, weights)

    assert run(True) == run(False)


HEADS, KV_HEADS, DIM = 4, 2, 32


@pytest.mark.parametrize("n", [1, 200])
@pytest.mark.parametrize("heads_a_norm", ["all", "one"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_attention_with_norms_and_clipping(n: int, heads_a_norm: str, clip: float | None) -> None:
    widths = (HEADS * DIM, KV_HEADS * DIM)
    sizes = widths if heads_a_norm == "all" else (DIM, DIM)
    norms = [ops.Norm(plain(normal(size, seed=7 + i)), 1e-5) for i, size in enumerate(sizes)]
    positions = np.arange(n, dtype=np.int32)
    batch = ops.Batch(positions, np.zeros(n, np.int32), [np.zeros(1, np.int32)])

    def run(fused: bool) -> list[bytes]:
        q, k, v = plain(normal(n, widths[0])), plain(normal(n, widths[1], seed=1)), plain(normal(n, widths[1], seed=2))
        keys, values = (ops.tensor("F16", shape) for shape in ((1, KV_HEADS, DIM, 256), (1, KV_HEADS, 256, DIM)))
        out = ops.tensor("F32", (n, widths[0]))
        if fused:
            rule = ops.AttentionRule(q_norm=norms[0], k_norm=norms[1], clip=clip)
        else:
            rule = ops.AttentionRule()
            for part, size, norm in zip((q, k), sizes, norms, strict=True):
                rows = part.reshape(part.shape[0] * part.shape[1] // size, size)
                assert ops.norm(rows, rows, norm)
            for part in (q, k, v) if clip is not None else ():
                part.numpy()[...] = np.clip(part.numpy(), -clip, clip)  # type: ignore[operator]
        assert not ops.attention(out, q, k, v, keys, values, batch, rule)
        return bytes_of(out, q, k, v, keys, values)

    assert run(True) == run(False)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_is_computed_from_what_is_not_finite(bad: float) -> None:
    x, norm = normal(2, HIDDEN), ops.Norm(plain(normal(HIDDEN)), 1e-5)
    x[1, 5] = bad
    normed, out = ops.tensor("F32", (2, HIDDEN)), plain(normal(2, 16))
    before = out.numpy().tobytes()
    assert not ops.norm_matmul((out,), normed, plain(x), norm, (weight(16),))
    assert out.numpy().tobytes() == before
    ids, weights = plain(np.full((2, K), 7, np.int32)), ops.tensor("F32", (2, K))
    routing, logits = ops.Routing("softmax", renormalize=True), ops.tensor("F32", (2, EXPERTS))
    assert not ops.route(ids, weights, logits, normed, plain(x), norm, weight(EXPERTS), routing)
    assert (ids.numpy() == 7).all()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])  # whose square is not finite
def test_attention_stores_nothing_that_is_not_finite(which: int, bad: float) -> None:
    q, k, v = (plain(normal(1, DIM)) for _ in range(3))
    (q, k)[which].numpy()[0, 3] = bad
    keys, values = ops.tensor("F16", (1, 1, DIM, 256)), ops.tensor("F16", (1, 1, 256, DIM))
    norm = ops.Norm(plain(normal(DIM)), 1e-5)
    batch = ops.Batch(np.zeros(1, np.int32), np.zeros(1, np.int32), [np.zeros(1, np.int32)])
    rule = ops.AttentionRule(q_norm=norm, k_norm=norm)
    found = ops.attention(ops.tensor("F32", (1, DIM)), q, k, v, keys, values, batch, rule)
    assert found == ("q_norm", "k_norm")[which]
    assert not keys.numpy().any()


def test_wrong_arguments_are_named() -> None:
    x, norm = plain(normal(1, HIDDEN)), ops.Norm(plain(normal(HIDDEN)), 1e-5)
    with pytest.raises(ValueError, match=r"weight: found F32 \(1, 256\)"):
        ops.Norm(x, 1e-5)
    with pytest.raises(ValueError, match=r"bias: found F32 \(8,\), expected F32 \(256,\)"):
        ops.Norm(plain(normal(HIDDEN)), 1e-5, plain(normal(8)))
    with pytest.raises(ValueError, match="weight: found F32"):
        ops.Norm(plain(normal(0)), 1e-5)
    with pytest.raises(ValueError, match=r"x: found F32 \(1, 8\), expected F32 \(\.\.\., 256\)"):
        ops.norm_matmul((ops.tensor("F32", (1, 16)),), x, plain(normal(1, 8)), norm, (weight(16),))
    with pytest.raises(ValueError, match="out: found"):
        ops.norm_matmul((ops.tensor("F32", (1, 16)),), x, plain(normal(2, HIDDEN)), norm, (weight(16),))
    with pytest.raises(ValueError, match="window: found -1"):
        ops.AttentionRule(window=-1)
    for eps in (np.nan, np.inf, -1e-6):
        with pytest.raises(ValueError, match="eps: found"):
            ops.Norm(plain(normal(HIDDEN)), eps)
    for clip in (np.nan, -1):
        with pytest.raises(ValueError, match="clip: found"):
            ops.AttentionRule(clip=clip)
    for scale in (np.nan, np.inf):
        with pytest.raises(ValueError, match="scale: found"):
            ops.AttentionRule(scale=scale)
        with pytest.raises(ValueError, match="scale: found"):
            ops.Routing("softmax", scale=scale)
    for part in ("cosine", "sine"):
        with pytest.raises(ValueError, match=f"cosine, sine: found {part} only"):
            ops.AttentionRule(**{part: x})
    q = plain(normal(1, DIM))
    keys, values = ops.tensor("F16", (1, 1, DIM, 256)), ops.tensor("F16", (1, 1, 256, DIM))
    batch = ops.Batch(np.zeros(1, np.int32), np.zeros(1, np.int32), [np.zeros(1, np.int32)])
    with pytest.raises(ValueError, match=r"k_norm: found 256 values, expected 32 \(all heads\) or 32 \(one\)"):
        ops.attention(q, q, q, q, keys, values, batch, ops.AttentionRule(k_norm=norm))


def test_no_op_writes_where_it_reads() -> None:
    """Unless every value is read before it is written: a norm or a sum in place."""
    memory = ops.Memory(1 << 16)
    x, y = (ops.tensor("F32", (4, 16), memory, offset) for offset in (0, 64))  # one row apart
    x.numpy()[...] = normal(4, 16)
    norm, gate = ops.Norm(plain(normal(16)), 1e-5), ops.tensor("F32", (16, 16), tiled=True)
    other, third = ops.tensor("F32", (4, 16)), ops.tensor("F32", (4, 16))
    first, ids = ops.tensor("F32", (4, 1), memory), ops.tensor("I32", (4, 1), memory)
    own_ids, own_weights = ops.tensor("I32", (4, 1)), ops.tensor("F32", (4, 1))
    keys, values = ops.tensor("F16", (1, 1, 16, 256)), ops.tensor("F16", (1, 1, 256, 16))
    batch = ops.Batch(np.arange(4, dtype=np.int32), np.zeros(4, np.int32), [np.zeros(1, np.int32)])
    rule, routing, table = ops.AttentionRule(), ops.Routing("softmax", renormalize=True), ops.ExpertTable(1, 16, 16)
    table.set(0, None, gate, gate)
    for call in (
        lambda: ops.norm(y, x, norm),
        lambda: ops.add(y, x),
        lambda: ops.matmul((x,), x, (gate,)),
        lambda: ops.matmul((x, y), other, (gate, gate)),
        lambda: ops.norm_matmul((y,), x, other, norm, (gate,)),
        lambda: ops.route(own_ids, own_weights, x, y, other, norm, gate, routing),
        lambda: ops.router(ids, own_weights, x, routing),
        lambda: ops.router(own_ids, first, x, routing),
        lambda: ops.router(ids, first, other, routing),
        lambda: ops.combine(x, y, own_weights),
        lambda: ops.combine(x, other, first),
        lambda: ops.embed(x, gate, ids.reshape(4)),
        lambda: ops.moe(x, y, table, own_ids),
        lambda: ops.moe(x, other, table, ids),
        lambda: ops.attention(x, y, other, third, keys, values, batch, rule),
        lambda: ops.attention(other, third, x, x, keys, values, batch, rule),
    ):
        before = x.numpy().tobytes()
        with pytest.raises(ValueError, match="expected memory of its own"):
            call()
        assert x.numpy().tobytes() == before
    assert ops.norm(x, x, norm)
    ops.add(x, x)


def test_objects_that_were_never_made() -> None:
    tensor, memory = ops.Tensor.__new__(ops.Tensor), ops.Memory.__new__(ops.Memory)
    with pytest.raises(ValueError, match="expected a Tensor"):
        ops.matmul((tensor,), ops.tensor("F32", (1, 16)), (tensor,))
    with pytest.raises(ValueError, match="expected a Tensor"):
        tensor.numpy()
    with pytest.raises(BufferError, match="without memory"):
        memoryview(memory)
