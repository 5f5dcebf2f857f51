"""Properties of sampling, and the filters against plain definitions of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from colibri.config import SamplingParams
from colibri.engine.sampler import Sampler, distribution, draw, penalize, sums_of_parts, top
from colibri.errors import ArgumentError, NumericalError

logits = arrays(np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=32))
few_values = arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0]))  # many ties
probabilities = st.floats(0.01, 1.0)


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values.astype(np.float64) - values.max())
    return np.asarray(weights / weights.sum())


def kept(values: np.ndarray, params: SamplingParams) -> list[int]:
    """The plain definition: sort by logit and id, then cut by k, by mass, by share of the best."""
    probability = softmax(values / np.float64(params.temperature))
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    order = order[: params.top_k] if params.top_k else order
    mass = sum(probability[token] for token in order) if params.top_k else 1.0
    result: list[int] = []
    before = 0.0
    for token in order:
        if result and before >= params.top_p * mass * (1 + 1e-12):
            break
        result.append(token)
        before += probability[token]
    best = probability[order[0]]
    return [token for token in result if probability[token] >= params.min_p * best]


@given(logits | few_values)
def test_temperature_zero_takes_the_likeliest_and_the_lowest_id(values: np.ndarray) -> None:
    token, logprob, _ = Sampler(SamplingParams(temperature=0))(values, [])
    assert token == int(np.flatnonzero(values == values.max())[0])
    assert logprob == pytest.approx(math.log(softmax(values)[token]), abs=1e-5)


@given(logits | few_values, st.integers(0, 70))
def test_top_k_keeps_the_likeliest(values: np.ndarray, k: int) -> None:
    params = SamplingParams(temperature=1, top_k=k)
    ids, weights = distribution(values, params)
    assert sorted(ids.tolist()) == sorted(kept(values, params))
    assert (weights > 0).any()


@given(logits | few_values, st.integers(0, 50), probabilities, st.floats(0, 1), st.floats(0.1, 3))
def test_filters_together(values: np.ndarray, k: int, top_p: float, min_p: float, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=k, top_p=top_p, min_p=min_p)
    ids, _ = distribution(values, params)
    if ids is None:
        assert k == 0
        assert top_p == 1
        assert min_p == 0
        return
    found = ids.tolist()
    expected = kept(values, params)
    # at the very edge of a mass or a share, rounding may decide for one token more or less
    assert abs(len(found) - len(expected)) <= 1 or len(set(values.tolist())) < len(values)
    assert set(found) <= set(range(len(values)))
    shorter = min(len(found), len(expected))
    assert found[:shorter] == expected[:shorter]


@given(st.integers(0, 2**32), probabilities, st.floats(0, 0.2))
@example(0, 0.998046875, 0.0)
@settings(max_examples=30)
def test_a_large_vocabulary_gives_what_a_full_sort_gives(seed: int, top_p: float, min_p: float) -> None:
    """The filters look at the first candidates only where that is enough."""
    spread = np.random.default_rng(seed).choice([0.01, 1.0, 6.0])
    values = np.random.default_rng(seed).normal(0, spread, 10000).astype(np.float32)
    params = SamplingParams(temperature=1, top_p=top_p, min_p=min_p)
    ids, weights = distribution(values, params)
    if ids is None:
        assert (top_p, min_p) == (1, 0)
        return
    full = np.exp(values.astype(np.float64) - values.max())
    order = np.argsort(-full, kind="stable")
    assert ids.tolist() == order[: len(ids)].tolist()
    if top_p < 1 and min_p == 0:
        mass = np.cumsum(full[order]) / full.sum()
        assert mass[len(ids) - 1] >= top_p * (1 - 1e-6)  # the weights are float32
        assert len(ids) == 1 or mass[len(ids) - 2] < top_p * (1 + 1e-6)
    assert (np.diff(weights) <= 0).all()


@given(few_values, st.integers(1, 45))
def test_top_breaks_ties_by_id(values: np.ndarray, count: int) -> None:
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    assert top(values.astype(np.float64), count).tolist() == order[:count]


@given(logits, st.lists(st.integers(0, 59), max_size=8), st.floats(0.5, 2))
def test_the_penalty_touches_seen_tokens_once(values: np.ndarray, history: list[int], penalty: float) -> None:
    history = [token for token in history if token < len(values)]
    before = values.copy()
    scores = penalize(values, history, penalty)
    np.testing.assert_array_equal(values, before)
    for token in range(len(values)):
        value = float(values[token])
        expected = value if token not in history else value / penalty if value > 0 else value * penalty
        assert scores[token] == pytest.approx(expected, rel=1e-5)


@given(logits, st.integers(0, 2**64 - 1))
def test_a_seed_decides(values: np.ndarray, seed: int) -> None:
    params = SamplingParams(temperature=1.2, seed=seed)
    first, second = Sampler(params), Sampler(params)
    assert [first(values, [])[0] for _ in range(5)] == [second(values, [])[0] for _ in range(5)]


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.25, 1.0]), min_size=1, max_size=1500), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_where_the_running_sum_passes(values: list[float], uniform: float) -> None:
    weights = np.array([*values, 1.0])
    place = draw(weights, sums_of_parts(weights), uniform)
    assert weights[place] > 0
    sums = np.cumsum(weights)
    goal = uniform * sums[-1]
    assert sums[place] >= goal * (1 - 1e-12)
    assert sums[place] - weights[place] <= goal * (1 + 1e-12)


def test_draws_follow_the_distribution() -> None:
    values = np.log(np.array([0.5, 0.25, 0.2, 0.05], np.float32))
    sampler = Sampler(SamplingParams(temperature=1, seed=1))
    counts = np.bincount([sampler(values, [])[0] for _ in range(20000)], minlength=4) / 20000
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.2, 0.05], atol=0.015)


def test_the_seeded_draws_are_known() -> None:
    """The same on every machine and in every version: texts that users noted stay theirs."""
    values = np.log(np.arange(1, 65, dtype=np.float32))
    sampler = Sampler(SamplingParams(temperature=1, seed=42))
    assert [sampler(values, [])[0] for _ in range(8)] == [18, 23, 33, 59, 26, 45, 36, 58]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 9])
def test_a_bad_logit_is_an_error(value: float, place: int) -> None:
    values = np.zeros(10, np.float32)
    values[place] = value
    for temperature in (0, 1):
        with pytest.raises(NumericalError, match="output"):
            Sampler(SamplingParams(temperature=temperature))(values, [])


@pytest.mark.parametrize("high", [3e38, 1e30])
def test_extreme_logits_are_fine(high: float) -> None:
    values = np.array([-high, high, 0], np.float32)
    for temperature in (0, 1e-9, 1, 1e9):
        token, logprob, _ = Sampler(SamplingParams(temperature=temperature, top_p=0.5, seed=0))(values, [])
        assert token in (0, 1, 2)
        assert not math.isnan(logprob)


def test_biases_forbid_and_force() -> None:
    values = np.array([0.0, 1.0, 2.0, 0.0], np.float32)
    assert Sampler(SamplingParams(temperature=0, logit_bias=((2, -100.0),)))(values, [])[0] == 1
    assert Sampler(SamplingParams(temperature=0, logit_bias={3: 100.0}))(values, [])[0] == 3  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"logit_bias: found token 4, expected 0\.\.3"):
        Sampler(SamplingParams(temperature=0, logit_bias=((4, 1.0),)))(values, [])
    assert values.tolist() == [0, 1, 2, 0]


def test_penalties_count_what_was_generated_and_not_the_prompt() -> None:
    values = np.array([0.0, 1.0, 2.0], np.float32)
    presence = Sampler(SamplingParams(temperature=0, presence_penalty=1.5))
    assert [presence(values, [2, 2, 2])[0] for _ in range(4)] == [2, 1, 2, 2]
    frequency = Sampler(SamplingParams(temperature=0, frequency_penalty=0.6))
    assert [frequency(values, [])[0] for _ in range(5)] == [2, 2, 1, 2, 1]


def test_likeliest_tokens_have_the_logprobs_of_the_model() -> None:
    values = np.array([0.0, 1.0, 2.0, 1.0], np.float32)
    choice = Sampler(SamplingParams(temperature=0, logit_bias=((0, 50.0),), top_logprobs=3))(values, [])
    assert choice.token == 0
    assert [token for token, _ in choice.top] == [2, 1, 3]
    assert choice.top[0][1] == pytest.approx(2 - np.log(np.exp(values.astype(float)).sum()))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sign", [-1, 1])
def test_what_overflows_by_a_penalty_is_not_sampled(sign: int) -> None:
    logits = np.array([1, sign * 3e38, 2], np.float32)
    sampler = Sampler(SamplingParams(repetition_penalty=0.5 if sign > 0 else 2))
    with pytest.raises(NumericalError, match="overflow"):
        sampler(logits, [1])
    assert sampler(np.array([-np.float32(1e38), 0, -1e38], np.float32), [1]).token == 1
