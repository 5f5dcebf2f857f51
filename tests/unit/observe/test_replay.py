"""Policies on traces whose best answer is known, and the order that theory demands."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from colibri.experts.policy import NextUse
from colibri.experts.stats import NO_EXPERT
from colibri.observe.policies import POLICIES, LeastRecentlyUsed
from colibri.observe.replay import Belady, compare, replay, zipf_trace


def brute_force_hits(accesses: list[int], capacity: int) -> int:
    """Most hits that any sequence of evictions reaches, by trying them all."""
    states = {frozenset[int](): 0}
    for key in accesses:
        following: dict[frozenset[int], int] = {}
        for held, hits in states.items():
            if key in held:
                options = [(held, hits + 1)]
            elif len(held) < capacity:
                options = [(held | {key}, hits)]
            else:
                options = [((held - {victim}) | {key}, hits) for victim in held]
            for state, count in options:
                following[state] = max(following.get(state, 0), count)
        states = following
    return max(states.values())


@pytest.mark.parametrize("seed", range(5))
def test_belady_is_optimal(seed: int) -> None:
    trace = np.random.default_rng(seed).integers(0, 6, (25, 1, 1)).astype(np.int16)
    score = replay(trace, Belady(trace, 6), 3, 6)
    assert score.hits == brute_force_hits(trace.ravel().tolist(), 3)


@pytest.mark.parametrize("name", POLICIES)
def test_everything_hits_when_everything_fits(name: str) -> None:
    trace = zipf_trace(3, 8, 2, 200, skew=0.5)
    score = replay(trace, POLICIES[name](3, 8), 24, 8, warm_up=100)
    assert score.hit_rate > 0.98


def test_nobody_beats_belady() -> None:
    trace = zipf_trace(4, 16, 4, 150, skew=0.8, drift=0.05, seed=2)
    for _, scores in itertools.groupby(compare(trace, 16, [8, 20, 40]), key=lambda score: score.capacity):
        rates = {score.policy: score.hit_rate for score in scores}
        assert max(rates.values()) == rates["belady"]


def test_below_one_tokens_cycle() -> None:
    """Least-recently-used hits nothing; expecting the next use keeps a part."""
    trace = zipf_trace(16, 16, 4, 200, skew=0.0)
    capacity = 40  # of 64 that a token needs
    assert replay(trace, LeastRecentlyUsed(16, 16), capacity, 16, warm_up=50).hit_rate == 0
    share = capacity / 256
    assert replay(trace, NextUse(16, 16), capacity, 16, warm_up=50).hit_rate > 0.75 * share


def test_layers_without_experts() -> None:
    trace = zipf_trace(3, 8, 2, 60, skew=1.0)
    trace[:, 0] = NO_EXPERT
    for score in compare(trace, 8, [4]):
        assert score.hits + score.misses == 60 * 2 * 2


def test_a_cache_smaller_than_a_layers_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold the 4"):
        replay(zipf_trace(1, 8, 4, 3, skew=0), LeastRecentlyUsed(1, 8), 3, 8)


def test_long_traces_do_not_overflow() -> None:
    policy = NextUse(1, 4, half_life=0.05)
    for token in range(200):
        policy.touch(0, [token % 3])
        values = policy.values()
        assert np.isfinite(values).all()
    assert values.argmin() == 3


def test_chunks_of_a_prompt_come_round() -> None:
    """In a long prompt all experts of a layer come again with each chunk: the layers ahead are worth most."""
    layers, experts = 6, 8
    policy = NextUse(layers, experts, chunk=512)
    uses = np.random.default_rng(0).integers(1, 300, experts)
    for _ in range(2):
        for layer in range(layers):
            policy.touch(layer, [layer * experts + expert for expert in range(experts)], uses, 512)
    worth = policy.values().reshape(layers, experts)
    assert (np.diff(worth.mean(axis=1)) < 0).all()
    assert worth[0].min() > worth[1].max()
    policy.touch(0, [0, 1], None, 1)
    assert np.ptp(policy.values().reshape(layers, experts)[1]) > 1  # single tokens: frequency counts


def test_zipf_skew() -> None:
    even = np.bincount(zipf_trace(1, 16, 2, 2000, skew=0.0).ravel(), minlength=16)
    skewed = np.bincount(zipf_trace(1, 16, 2, 2000, skew=1.2).ravel(), minlength=16)
    assert even.min() > 180
    assert skewed.max() > 4 * np.median(skewed)
