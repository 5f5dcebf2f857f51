"""Ops on rows: norm, add, combine, embed, finite - values, odd sizes and equal bits on every path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from kernel_weights import plain, same_everywhere
from numpy.typing import NDArray

from colibri import ops

SIZES = [1, 7, 16, 24, 63, 100, 2048]


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("dim", SIZES)
@pytest.mark.parametrize("n", [1, 3, 50])
def test_norm(n: int, dim: int) -> None:
    x, weight = normal(n, dim), normal(dim, seed=1)

    def run() -> NDArray[Any]:
        out = ops.tensor("F32", (n, dim))
        assert ops.norm(out, plain(x), ops.Norm(plain(weight), 1e-5))
        return np.array(out.numpy())

    np.testing.assert_allclose(same_everywhere(run), reference.rms_norm(x, weight, 1e-5), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dim", SIZES[1:])
@pytest.mark.parametrize("n", [1, 50])
def test_layer_norm(n: int, dim: int) -> None:
    x, weight, bias = normal(n, dim) + 3, normal(dim, seed=1), normal(dim, seed=2)

    def run() -> NDArray[Any]:
        out = ops.tensor("F32", (n, dim))
        assert ops.norm(out, plain(x), ops.Norm(plain(weight), 1e-5, plain(bias)))
        return np.array(out.numpy())

    expected = reference.layer_norm(x, weight, bias, 1e-5)
    np.testing.assert_allclose(same_everywhere(run), expected, rtol=1e-5, atol=3e-6)


def test_norm_of_heads_and_in_place() -> None:
    x, weight = normal(3, 4 * 24), normal(24, seed=1)
    heads = plain(x).reshape(3, 4, 24)
    assert ops.norm(heads, heads, ops.Norm(plain(weight), 1e-6))
    np.testing.assert_allclose(
        heads.numpy(), reference.rms_norm(x.reshape(3, 4, 24), weight, 1e-6), rtol=2e-6, atol=1e-7
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 19])
def test_norm_reports_what_is_not_finite(bad: float, row: int) -> None:
    x = normal(20, 1500)
    x[row, 1499] = bad
    for bias in (None, plain(normal(1500))):
        assert not ops.norm(ops.tensor("F32", x.shape), plain(x), ops.Norm(plain(normal(1500)), 1e-6, bias))


@pytest.mark.parametrize("dim", SIZES)
def test_add(dim: int) -> None:
    x, y = normal(3, dim), normal(3, dim, seed=1)
    out = plain(x)
    ops.add(out, plain(y))
    assert (out.numpy() == x + y).all()


@pytest.mark.parametrize("dim", SIZES)
def test_combine(dim: int) -> None:
    out, slots, weights = normal(9, dim), normal(9 * 3, dim, seed=1), normal(9, 3, seed=2)

    def run() -> NDArray[Any]:
        total = plain(out)
        ops.combine(total, plain(slots), plain(weights))
        return np.array(total.numpy())

    np.testing.assert_allclose(same_everywhere(run), reference.combine(out, slots, weights), rtol=1e-5, atol=1e-6)


def test_embed() -> None:
    table = normal(37, 40)
    weights = ops.tensor("F32", (37, 40), tiled=True)
    ops.tile(weights, table.tobytes())
    ids = np.array([36, 0, 16, 15, 36], np.int32)
    out = ops.tensor("F32", (5, 40))
    ops.embed(out, weights, plain(ids))
    assert (out.numpy() == table[ids]).all()
    for bad in (-1, 37):
        with pytest.raises(IndexError, match=f"ids: found {bad}, expected 0 to 36"):
            ops.embed(out, weights, plain(np.array([0, bad, 0, 0, 0], np.int32)))


def test_embed_positions() -> None:
    table = normal(9, 40)
    weights = ops.tensor("F32", (9, 40), tiled=True)
    ops.tile(weights, table.tobytes())
    positions, out = np.array([3, 4, 8], np.int32), ops.tensor("F32", (3, 40))
    blocks = [np.zeros(1, np.int32)]
    ops.embed_positions(out, weights, ops.Batch(positions, np.zeros(3, np.int32), blocks))
    assert (out.numpy() == table[positions]).all()
    with pytest.raises(IndexError, match="position: found 9, expected 0 to 8"):
        ops.embed_positions(out, weights, ops.Batch(positions + 1, np.zeros(3, np.int32), blocks))


def test_wrong_arguments_are_named() -> None:
    x = plain(normal(2, 8))
    with pytest.raises(ValueError, match=r"weight: found F32 \(2, 8\)"):
        ops.Norm(x, 1e-6)
    with pytest.raises(ValueError, match=r"x: found F32 \(2, 8\), expected F32 \(\.\.\., 3\)"):
        ops.norm(x, x, ops.Norm(plain(normal(3)), 1e-6))
    with pytest.raises(ValueError, match="slots: found"):
        ops.combine(x, x, plain(normal(2, 3)))
    with pytest.raises(TypeError):
        ops.add(normal(2, 8), normal(2, 8))  # type: ignore[arg-type]
