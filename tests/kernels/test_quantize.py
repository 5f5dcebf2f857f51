"""The quantisers: layouts by the reference's dequantisers, bounded errors, the same bytes on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from kernel_weights import SETS

from colibri import ops
from colibri.ops import _native

RNG = np.random.default_rng(11)
BLOCKS = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
]  # fmt: skip
# Root-mean-square error on a gaussian of deviation 1, a little above what is measured (llama.cpp's are higher).
GAUSSIAN_ERROR = {
    "Q4_0": 0.088, "Q4_1": 0.0730, "Q5_0": 0.0425, "Q5_1": 0.0356, "Q8_0": 0.0060, "MXFP4": 0.118, "IQ4_NL": 0.0760,
    "IQ4_XS": 0.0765, "Q2_K": 0.270, "Q3_K": 0.148, "Q4_K": 0.0735, "Q5_K": 0.0368, "Q6_K": 0.0191,
}  # fmt: skip


def matrix(rows: int, k: int, kind: str = "normal") -> np.ndarray:
    draw = {"normal": RNG.normal, "student": lambda size: RNG.standard_t(3, size=size)}[kind]
    return np.asarray(draw(size=(rows, k)), np.float32)


def error(type: str, x: np.ndarray, importance: np.ndarray | None = None) -> float:
    back = reference.dequantize(type, ops.quantize(type, x, importance).tobytes(), x.shape)
    return float(np.sqrt((((back - x) ** 2) * (1 if importance is None else importance)).mean()))


@pytest.mark.parametrize("type", BLOCKS)
def test_error_on_a_gaussian(type: str) -> None:
    assert error(type, matrix(64, 512)) < GAUSSIAN_ERROR[type]


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("kind", ["normal", "student"])
def test_error_does_not_depend_on_the_scale_of_a_tensor(type: str, kind: str) -> None:
    x = matrix(16, 512, kind)
    small = error(type, x / 64) * 64
    assert small == pytest.approx(error(type, x), rel=0.02)


@pytest.mark.parametrize("type", [name for name in BLOCKS if name != "MXFP4"])
def test_importance_lowers_the_weighted_error(type: str) -> None:
    x, importance = matrix(32, 512), (RNG.chisquare(1, size=512) + 0.01).astype(np.float32)
    back = reference.dequantize(type, ops.quantize(type, x).tobytes(), x.shape)
    plain = float(np.sqrt((((back - x) ** 2) * importance).mean()))
    assert error(type, x, importance) < plain


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_partial_group_of_blocks_has_the_bytes_of_a_full_one(type: str, rows: int) -> None:
    x = matrix(8, 256)
    np.testing.assert_array_equal(ops.quantize(type, x)[:rows], ops.quantize(type, x[:rows]))


@pytest.mark.parametrize("type", [*BLOCKS, "F16", "BF16", "F32"])
def test_same_bytes_on_every_instruction_set(type: str) -> None:
    x, importance = matrix(9, 512, "student"), (RNG.random(512) + 0.1).astype(np.float32)
    chosen = ops.isa()
    try:
        results = []
        for isa in ops.isas():
            _native.use_isa(isa)
            results.append((ops.quantize(type, x), ops.quantize(type, x, importance)))
    finally:
        _native.use_isa(chosen)
    for plain, weighted in results:
        np.testing.assert_array_equal(plain, results[0][0])
        np.testing.assert_array_equal(weighted, results[0][1])


@pytest.mark.parametrize("isa", SETS)
def test_every_half_float_and_what_lies_between_rounds_as_numpy_does(isa: str) -> None:
    _native.use_isa(isa)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    below, above = np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))
    x = np.concatenate([halves, middles, below, above])
    x = np.concatenate([x, -x])[None]
    assert ops.quantize("F16", x).view(np.float16).tobytes() == x.astype(np.float16).tobytes()


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("value", [0.0, 0.25, -0.25, 1e-30, 2.0])
def test_constant_rows(type: str, value: float) -> None:
    x = np.full((2, 256), value, np.float32)
    back = reference.dequantize(type, ops.quantize(type, x).tobytes(), x.shape)
    assert np.isfinite(back).all()
    if abs(value) > 1e-6 or value == 0:
        np.testing.assert_allclose(back, x, rtol=0.002)


@pytest.mark.parametrize("type", BLOCKS)
def test_values_of_the_grid_come_back(type: str) -> None:
    """Quantising what a format can hold exactly loses next to nothing."""
    x = reference.dequantize(type, ops.quantize(type, matrix(4, 512)).tobytes(), (4, 512))
    assert error(type, x) < 0.25 * GAUSSIAN_ERROR[type]


def test_floats_round_to_nearest_even() -> None:
    x = np.array([[1.0, -2.5, 65504, 1e-7, 3.14159, 1 + 2**-9, 1 + 3 * 2**-9, 0]], np.float32)
    np.testing.assert_array_equal(ops.quantize("F16", x).view(np.float16), x.astype(np.float16))
    bf16 = reference.dequantize("BF16", ops.quantize("BF16", x).tobytes(), x.shape)
    np.testing.assert_array_equal(bf16[0, 5:7], np.array([1, 1 + 2**-7], np.float32))
    np.testing.assert_array_equal(ops.quantize("F32", x).view(np.float32), x)


@pytest.mark.parametrize("type", [*BLOCKS, "F16", "BF16", "F32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_what_is_not_finite(type: str, bad: float) -> None:
    x = matrix(2, 256)
    x[1, 77] = bad
    with pytest.raises(ValueError, match="rows"):
        ops.quantize(type, x)


def test_refuses_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="a multiple of 256"):
        ops.quantize("Q4_K", matrix(1, 32))
    with pytest.raises(ValueError, match="importance"):
        ops.quantize("Q8_0", matrix(1, 64), np.ones(32, np.float32))
    with pytest.raises(ValueError, match="IQ3_S"):
        ops.quantize("IQ3_S", matrix(1, 256))
    with pytest.raises(ValueError, match="Q8_K"):
        ops.quantize("Q8_K", matrix(1, 256))
