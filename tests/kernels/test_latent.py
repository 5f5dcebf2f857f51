"""Attention whose values are the first dimensions of the keys: the bits of attention with values of their own."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from kernel_weights import plain, same_everywhere
from numpy.typing import NDArray

from colibri import ops
from colibri.config import KvType

F32 = NDArray[np.float32]
Rows = list[tuple[int, int]]
KINDS: tuple[KvType, ...] = ("f16", "q8_0")
SHAPES = [(1, 1, 32, 32), (5, 1, 96, 64), (6, 2, 104, 96), (16, 1, 576, 512), (70, 1, 72, 32)]


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


class Case:
    """Two sequences in a paged cache of keys alone, and in one with values beside them."""

    def __init__(
        self, lengths: list[int], heads: int, kv_heads: int, key_dim: int, value_dim: int, kind: KvType
    ) -> None:
        self.heads, self.value_dim, self.lengths = heads, value_dim, lengths
        self.q = [normal(n, heads * key_dim, seed=n) for n in lengths]
        self.k = [normal(n, kv_heads * key_dim, seed=n + 1) for n in lengths]
        self.first = np.arange(kv_heads * key_dim).reshape(kv_heads, -1)[:, :value_dim].ravel()
        counts = [-(-n // ops.KV_BLOCK) for n in lengths]
        order = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
        self.tables = np.split(order, np.cumsum(counts)[:-1])
        widths = [dim if kind == "f16" else dim + 2 * -(-dim // 32) for dim in (key_dim, value_dim)]
        number = "F16" if kind == "f16" else "U8"
        self.keys = ops.tensor(number, (len(order), kv_heads, widths[0], ops.KV_BLOCK))
        self.values = ops.tensor(number, (len(order), kv_heads, ops.KV_BLOCK, widths[1]))

    def forget(self) -> None:
        """What is not stored again must not be read: NaN."""
        for cache in (self.keys, self.values):
            cache.numpy()[...] = np.nan if cache.type == "F16" else 255

    def run(self, rows: Rows, rule: ops.AttentionRule, latent: bool = True) -> F32:
        q, k = (np.stack([x[s][p] for s, p in rows]) for x in (self.q, self.k))
        v = None if latent else plain(np.ascontiguousarray(k[:, self.first]))
        out = ops.tensor("F32", (len(rows), self.heads * self.value_dim))
        sequence, positions = np.array(rows, np.int32).T.copy()
        batch = ops.Batch(positions, sequence, list(self.tables))
        assert not ops.attention(out, plain(q), plain(k), v, self.keys, None if latent else self.values, batch, rule)
        return np.array(out.numpy())

    def all_rows(self) -> Rows:
        return [(s, p) for s, n in enumerate(self.lengths) for p in range(n)]


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "key_dim", "value_dim"), SHAPES)
def test_same_bits_as_with_values_of_their_own(
    heads: int, kv_heads: int, key_dim: int, value_dim: int, kind: KvType, window: int
) -> None:
    case = Case([300, 41], heads, kv_heads, key_dim, value_dim, kind)
    rule = ops.AttentionRule(scale=key_dim**-0.5, window=window, sinks=plain(normal(heads)))
    rows = case.all_rows()
    case.forget()
    expected = case.run(rows, rule, latent=False)
    case.forget()
    assert case.run(rows, rule).tobytes() == expected.tobytes()
    for some in ([(0, 299)], [(1, 40), (0, 0)], rows[250:320], rows[::17]):
        at = [rows.index(row) for row in some]
        found = same_everywhere(lambda some=some: case.run(some, rule))  # type: ignore[misc]
        assert found.tobytes() == expected[at].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_matches_the_specification(kind: KvType) -> None:
    case = Case([290], 16, 1, 576, 512, kind)
    case.forget()
    found = case.run(case.all_rows(), ops.AttentionRule(scale=0.05))
    keys = case.k[0].reshape(290, 1, 576)
    expected = reference.attention(
        case.q[0].reshape(290, 16, 576), keys, keys[..., :512], np.arange(290, dtype=np.int32), 0.05, kv_type=kind
    )
    np.testing.assert_allclose(found, expected.reshape(290, -1), rtol=2e-5, atol=3e-6)


def test_rope_behind_the_values_and_norm_of_them() -> None:
    """DeepSeek's latent keys: the first 64 normed, the last 32 turned, of each query head only turned."""
    case = Case([40], 3, 1, 96, 64, "f16")
    case.forget()
    cosine, sine, weight = normal(40, 16), normal(40, 16, seed=1), normal(64, seed=2)
    rule = ops.AttentionRule(
        plain(cosine), plain(sine), 0.1, k_norm=ops.Norm(plain(weight), 1e-6), rope_start=64
    )
    found = case.run(case.all_rows(), rule)
    at = np.arange(40, dtype=np.int32)
    q, k = case.q[0].reshape(40, 3, 96).copy(), case.k[0].reshape(40, 1, 96).copy()
    k[..., :64] = reference.rms_norm(k[..., :64], weight, 1e-6)
    for x in (q, k):
        x[..., 64:] = reference.rope(np.ascontiguousarray(x[..., 64:]), at, cosine, sine)
    expected = reference.attention(q, k, k[..., :64], at, 0.1)
    # a key may round to its neighbour
    np.testing.assert_allclose(found, expected.reshape(40, -1), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("heads_a_norm", ["all", "one"])
def test_norm_of_values(heads_a_norm: str) -> None:
    n, shape = 20, (20, 2 * 24)
    weight = np.ones(48 if heads_a_norm == "all" else 24, np.float32)
    norm, rule = ops.Norm(plain(weight), 1e-6), ops.AttentionRule()
    batch = ops.Batch(np.arange(n, dtype=np.int32), np.zeros(n, np.int32), [np.zeros(1, np.int32)])
    keys, values = ops.tensor("F16", (1, 2, 24, 256)), ops.tensor("F16", (1, 2, 256, 24))
    outs = []
    for fused in (False, True):
        q, k, v, out = (*(plain(normal(*shape, seed=s)) for s in range(3)), ops.tensor("F32", shape))
        rows = v.reshape(n * 48 // len(weight), len(weight))
        assert fused or ops.norm(rows, rows, norm)
        assert not ops.attention(out, q, k, v, keys, values, batch, ops.AttentionRule(v_norm=norm) if fused else rule)
        outs.append(out.numpy().tobytes() + v.numpy().tobytes())
    assert outs[0] == outs[1]
    v = plain(np.full(shape, np.inf, np.float32))
    q, k, out = plain(normal(*shape)), plain(normal(*shape)), ops.tensor("F32", shape)
    assert ops.attention(out, q, k, v, keys, values, batch, ops.AttentionRule(v_norm=norm)) == "v_norm"


def test_what_is_not_finite_is_named() -> None:
    case = Case([3], 2, 1, 64, 32, "f16")
    case.k[0][1, 40] = np.nan
    q, k = plain(case.q[0]), plain(case.k[0])
    out = ops.tensor("F32", (3, 64))
    batch = ops.Batch(np.arange(3, dtype=np.int32), np.zeros(3, np.int32), list(case.tables))
    assert ops.attention(out, q, k, None, case.keys, None, batch, ops.AttentionRule()) == "k"


def test_wrong_arguments_are_named() -> None:
    case = Case([3], 2, 1, 64, 32, "f16")
    q, k, v, out = (ops.tensor("F32", (1, width)) for width in (128, 64, 32, 64))
    batch, rule = ops.Batch(*np.zeros((2, 1), np.int32), list(case.tables)), ops.AttentionRule()
    with pytest.raises(ValueError, match="v, values: found v only, expected both or none"):
        ops.attention(out, q, k, v, case.keys, None, batch, rule)
    with pytest.raises(ValueError, match="v, values: found values only"):
        ops.attention(out, q, k, None, case.keys, case.values, batch, rule)
    for width in (32, 80, 192, 65):
        with pytest.raises(ValueError, match="expected rows of 2 heads of a multiple of 32 up to 64, without values"):
            ops.attention(ops.tensor("F32", (1, width)), q, k, None, case.keys, None, batch, rule)
    norm = ops.Norm(plain(normal(8)), 1e-6)
    with pytest.raises(ValueError, match="k_norm: found 8 values"):
        ops.attention(out, q, k, None, case.keys, None, batch, ops.AttentionRule(k_norm=norm))
    with pytest.raises(ValueError, match="v_norm: found 8 values"):
        ops.attention(out, q, k, v, case.keys, case.values, batch, ops.AttentionRule(v_norm=norm))
    with pytest.raises(ValueError, match="v_norm: found a norm, expected none without values"):
        ops.attention(out, q, k, None, case.keys, None, batch, ops.AttentionRule(v_norm=norm))
    with pytest.raises(ValueError, match="rope_start: found -1"):
        ops.AttentionRule(rope_start=-1)
    angles = ops.tensor("F32", (9, 4))
    with pytest.raises(ValueError, match=r"cosine: found .* at most 3 columns from rope_start on"):
        ops.attention(out, q, k, None, case.keys, None, batch, ops.AttentionRule(angles, angles, rope_start=58))
