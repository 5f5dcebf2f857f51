"""Attention over the paged cache: against the numpy specification, and the same bits however the work is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import reference
from kernel_weights import SETS, plain, same_everywhere
from numpy.typing import NDArray

from colibri import ops
from colibri.config import KvType
from colibri.ops import _native

F32 = NDArray[np.float32]


class Case:
    """Sequences with keys and values, and a paged cache with their blocks in mixed order."""

    def __init__(
        self, lengths: Sequence[int], heads: int, kv_heads: int, key_dim: int, value_dim: int = 0, kind: KvType = "f16"
    ) -> None:
        self.kind = kind
        rng = np.random.default_rng(heads * 1000 + key_dim)
        self.heads, self.kv_heads, self.key_dim, self.value_dim = heads, kv_heads, key_dim, value_dim or key_dim
        self.lengths = lengths
        self.q = [rng.standard_normal((n, heads, key_dim), np.float32) for n in lengths]
        self.k = [rng.standard_normal((n, kv_heads, key_dim), np.float32) for n in lengths]
        self.v = [rng.standard_normal((n, kv_heads, self.value_dim), np.float32) for n in lengths]
        counts = [-(-n // ops.KV_BLOCK) for n in lengths]
        order = rng.permutation(sum(counts)).astype(np.int32)
        self.tables = np.split(order, np.cumsum(counts)[:-1])
        key_width, value_width = self.width(key_dim), self.width(self.value_dim)
        number = "F16" if kind == "f16" else "U8"
        self.keys = ops.tensor(number, (sum(counts), kv_heads, key_width, ops.KV_BLOCK))
        self.values = ops.tensor(number, (sum(counts), kv_heads, ops.KV_BLOCK, value_width))
        self.keys.numpy()[...] = np.nan if kind == "f16" else 255  # what is not written must not be read: NaN scales
        self.values.numpy()[...] = np.nan if kind == "f16" else 255
        self.run(self.all_rows())

    def width(self, dim: int) -> int:
        """Numbers of a token, or bytes with those of the scales."""
        return dim if self.kind == "f16" else dim + 2 * -(-dim // 32)

    def batch(self, rows: Sequence[tuple[int, int]]) -> ops.Batch:
        sequence, positions = np.array(rows, np.int32).T.copy()
        return ops.Batch(positions, sequence, list(self.tables))

    def run(self, rows: Sequence[tuple[int, int]], window: int = 0, sinks: F32 | None = None) -> F32:
        q, k, v = (plain(np.stack([x[s][p].reshape(-1) for s, p in rows])) for x in (self.q, self.k, self.v))
        out = ops.tensor("F32", (len(rows), self.heads * self.value_dim))
        rule = ops.AttentionRule(None, None, self.scale, window, None if sinks is None else plain(sinks))
        assert not ops.attention(out, q, k, v, self.keys, self.values, self.batch(rows), rule)
        return np.array(out.numpy())

    def fault(self, rows: Sequence[tuple[int, int]], rule: ops.AttentionRule | None = None) -> str:
        """What attention finds that is not finite."""
        q, k, v = (plain(np.stack([x[s][p].reshape(-1) for s, p in rows])) for x in (self.q, self.k, self.v))
        out = ops.tensor("F32", (len(rows), self.heads * self.value_dim))
        return ops.attention(out, q, k, v, self.keys, self.values, self.batch(rows), rule or ops.AttentionRule())

    def expected(self, rows: Sequence[tuple[int, int]], window: int = 0, sinks: F32 | None = None) -> F32:
        out = [
            reference.attention(self.q[s][p : p + 1], self.k[s][: p + 1], self.v[s][: p + 1],
                                np.array([p], np.int32), self.scale, window, sinks, self.kind)
            for s, p in rows
        ]  # fmt: skip
        return np.concatenate(out).reshape(len(rows), -1)

    @property
    def scale(self) -> float:
        return float(self.key_dim**-0.5)

    def all_rows(self) -> list[tuple[int, int]]:
        return [(s, p) for s, n in enumerate(self.lengths) for p in range(n)]


KINDS: tuple[KvType, ...] = ("f16", "q8_0")
SHAPES = [(1, 1, 8, 8), (6, 2, 24, 40), (5, 5, 64, 64), (8, 1, 80, 16), (14, 2, 128, 128), (9, 3, 192, 128)]


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "key_dim", "value_dim"), SHAPES)
def test_matches_the_specification(
    isa: str, kind: KvType, heads: int, kv_heads: int, key_dim: int, value_dim: int
) -> None:
    case = Case([1, 37, 300], heads, kv_heads, key_dim, value_dim, kind)
    _native.use_isa(isa)
    rows = case.all_rows()
    np.testing.assert_allclose(case.run(rows), case.expected(rows), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("head_dim", [256, 576])
@pytest.mark.parametrize("kind", KINDS)
def test_wide_heads(head_dim: int, kind: KvType) -> None:
    case = Case([270], 2, 1, head_dim, kind=kind)
    rows = [(0, 0), (0, 255), (0, 256), (0, 269)]
    np.testing.assert_allclose(case.run(rows), case.expected(rows), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("window", [1, 5, 16, 128, 255, 256, 257, 700])
def test_sliding_window(window: int) -> None:
    case = Case([600], 4, 2, 24)
    rows = case.all_rows()
    np.testing.assert_allclose(case.run(rows, window), case.expected(rows, window), rtol=2e-5, atol=2e-6)


def test_sinks() -> None:
    case = Case([300, 3], 4, 2, 64)
    rows, sinks = case.all_rows(), np.array([-50, 0, 3, 80], np.float32)
    np.testing.assert_allclose(case.run(rows, 0, sinks), case.expected(rows, 0, sinks), rtol=2e-5, atol=2e-6)


def test_keys_and_values_are_stored_as_the_specification_says() -> None:
    case = Case([300], 2, 2, 24, 40)
    keys = np.zeros((2, 2, 16, 24, 16), np.float16)
    values = np.zeros((2, 2, 256, 40), np.float16)
    reference.kv_append(keys, values, case.k[0], case.v[0], np.arange(300, dtype=np.int32), case.tables[0])
    written = ~np.isnan(case.keys.numpy().reshape(keys.shape))
    assert (case.keys.numpy().reshape(keys.shape)[written] == keys[written]).all()
    written = ~np.isnan(case.values.numpy())
    assert written.sum() == 300 * 2 * 40
    assert (case.values.numpy()[written] == values[written]).all()


def test_int8_is_stored_as_the_specification_says() -> None:
    case = Case([300], 2, 2, 24, 40, "q8_0")
    keys, values = case.keys.numpy().reshape(2, 2, -1), case.values.numpy().reshape(2, 2, -1)  # (blocks, heads, bytes)
    numbers = keys[..., : 256 * 24].view(np.int8).reshape(2, 2, 16, 24, 16).swapaxes(3, 4).reshape(2, 2, 256, 1, 24)
    scales = keys[..., 256 * 24 :].copy().view(np.float16).reshape(2, 2, 16, 1, 16).swapaxes(3, 4).reshape(2, 2, 256, 1)
    stored = (numbers[..., 0, :] * scales.astype(np.float32))[case.tables[0]]  # (blocks, heads, tokens, dim)
    expected = reference.stored(case.k[0], "q8_0").swapaxes(0, 1)  # (heads, tokens, dim)
    assert (stored.swapaxes(0, 1).reshape(2, 512, 24)[:, :300] == expected).all()
    numbers = values[..., : 256 * 40].view(np.int8).reshape(2, 2, 256, 40)
    scales = values[..., 256 * 40 :].copy().view(np.float16).reshape(2, 2, 256, 2)
    stored = (numbers * scales.astype(np.float32).repeat(32, 3)[..., :40])[case.tables[0]]
    expected = reference.stored(case.v[0], "q8_0").swapaxes(0, 1)
    assert (stored.swapaxes(0, 1).reshape(2, 512, 40)[:, :300] == expected).all()
    assert np.abs(expected - case.v[0].swapaxes(0, 1)).max() < np.abs(case.v[0]).max() / 250


def test_int8_of_zeros_and_of_an_infinity() -> None:
    case = Case([40], 2, 1, 48, kind="q8_0")
    case.k[0][:] = case.v[0][:] = 0
    rows = case.all_rows()
    assert (case.run(rows) == 0).all()
    case.v[0][20, 0, 40] = np.inf
    assert case.fault(rows) == "v"


def variants(case: Case, window: int, sinks: F32) -> Iterator[tuple[str, F32]]:
    """All rows in one step, then in steps of other sizes, orders and mixtures: always (rows in order) the same."""
    rows = case.all_rows()
    yield "at once", case.run(rows, window, sinks)
    for size in (1, 7, 64):
        steps = [rows[i : i + size] for i in range(0, len(rows), size)]
        if size == 1:  # spare the time: only some rows alone
            some = list(range(0, len(rows), 13))
            whole = case.run(rows, window, sinks)
            for i in some:
                whole[i] = case.run([rows[i]], window, sinks)[0]
            yield "alone", whole
        else:
            yield f"steps of {size}", np.concatenate([case.run(step, window, sinks) for step in steps])
    mixed = np.random.default_rng(1).permutation(len(rows))
    shuffled = case.run([rows[i] for i in mixed], window, sinks)
    yield "shuffled", shuffled[np.argsort(mixed)]


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "key_dim", "value_dim"), [(6, 2, 40, 24), (16, 2, 64, 64)])
def test_same_bits_for_every_batch_thread_count_and_instruction_set(
    window: int, kind: KvType, heads: int, kv_heads: int, key_dim: int, value_dim: int
) -> None:
    case = Case([1, 530, 90], heads, kv_heads, key_dim, value_dim, kind)
    sinks = np.linspace(-1, 1, heads, dtype=np.float32)
    first = case.run(case.all_rows(), window, sinks)
    for isa in ops.isas():
        for threads in (1, 2, 3, 7):
            _native.use_isa(isa)
            ops.set_threads(threads)
            for name, out in (
                variants(case, window, sinks) if isa != "portable" else [("", case.run(case.all_rows(), window, sinks))]
            ):
                assert out.tobytes() == first.tobytes(), (isa, threads, name)


@pytest.mark.parametrize(("head_dim", "rotary"), [(8, 8), (24, 24), (64, 64), (80, 40), (128, 128), (104, 74)])
@pytest.mark.parametrize("positions", [[5, 0, 7, 9, 90], [255, 256, 257, 258, 259]])
def test_rope(head_dim: int, rotary: int, positions: list[int]) -> None:
    case = Case([260], 6, 2, head_dim)
    rng = np.random.default_rng(1)
    cosine, sine = (rng.standard_normal((260, rotary // 2), np.float32) for _ in range(2))
    at = np.array(positions, np.int32)
    q, k, v = (x[0][at].reshape(5, -1) for x in (case.q, case.k, case.v))

    def run() -> F32:
        case.keys.numpy()[...] = 0
        turned, key = plain(q), plain(k)
        out = ops.tensor("F32", q.shape)
        batch = case.batch([(0, p) for p in positions])
        rule = ops.AttentionRule(plain(cosine), plain(sine))
        assert not ops.attention(out, turned, key, plain(v), case.keys, case.values, batch, rule)
        stored = case.keys.numpy().reshape(2, 2, 16, head_dim, 16).swapaxes(3, 4).reshape(2, 2, 256, head_dim)
        stored = stored[case.tables[0][at // 256], :, at % 256].reshape(5, -1)
        assert (stored == key.numpy().astype(np.float16)).all()
        return np.concatenate([turned.numpy(), key.numpy()], axis=1)

    expected = [reference.rope(x.reshape(5, -1, head_dim), at, cosine, sine).reshape(5, -1) for x in (q, k)]
    np.testing.assert_allclose(same_everywhere(run), np.concatenate(expected, axis=1), rtol=1e-6, atol=1e-6)


def test_rope_beyond_the_table_is_refused() -> None:
    case = Case([10], 1, 1, 8)
    out, q, k, v = (ops.tensor("F32", (1, 8)) for _ in range(4))
    angles = ops.tensor("F32", (9, 4))
    with pytest.raises(ValueError, match="position 9, expected below 9"):
        ops.attention(out, q, k, v, case.keys, case.values, case.batch([(0, 9)]), ops.AttentionRule(angles, angles))


def test_wrong_arguments_are_named() -> None:
    case = Case([3], 2, 1, 16)
    q, k, v, out = (ops.tensor("F32", (1, width)) for width in (32, 16, 16, 32))
    batch, keys, values, rule = case.batch([(0, 2)]), case.keys, case.values, ops.AttentionRule()
    with pytest.raises(ValueError, match=r"q: found F32 \(1, 40\)"):
        ops.attention(out, ops.tensor("F32", (1, 40)), k, v, keys, values, batch, rule)
    with pytest.raises(ValueError, match=r"k: found F32 \(1, 32\), expected F32 \(1, 16\)"):
        ops.attention(out, q, q, v, keys, values, batch, rule)
    with pytest.raises(ValueError, match=r"v: found F32 \(1, 32\), expected F32 \(1, 16\)"):
        ops.attention(out, q, k, q, keys, values, batch, rule)
    with pytest.raises(ValueError, match=r"out: found F32 \(2, 32\), expected F32 \(1, 32\)"):
        ops.attention(ops.tensor("F32", (2, 32)), q, k, v, keys, values, batch, rule)
    with pytest.raises(ValueError, match="keys"):
        ops.attention(out, q, k, v, values, values, batch, rule)
    wrong = ops.Batch(*np.zeros((2, 1), np.int32), [np.array([5], np.int32)])
    with pytest.raises(ValueError, match="block 5"):
        ops.attention(out, q, k, v, keys, values, wrong, rule)
    with pytest.raises(ValueError, match="positions: found 256"):
        case.batch([(0, 256)])
    with pytest.raises(ValueError, match="sequence: found 1"):
        case.batch([(1, 0)])


def not_finite(case: Case, part: str, value: float) -> None:
    {"q": case.q, "k": case.k, "v": case.v}[part][0][5, 0, 3] = value


FAULTS = [("q", np.nan), ("q", np.inf), ("k", np.nan), ("k", -np.inf), ("v", np.nan), ("v", np.inf)]


@pytest.mark.parametrize("isa", ops.isas())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("part", "value"), FAULTS)
@pytest.mark.parametrize("clip", [None, 1e9])
def test_what_is_not_finite_is_named(
    isa: str, kind: KvType, threads: int, part: str, value: float, clip: float | None
) -> None:
    _native.use_isa(isa)
    ops.set_threads(threads)
    for length in (6, 300):  # the only row with other blocks, and many together
        case, rule = Case([length], 4, 2, 24, 40, kind), ops.AttentionRule(clip=clip)
        not_finite(case, part, value)
        assert case.fault([(0, 5)], rule) == part
        assert case.fault(case.all_rows(), rule) == part


@pytest.mark.parametrize("isa", ops.isas())
@pytest.mark.parametrize(("kind", "largest"), [("f16", 65504), ("q8_0", 127 * 65504)])
def test_what_does_not_fit_into_the_cache_is_named(isa: str, kind: KvType, largest: float) -> None:
    _native.use_isa(isa)
    for part in ("k", "v"):
        case = Case([40], 2, 1, 24, kind=kind)
        not_finite(case, part, largest)
        assert not case.fault(case.all_rows())
        not_finite(case, part, -1.001 * largest)
        assert case.fault(case.all_rows()) == part


@pytest.mark.parametrize("isa", ops.isas())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("keys", [1, 5, 300])
def test_a_score_that_overflows_is_named(isa: str, kind: KvType, sign: int, keys: int) -> None:
    """All scores of a query, or one of many, which alone would only weigh nothing."""
    _native.use_isa(isa)
    for first in (0, keys - 1):
        case = Case([keys], 2, 1, 24, kind=kind)
        case.q[0][keys - 1, 1] = 3e38
        case.k[0][:] = 0
        case.k[0][first:] = sign * 100
        assert keys == 1 or not case.fault(case.all_rows()[: keys - 1])
        assert case.fault(case.all_rows()[keys - 1 :]) == "scores"
        assert case.fault(case.all_rows()) == "scores"


@pytest.mark.parametrize("isa", ops.isas())
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sink_that_is_not_finite_is_named(isa: str, value: float) -> None:
    _native.use_isa(isa)
    case = Case([40], 2, 1, 24)
    assert case.fault(case.all_rows(), ops.AttentionRule(sinks=plain(np.array([0, value], np.float32)))) == "sinks"


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_query_does_not_see_is_no_fault(kind: KvType) -> None:
    """Scores of keys outside the window, and of a block of which nothing is seen."""
    case = Case([600], 2, 1, 24, kind=kind)
    case.k[0][:] = 1
    case.k[0][:500] = 100
    case.q[0][560:] = 1e37
    rows, rule = case.all_rows(), ops.AttentionRule(window=20)
    assert not case.fault(rows, rule)
    assert not case.fault(rows, ops.AttentionRule(window=61))  # 560 sees keys from 500 on, which are 1
    assert case.fault(rows, ops.AttentionRule(window=62)) == "scores"
