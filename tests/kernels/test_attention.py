"""Attention over the paged cache: against the numpy specification, and the same bits however the work is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri import ops
from colibri.ops import _native, reference

F32 = NDArray[np.float32]


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    isa, threads = ops.isa(), ops.threads()
    yield
    _native.use_isa(isa)
    ops.set_threads(threads)


def to_tensor(array: NDArray[Any]) -> ops.Tensor:
    kind = {"float32": "F32", "int32": "I32", "float16": "F16"}[array.dtype.name]
    tensor = ops.tensor(kind, array.shape)
    tensor.numpy()[...] = array
    return tensor


class Case:
    """Sequences with keys and values, and a paged cache with their blocks in mixed order."""

    def __init__(self, lengths: Sequence[int], heads: int, kv_heads: int, key_dim: int, value_dim: int = 0) -> None:
        rng = np.random.default_rng(heads * 1000 + key_dim)
        self.heads, self.kv_heads, self.key_dim, self.value_dim = heads, kv_heads, key_dim, value_dim or key_dim
        self.lengths = lengths
        self.q = [rng.standard_normal((n, heads, key_dim), np.float32) for n in lengths]
        self.k = [rng.standard_normal((n, kv_heads, key_dim), np.float32) for n in lengths]
        self.v = [rng.standard_normal((n, kv_heads, self.value_dim), np.float32) for n in lengths]
        counts = [-(-n // ops.KV_BLOCK) for n in lengths]
        order = rng.permutation(sum(counts)).astype(np.int32)
        self.tables = np.split(order, np.cumsum(counts)[:-1])
        self.keys = ops.tensor("F16", (sum(counts), kv_heads, key_dim, ops.KV_BLOCK))
        self.values = ops.tensor("F16", (sum(counts), kv_heads, ops.KV_BLOCK, self.value_dim))
        self.keys.numpy()[...] = np.nan  # what is not written must not be read
        self.values.numpy()[...] = np.nan
        for s, n in enumerate(lengths):
            self.append(self.batch([(s, p) for p in range(n)]), [(s, p) for p in range(n)])

    def batch(self, rows: Sequence[tuple[int, int]]) -> ops.Batch:
        sequence, positions = np.array(rows, np.int32).T.copy()
        return ops.Batch(positions, sequence, list(self.tables))

    def append(self, batch: ops.Batch, rows: Sequence[tuple[int, int]]) -> None:
        k = to_tensor(np.stack([self.k[s][p].reshape(-1) for s, p in rows]))
        v = to_tensor(np.stack([self.v[s][p].reshape(-1) for s, p in rows]))
        ops.kv_append(self.keys, self.values, k, v, batch)

    def run(self, rows: Sequence[tuple[int, int]], window: int = 0, sinks: F32 | None = None) -> F32:
        q = to_tensor(np.stack([self.q[s][p].reshape(-1) for s, p in rows]))
        out = ops.tensor("F32", (len(rows), self.heads * self.value_dim))
        ops.attention(out, q, self.keys, self.values, self.batch(rows), self.scale, window,
                      None if sinks is None else to_tensor(sinks))  # fmt: skip
        return np.array(out.numpy())

    def expected(self, rows: Sequence[tuple[int, int]], window: int = 0, sinks: F32 | None = None) -> F32:
        out = [
            reference.attention(self.q[s][p : p + 1], self.k[s][: p + 1], self.v[s][: p + 1],
                                np.array([p], np.int32), self.scale, window, sinks)
            for s, p in rows
        ]  # fmt: skip
        return np.concatenate(out).reshape(len(rows), -1)

    @property
    def scale(self) -> float:
        return float(self.key_dim**-0.5)

    def all_rows(self) -> list[tuple[int, int]]:
        return [(s, p) for s, n in enumerate(self.lengths) for p in range(n)]


SHAPES = [(1, 1, 8, 8), (6, 2, 24, 40), (5, 5, 64, 64), (8, 1, 80, 16), (14, 2, 128, 128), (9, 3, 192, 128)]


@pytest.mark.parametrize("isa", ops.isas())
@pytest.mark.parametrize(("heads", "kv_heads", "key_dim", "value_dim"), SHAPES)
def test_matches_the_specification(isa: str, heads: int, kv_heads: int, key_dim: int, value_dim: int) -> None:
    case = Case([1, 37, 300], heads, kv_heads, key_dim, value_dim)
    _native.use_isa(isa)
    rows = case.all_rows()
    np.testing.assert_allclose(case.run(rows), case.expected(rows), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("head_dim", [256, 576])
def test_wide_heads(head_dim: int) -> None:
    case = Case([270], 2, 1, head_dim)
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
@pytest.mark.parametrize(("heads", "kv_heads", "key_dim", "value_dim"), [(6, 2, 40, 24), (16, 2, 64, 64)])
def test_same_bits_for_every_batch_thread_count_and_instruction_set(
    window: int, heads: int, kv_heads: int, key_dim: int, value_dim: int
) -> None:
    case = Case([1, 530, 90], heads, kv_heads, key_dim, value_dim)
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


def test_wrong_arguments_are_named() -> None:
    case = Case([3], 2, 1, 16)
    q, out = ops.tensor("F32", (1, 32)), ops.tensor("F32", (1, 32))
    batch = case.batch([(0, 2)])
    with pytest.raises(ValueError, match=r"q: found F32 \(1, 40\)"):
        ops.attention(out, ops.tensor("F32", (1, 40)), case.keys, case.values, batch, 1.0)
    with pytest.raises(ValueError, match=r"out: found F32 \(2, 32\), expected F32 \(1, 32\)"):
        ops.attention(ops.tensor("F32", (2, 32)), q, case.keys, case.values, batch, 1.0)
    with pytest.raises(ValueError, match="keys"):
        ops.attention(out, q, case.values, case.values, batch, 1.0)
    with pytest.raises(ValueError, match="block 5"):
        ops.attention(
            out, q, case.keys, case.values, ops.Batch(*np.zeros((2, 1), np.int32), [np.array([5], np.int32)]), 1.0
        )
    with pytest.raises(ValueError, match="positions: found 256"):
        case.batch([(0, 256)])
    with pytest.raises(ValueError, match="sequence: found 1"):
        case.batch([(1, 0)])
