"""Weights of tokens: values, sums of parts, and equal bits on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri import ops
from colibri.ops import _native, reference


def run(x: NDArray[np.float32], high: float, temperature: float) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    out, parts = np.full_like(x, np.nan), np.full(-(-len(x) // ops.SAMPLING_PART), np.nan)
    ops.exponentials(parts, x, high, temperature, out)
    sums = np.empty_like(parts)
    ops.exponentials(sums, x, high, temperature)
    np.testing.assert_array_equal(sums, parts)
    return out, parts


def on_every_isa(x: NDArray[np.float32], high: float, temperature: float) -> list[bytes]:
    chosen = ops.isa()
    try:
        results = []
        for isa in ops.isas():
            _native.use_isa(isa)
            results.append(b"".join(array.tobytes() for array in run(x, high, temperature)))
        return results
    finally:
        _native.use_isa(chosen)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 511, 512, 513, 1025, 50304])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_values_and_sums(n: int, temperature: float) -> None:
    x = (np.random.default_rng(n).standard_normal(n) * 5).astype(np.float32)
    high = float(x.max())
    found, expected = run(x, high, temperature), reference.exponentials(x, high, temperature)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-6, atol=2e-38)  # subnormal results are zero
    np.testing.assert_allclose(found[1], expected[1], rtol=3e-6)
    assert len(set(on_every_isa(x, high, temperature))) == 1


def test_far_below_and_forbidden_tokens_weigh_nothing() -> None:
    x = np.array([-np.inf, -3e38, 0.0, 3e38], np.float32)
    for temperature in (1e-30, 1.0, 1e9):
        out, parts = run(x, 3e38, temperature)
        assert out.tolist() == [0, 0, 0, 1]
        assert parts.tolist() == [1]
    assert run(np.array([0.0, -1.0], np.float32), 0.0, 1e-30)[0].tolist() == [1, 0]


def test_arguments_are_checked() -> None:
    x = np.zeros(600, np.float32)
    with pytest.raises(ValueError, match="parts: found 1 values, expected 2"):
        ops.exponentials(np.zeros(1), x, 0.0, 1.0)
    with pytest.raises(ValueError, match="out: found 3 values"):
        ops.exponentials(np.zeros(2), x, 0.0, 1.0, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="temperature"):
        ops.exponentials(np.zeros(2), x, 0.0, 0.0)
