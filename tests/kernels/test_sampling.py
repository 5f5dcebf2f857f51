"""Tokens from logits: the numpy definition's, and equal bits on every instruction set and thread count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from kernel_weights import same_everywhere
from numpy.typing import NDArray

from colibri import ops

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
GREEDY = [0.0, 0.0, 1.0, 0.0, 0.0]
FILTERS = [  # top_k, top_p, min_p
    (0, 1.0, 0.0), (40, 1.0, 0.0), (1, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.999, 0.0), (0, 1e-9, 0.0), (0, 1.0, 0.05),
    (0, 1.0, 1.0), (30, 0.8, 0.0), (30, 0.8, 0.1), (0, 0.95, 0.02), (10**6, 0.5, 0.0),
]  # fmt: skip


def run(logits: F32, settings: F64) -> tuple[NDArray[np.int32], F64]:
    tokens, norms = np.full(len(logits), -1, np.int32), np.full(len(logits), -1.0)
    ops.sample(tokens, norms, logits, settings)
    return tokens, norms


def everywhere(logits: F32, settings: F64) -> tuple[list[int], F64]:
    def both() -> NDArray[Any]:
        tokens, norms = run(logits, settings)
        return np.stack([tokens.astype(np.float64), norms])

    tokens, norms = same_everywhere(both)
    return tokens.astype(int).tolist(), norms


def normal(rows: int, vocabulary: int) -> F32:
    return (3 * np.random.default_rng(vocabulary).standard_normal((rows, vocabulary))).astype(np.float32)


@pytest.mark.parametrize("vocabulary", [1, 15, 17, 511, 513, 1025, 50304])
def test_the_likeliest_and_the_norm(vocabulary: int) -> None:
    logits = np.round(normal(9, vocabulary), 1)  # with ties
    tokens, norms = everywhere(logits, np.array([GREEDY] * 9))
    expected = [reference.sample(row, GREEDY) for row in logits]
    assert tokens == [token for token, _ in expected]
    np.testing.assert_allclose(norms, [norm for _, norm in expected], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocabulary", [1, 17, 600, 6144])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_draws(filters: tuple[int, float, float], vocabulary: int, temperature: float) -> None:
    """What is drawn is what the definition draws, or its neighbour where rounding decides."""
    uniforms = np.linspace(0, 1, 16, endpoint=False) + 0.013
    logits = normal(len(uniforms), vocabulary)
    settings = np.array([[temperature, *filters, uniform] for uniform in uniforms])
    tokens, norms = everywhere(logits, settings)
    for row, token, norm, wanted in zip(logits, tokens, norms, settings.tolist(), strict=True):
        expected, expected_norm = reference.sample(row, wanted)
        assert norm == pytest.approx(expected_norm, rel=1e-6, abs=1e-6)
        assert expected == token or token in near(row, wanted)


def near(logits: F32, settings: list[float]) -> set[int]:
    """What a draw a little lower or higher, from a mass a little smaller or larger, would give."""
    temperature, top_k, top_p, min_p, uniform = settings
    return {
        reference.sample(logits, [temperature, top_k, top_p * mass, min_p, uniform + shift])[0]
        for shift in (-2e-6, 0, 2e-6) for mass in (1 - 1e-6, 1, 1 + 1e-6) if top_p * mass <= 1
    }  # fmt: skip


@pytest.mark.parametrize("filters", FILTERS)
def test_a_row_is_the_same_alone(filters: tuple[int, float, float]) -> None:
    logits = normal(16, 3000)
    settings = np.array([[0.9, *filters, row / 16] for row in range(16)])
    together, norms = run(logits, settings)
    for row in range(16):
        alone, norm = run(logits[row : row + 1], settings[row : row + 1])
        assert (alone[0], norm[0]) == (together[row], norms[row])


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-9, 1.0, 1e9, 1e300])
def test_extremes_and_forbidden_tokens(filters: tuple[int, float, float], temperature: float) -> None:
    values = np.array([-np.inf] * 600 + [-3e38, 0.0, 3e38, 3e38] + [-np.inf] * 600, np.float32)
    for uniform in (0.0, 0.5, 1 - 2**-53):
        settings = np.array([[temperature, *filters, uniform]])
        (token,), (norm,) = run(values[np.newaxis], settings)
        assert token in ((602, 603) if temperature <= 1 else range(600, 604))
        assert np.isnan(norm)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("filters", FILTERS)
def test_a_norm_that_is_not_finite(bad: float, filters: tuple[int, float, float]) -> None:
    for values in (np.full(700, bad, np.float32), np.array([*range(600), bad], np.float32)):
        tokens, norms = run(np.stack([values, np.zeros_like(values)]), np.array([[1.0, *filters, 0.7]] * 2))
        assert np.isnan(norms[0])
        assert 0 <= tokens[0] < len(values)
        assert norms[1] == pytest.approx(np.log(len(values)))


def test_arguments_are_checked() -> None:
    logits, settings = np.zeros((2, 600), np.float32), np.array([GREEDY] * 2)
    tokens, norms = np.zeros(2, np.int32), np.zeros(2)
    with pytest.raises(ValueError, match="tokens: found 1 values, expected 2"):
        ops.sample(tokens[:1], norms, logits, settings)
    with pytest.raises(ValueError, match="norms: found 1 values, expected 2"):
        ops.sample(tokens, norms[:1], logits, settings)
    with pytest.raises(ValueError, match="settings: found 1 x 5, expected 2 x 5"):
        ops.sample(tokens, norms, logits, settings[:1])
    with pytest.raises(ValueError, match="logits: found 0 columns"):
        ops.sample(tokens, norms, np.zeros((2, 0), np.float32), settings)
    with pytest.raises(TypeError):
        ops.sample(tokens, norms, logits.astype(np.float64), settings)  # type: ignore[arg-type]
