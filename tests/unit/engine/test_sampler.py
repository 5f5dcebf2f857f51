"""Properties of sampling; what the filters let in is compared with the numpy definition in tests/kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from colibri.config import SamplingParams
from colibri.engine.sampler import Choice, Chooser, Sampler, Wish, penalize, top
from colibri.errors import ArgumentError, ColibriError, NumericalError

logits = arrays(np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=32))
few_values = arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0]))  # many ties
probabilities = st.floats(0.01, 1.0)


def choose(
    sampler: Sampler, values: np.ndarray, history: Sequence[int] = (), allowed: np.ndarray | None = None
) -> Choice:
    """One token; raises what is wrong with it."""
    (found,) = Chooser(1)(values[np.newaxis], [Wish(sampler, history, allowed)])
    if isinstance(found, ColibriError):
        raise found
    return found


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values.astype(np.float64) - values.max())
    return np.asarray(weights / weights.sum())


@given(logits | few_values)
def test_temperature_zero_takes_the_likeliest_and_the_lowest_id(values: np.ndarray) -> None:
    token, logprob, _ = choose(Sampler(SamplingParams(temperature=0)), values)
    assert token == int(np.flatnonzero(values == values.max())[0])
    assert logprob == pytest.approx(math.log(softmax(values)[token]), abs=1e-5)


@given(logits | few_values, st.integers(0, 50), probabilities, st.floats(0, 1), st.floats(0.1, 3), st.integers(0, 99))
def test_only_what_the_filters_let_in(
    values: np.ndarray, k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_k=k, top_p=top_p, min_p=min_p, seed=seed)
    ids, _ = reference.kept(values, temperature, k, min(1, top_p * (1 + 1e-5)), min_p * (1 - 1e-5))  # rounding decides
    sampler = Sampler(params)
    assert {choose(sampler, values).token for _ in range(5)} <= set(ids.tolist())


def test_rows_together_are_rows_alone() -> None:
    """Also where some are changed, forbidden or damaged."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((9, 700)).astype(np.float32)
    values[3, 7] = np.nan
    allowed = rng.random(700) < 0.05
    settings: list[dict[str, Any]] = [
        {"temperature": 0}, {}, {"top_p": 0.9}, {}, {"repetition_penalty": 1.4}, {"logit_bias": ((700, 1.0),)},
        {"logit_bias": ((5, 9.0),), "top_logprobs": 3}, {"top_k": 5}, {"temperature": 0, "presence_penalty": 1.0},
    ]  # fmt: skip
    together, alone = ([Sampler(SamplingParams(seed=1, **given)) for given in settings] for _ in range(2))
    history, masks = list(range(300)), [*[None] * 7, allowed, allowed]
    chooser = Chooser(9)
    for _ in range(4):
        found = chooser(values, [Wish(who, history, mask) for who, mask in zip(together, masks, strict=True)])
        assert [type(choice) for choice in found] == [
            NumericalError if row == 3 else ArgumentError if row == 5 else Choice for row in range(9)
        ]
        for row, choice in enumerate(found):
            if isinstance(choice, Choice):
                assert choice == choose(alone[row], values[row], history, masks[row])
        assert all(allowed[choice.token] for choice in found[7:] if isinstance(choice, Choice))


@given(few_values, st.integers(1, 45))
def test_top_breaks_ties_by_id(values: np.ndarray, count: int) -> None:
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    assert top(values.astype(np.float64), count).tolist() == order[:count]


@given(logits, st.lists(st.integers(0, 59), max_size=8), st.floats(0.5, 2))
def test_the_penalty_touches_seen_tokens_once(values: np.ndarray, history: list[int], penalty: float) -> None:
    history = [token for token in history if token < len(values)]
    scores = values.copy()
    penalize(scores, history, penalty)
    for token in range(len(values)):
        value = float(values[token])
        expected = value if token not in history else value / penalty if value > 0 else value * penalty
        assert scores[token] == pytest.approx(expected, rel=1e-5)


