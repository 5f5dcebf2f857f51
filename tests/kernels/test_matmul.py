"""Products: close to the specification, one set of bits for every instruction set, thread count and batch."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from kernel_weights import FORMATS, close, plain, random_weight, same_everywhere, tiled
from numpy.typing import NDArray

from colibri import ops


def columns_of(name: str, blocks: int = 3) -> int:
    values = ops.BLOCK_TYPES[name].values
    return 37 * blocks if values == 1 else values * blocks


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def product(
    weight: ops.Tensor, x: NDArray[np.float32], exact: bool, bias: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    out = ops.tensor("F32", (len(x), weight.shape[0]))
    ops.matmul((out,), plain(x), (weight,), exact=exact, biases=None if bias is None else (plain(bias),))
    return out.numpy().copy()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "n"), [(5, 1), (37, 2), (80, 9), (48, 70)])
def test_close_to_the_specification(name: str, exact: bool, rows: int, n: int) -> None:
    weight, x, bias = random_weight(name, rows, columns_of(name)), normal(n, columns_of(name)), normal(rows, seed=1)
    tiles = tiled(weight)
    found = same_everywhere(lambda: product(tiles, x, exact, bias))
    close(found, reference.matmul(x, weight, exact, bias), 2e-6)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_does_not_depend_on_the_batch(name: str, exact: bool) -> None:
    tiles, x = tiled(random_weight(name, 33, columns_of(name))), normal(131, columns_of(name))
    alone = np.concatenate([product(tiles, x[i : i + 1], exact) for i in range(len(x))])
    for n in (2, 3, 5, 8, 13, 64, 65, 131):
        assert product(tiles, x[:n], exact).tobytes() == alone[:n].tobytes()


def test_several_weights_share_x_and_accumulate() -> None:
    x = normal(3, 256)
    weights = [random_weight(name, rows, 256, seed=rows) for name, rows in (("Q4_K", 48), ("Q8_0", 7), ("F32", 20))]
    outs = tuple(plain(normal(3, w.shape[0], seed=5)) for w in weights)
    expected = [out.numpy() + reference.matmul(x, w) for out, w in zip(outs, weights, strict=True)]
    ops.matmul(outs, plain(x), tuple(tiled(w) for w in weights), accumulate=True)
    for out, want in zip(outs, expected, strict=True):
        close(out.numpy(), want, 2e-6)


@pytest.mark.parametrize("name", [name for name in FORMATS if ops.BLOCK_TYPES[name].activation != "f32"])
def test_awkward_activations(name: str) -> None:
    k = columns_of(name, 2)
    tiles, x = tiled(random_weight(name, 16, k)), normal(4, k)
    x[0] = 0
    x[1, : k // 2] = 0
    x[2] *= 1e30
    x[3, 5] = np.nan
    found = product(tiles, x, exact=False)
    assert not found[0].any()
    assert np.isfinite(found[:3]).all()
    assert np.isnan(found[3]).all()


ONE, ONE_FLOAT = b"\x00\x3c", b"\x00\x00\x80\x3f"  # in f16 and in f32
LARGEST = [
    ("IQ2_S", ONE + b"\xff" * 80),
    ("IQ1_S", ONE + b"\xff" * 48),
    ("IQ1_M", b"\xff" * 49 + b"\x0f\xff\xcf\xff\x3f\xff\x0f"),
    ("TQ2_0", b"\xff" * 64 + ONE),
    ("NVFP4", b"\x7e" * 4 + b"\x77" * 32),
    ("Q2_K", b"\xff" * 80 + ONE + ONE),
    ("Q3_K", b"\x00" * 108 + ONE),
    ("Q4_1", ONE + ONE + b"\xff" * 16),
    ("Q5_0", ONE + b"\x00" * 20),
    ("IQ4_XS", ONE + b"\x00" * 134),
    ("Q4_K", ONE + ONE + b"\xff" * 140),
    ("Q5_K", ONE + ONE + b"\xff" * 172),
    ("Q6_K", b"\x00" * 192 + b"\x80" * 16 + ONE),
    ("Q8_0", ONE + b"\x80" * 32),
    ("INT4", ONE_FLOAT + b"\x00" * 16),
    ("INT5", ONE_FLOAT + b"\x00" * 20),
    ("INT8", ONE_FLOAT + b"\x80" * 32),
    ("FP4", ONE_FLOAT * 2 + b"\x77" * 16),
]


@pytest.mark.parametrize(("name", "block"), LARGEST)
def test_sums_of_the_largest_integers_do_not_overflow(name: str, block: bytes) -> None:
    weight = reference.Weight(name, block * 16 * (512 // ops.BLOCK_TYPES[name].values), (16, 512))
    x = np.full((2, 512), 127, np.float32)
    x[1] = -127
    tiles = tiled(weight)
    found = same_everywhere(lambda: product(tiles, x, exact=False))
    close(found, reference.matmul(x, weight), 1e-6)


def test_errors_name_the_argument() -> None:
    weight = tiled(random_weight("Q8_0", 16, 64))
    with pytest.raises(ValueError, match="weights"):
        ops.matmul((ops.tensor("F32", (1, 16)),), ops.tensor("F32", (1, 32)), (weight,))
    with pytest.raises(ValueError, match="outs"):
        ops.matmul((ops.tensor("F32", (1, 15)),), ops.tensor("F32", (1, 64)), (weight,))
