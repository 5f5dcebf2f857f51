"""A matrix for each head, and the gate of an attention's output: the specification, and the same bits on every path."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from kernel_weights import close, plain, random_weight, same_everywhere, tiled
from numpy.typing import NDArray

from colibri import ops

F32 = NDArray[np.float32]


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def product(x: F32, weight: ops.Tensor, heads: int, exact: bool = False, rest: int = 0) -> F32:
    out = ops.tensor("F32", (len(x), weight.shape[0] + heads * rest))
    out.numpy()[...] = np.nan
    ops.head_matmul(out, plain(x), weight, heads, exact, rest > 0)
    return np.array(out.numpy())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("kind", "heads", "rows", "k", "rest"), [
    ("F32", 1, 16, 7, 5), ("BF16", 3, 48, 40, 24), ("Q8_0", 5, 512, 128, 64), ("Q4_0", 2, 112, 96, 0),
    ("Q4_K", 3, 32, 512, 0), ("F16", 16, 128, 512, 0),
])  # fmt: skip
def test_matches_the_specification(kind: str, heads: int, rows: int, k: int, rest: int, exact: bool) -> None:
    weight, x = random_weight(kind, heads * rows, k), normal(150, heads * (k + rest))
    tiles = tiled(weight)
    found = same_everywhere(lambda: product(x, tiles, heads, exact, rest))
    close(found, reference.head_matmul(x, weight, heads, exact), 1e-5)
    for rows_of_x in (slice(0, 1), slice(3, 12), slice(20, 150)):
        assert product(x[rows_of_x], tiles, heads, exact, rest).tobytes() == found[rows_of_x].tobytes()


def test_one_head_is_a_matrix() -> None:
    weight, x = tiled(random_weight("Q8_0", 64, 96)), normal(9, 96)
    out = ops.tensor("F32", (9, 64))
    ops.matmul((out,), plain(x), (weight,))
    assert out.numpy().tobytes() == product(x, weight, 1).tobytes()


def test_wrong_arguments_are_named() -> None:
    weight, x, out = tiled(random_weight("F32", 64, 8)), plain(normal(2, 20)), ops.tensor("F32", (2, 68))
    with pytest.raises(ValueError, match="heads: found 0"):
        ops.head_matmul(out, x, weight, 0)
    for heads in (3, 8):
        with pytest.raises(ValueError, match=f"{heads} heads of a multiple of 16 rows"):
            ops.head_matmul(out, x, weight, heads)
    with pytest.raises(ValueError, match=r"x: found F32 \(2, 20\), expected rows of 2 times 8"):
        ops.head_matmul(out, x, weight, 2)
    with pytest.raises(ValueError, match=r"x: found F32 \(2, 20\), expected rows of 1 times 32 or more"):
        ops.head_matmul(out, x, tiled(random_weight("F32", 64, 32)), 1, rest=True)
    ops.head_matmul(out, x, weight, 2, rest=True)
    with pytest.raises(ValueError, match=r"out: found F32 \(2, 64\), expected rows of 2 times 34"):
        ops.head_matmul(ops.tensor("F32", (2, 64)), x, weight, 2, rest=True)
    with pytest.raises(ValueError, match="expected memory of its own"):
        ops.head_matmul(x, x, tiled(random_weight("F32", 16, 16)), 1, rest=True)


@pytest.mark.parametrize("width", [1, 16, 37, 4096])
@pytest.mark.parametrize("n", [1, 40])
def test_sigmoid_gate(n: int, width: int) -> None:
    x, gate = normal(n, width), 40 * normal(n, width, seed=1)

    def run() -> F32:
        out = plain(x)
        assert ops.sigmoid_gate(out, plain(gate))
        return np.array(out.numpy())

    np.testing.assert_allclose(same_everywhere(run), reference.sigmoid_gate(x, gate), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gate_that_is_not_finite(bad: float) -> None:
    """The sigmoid of an infinity is a number, which would hide what came before."""
    gate = normal(5, 37)
    gate[3, 36] = bad
    assert not ops.sigmoid_gate(plain(normal(5, 37)), plain(gate))


def test_sigmoid_gate_names_wrong_arguments() -> None:
    x = ops.tensor("F32", (4, 8))
    with pytest.raises(ValueError, match=r"gate: found F32 \(4, 7\), expected F32 \(4, 8\)"):
        ops.sigmoid_gate(x, ops.tensor("F32", (4, 7)))
    with pytest.raises(ValueError, match="expected memory of its own"):
        ops.sigmoid_gate(x, x)


@pytest.mark.parametrize("width", [1, 37, 70001])
@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_soft_cap(width: int, cap: float) -> None:
    x = 40 * normal(3, width)
    x[0, 0], x[1, 0], x[2, -1] = np.inf, np.nan, 0

    def run() -> F32:
        out = plain(x)
        ops.soft_cap(out, cap)
        return np.array(out.numpy())

    np.testing.assert_allclose(same_everywhere(run), reference.soft_cap(x, cap), rtol=1e-6, atol=2e-7 * cap)


@pytest.mark.parametrize("cap", [0.0, -1.0, np.inf, np.nan])
def test_soft_cap_names_a_wrong_cap(cap: float) -> None:
    with pytest.raises(ValueError, match=r"cap: found .*, expected a finite number above 0"):
        ops.soft_cap(ops.tensor("F32", (1, 8)), cap)
