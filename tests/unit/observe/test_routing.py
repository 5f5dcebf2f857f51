"""Statistics of traces that are known: even, collapsed, repeating, and one whose layers follow from each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from colibri.experts.stats import NO_EXPERT
from colibri.observe.replay import zipf_trace
from colibri.observe.routing import balance, counts_of, overlap, predicted

EXPERTS = 8


def test_an_even_load() -> None:
    trace = np.arange(64, dtype=np.int16).reshape(32, 1, 2) % EXPERTS
    (layer,) = balance(trace, EXPERTS)
    assert (layer.used, layer.load_ratio, layer.top_share) == (8, 1, 0.25)
    assert layer.entropy == pytest.approx(3)
    assert layer.effective == pytest.approx(8)
    assert layer.jain == pytest.approx(1)
    assert layer.next_token == 0  # each token has the two that follow
    assert layer.next_token_chance == pytest.approx(8 * 0.25**2 / 2)
    assert layer.next_layer is None


def test_a_collapsed_router() -> None:
    trace = np.full((10, 1, 2), [3, 5], np.int16)
    (layer,) = balance(trace, EXPERTS)
    assert (layer.used, layer.entropy, layer.effective) == (2, 1, 2)
    assert layer.jain == pytest.approx(2 / EXPERTS)
    assert (layer.load_ratio, layer.top_share, layer.next_token, layer.next_token_chance) == (4, 1, 1, 1)


def test_layers_without_experts_are_left_out() -> None:
    trace = np.full((6, 3, 2), NO_EXPERT, np.int16)
    trace[:, 2] = [1, 2]
    assert [layer.layer for layer in balance(trace, EXPERTS)] == [2]
    common = overlap(trace, trace, EXPERTS)
    assert np.isnan(common[:2]).all()
    assert common[2] == 1


def test_a_layer_that_follows_from_the_one_before_is_predicted() -> None:
    first = np.random.default_rng(2).permuted(np.tile(np.arange(EXPERTS, dtype=np.int16), (400, 1)), axis=1)[:, :2]
    found = predicted(first, (first + 3) % EXPERTS, EXPERTS)
    assert found is not None
    assert found[0] == 1
    assert found[1] == pytest.approx(2 / EXPERTS, abs=0.08)
    unrelated = np.random.default_rng(3).permuted(first, axis=0)
    chance = predicted(first, unrelated, EXPERTS)
    assert chance is not None
    assert chance[0] < 0.4


def test_what_repeats_more_than_chance_is_seen() -> None:
    sticky = np.repeat(zipf_trace(1, EXPERTS, 2, 200, skew=0.5), 2, axis=0)
    (layer,) = balance(sticky, EXPERTS)
    assert layer.next_token is not None
    assert layer.next_token > layer.next_token_chance + 0.2


def test_overlap() -> None:
    one, other = zipf_trace(2, EXPERTS, 2, 500, skew=1, seed=1), zipf_trace(2, EXPERTS, 2, 500, skew=1, seed=9)
    assert overlap(one, one, EXPERTS).tolist() == pytest.approx([1, 1])
    assert (overlap(one, other, EXPERTS) < 1).all()
    low, high = np.zeros((4, 1, 1), np.int16), np.full((4, 1, 1), 7, np.int16)
    assert overlap(low, high, EXPERTS).tolist() == [0]


def test_entropy_is_that_of_the_counts() -> None:
    trace = zipf_trace(3, EXPERTS, 2, 300, skew=1.2)
    for layer, counts in zip(balance(trace, EXPERTS), counts_of(trace, EXPERTS), strict=True):
        share = counts[counts > 0] / counts.sum()
        assert layer.entropy == pytest.approx(-sum(part * math.log2(part) for part in share))


def test_traces_too_short_to_predict() -> None:
    (only,) = balance(np.array([[[1, 2]]], np.int16), EXPERTS)
    assert only.next_token is None
    first, _ = balance(np.tile(np.array([[[1, 2]]], np.int16), (3, 2, 1)), EXPERTS)
    assert first.next_layer is None