@given(logits, st.integers(0, 2**64 - 1))
def test_a_seed_decides(values: np.ndarray, seed: int) -> None:
    params = SamplingParams(temperature=1.2, seed=seed)
    first, second = Sampler(params), Sampler(params)
    assert [choose(first, values)[0] for _ in range(5)] == [choose(second, values)[0] for _ in range(5)]


def test_draws_follow_the_distribution() -> None:
    values = np.log(np.array([0.5, 0.25, 0.2, 0.05], np.float32))
    sampler = Sampler(SamplingParams(temperature=1, seed=1))
    counts = np.bincount([choose(sampler, values)[0] for _ in range(20000)], minlength=4) / 20000
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.2, 0.05], atol=0.015)


def test_the_seeded_draws_are_known() -> None:
    """The same on every machine and in every version: texts that users noted stay theirs."""
    values = np.log(np.arange(1, 65, dtype=np.float32))
    sampler = Sampler(SamplingParams(temperature=1, seed=42))
    assert [choose(sampler, values)[0] for _ in range(8)] == [18, 23, 33, 59, 26, 45, 36, 58]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 9])
def test_a_bad_logit_is_an_error(value: float, place: int) -> None:
    values = np.zeros(10, np.float32)
    values[place] = value
    for temperature in (0, 1):
        with pytest.raises(NumericalError, match="output"):
            choose(Sampler(SamplingParams(temperature=temperature)), values)


@pytest.mark.parametrize("high", [3e38, 1e30])
def test_extreme_logits_are_fine(high: float) -> None:
    values = np.array([-high, high, 0], np.float32)
    for temperature in (0, 1e-9, 1, 1e9):
        token, logprob, _ = choose(Sampler(SamplingParams(temperature=temperature, top_p=0.5, seed=0)), values)
        assert token in (0, 1, 2)
        assert not math.isnan(logprob)


def test_biases_forbid_and_force() -> None:
    values = np.array([0.0, 1.0, 2.0, 0.0], np.float32)
    assert choose(Sampler(SamplingParams(temperature=0, logit_bias=((2, -100.0),))), values)[0] == 1
    assert choose(Sampler(SamplingParams(temperature=0, logit_bias={3: 100.0})), values)[0] == 3  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"logit_bias: found token 4, expected 0\.\.3"):
        choose(Sampler(SamplingParams(temperature=0, logit_bias=((4, 1.0),))), values)
    assert values.tolist() == [0, 1, 2, 0]


def test_penalties_count_what_was_generated_and_not_the_prompt() -> None:
    values = np.array([0.0, 1.0, 2.0], np.float32)

    def generate(sampler: Sampler, history: list[int], count: int) -> list[int]:
        prompt_length = len(history)
        for _ in range(count):
            history.append(choose(sampler, values, history).token)
        return history[prompt_length:]

    presence = Sampler(SamplingParams(temperature=0, presence_penalty=1.5), 3)
    assert generate(presence, [2, 2, 2], 4) == [2, 1, 2, 2]
    frequency = Sampler(SamplingParams(temperature=0, frequency_penalty=0.6))
    assert generate(frequency, [], 5) == [2, 2, 1, 2, 1]


def test_likeliest_tokens_have_the_logprobs_of_the_model() -> None:
    values = np.array([0.0, 1.0, 2.0, 1.0], np.float32)
    choice = choose(Sampler(SamplingParams(temperature=0, logit_bias=((0, 50.0),), top_logprobs=3)), values)
    assert choice.token == 0
    assert [token for token, _ in choice.top] == [2, 1, 3]
    assert choice.top[0][1] == pytest.approx(2 - np.log(np.exp(values.astype(float)).sum()))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sign", [-1, 1])
def test_what_overflows_by_a_penalty_is_not_sampled(sign: int) -> None:
    logits = np.array([1, sign * 3e38, 2], np.float32)
    sampler = Sampler(SamplingParams(repetition_penalty=0.5 if sign > 0 else 2))
    with pytest.raises(NumericalError, match="overflow"):
        choose(sampler, logits, [1])
    assert choose(sampler, np.array([-np.float32(1e38), 0, -1e38], np.float32), [1]).token == 1
