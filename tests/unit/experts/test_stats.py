"""Counts and traces equal a plain recount."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.experts.stats import NO_EXPERT, RoutingStats, co_activation, entropy, frequent_pairs, trace_type


def steps(seed: int, count: int, layers: tuple[int, ...], experts: int, k: int) -> list[np.ndarray]:
    """Random steps of 1 to 90 rows: (rows, layers, k), NO_EXPERT where a layer has none."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        step = np.full((rng.integers(1, 90), max(layers) + 1, k), NO_EXPERT, np.int16)
        for layer in layers:
            step[:, layer] = np.argsort(rng.random((len(step), experts)), axis=1)[:, :k]
        made.append(step)
    return made


@pytest.mark.parametrize("layers", [(0, 1, 2), (1, 2), (3,)])
def test_counts_and_trace(layers: tuple[int, ...]) -> None:
    stats = RoutingStats(max(layers) + 1, 16, 4, trace_tokens=None)
    made = steps(1, 12, layers, 16, 4)
    for step in made:
        stats.record(step.swapaxes(0, 1).astype(np.int32))
    whole = np.concatenate(made)
    np.testing.assert_array_equal(stats.trace(), whole)
    for layer in layers:
        np.testing.assert_array_equal(stats.counts[layer], np.bincount(whole[:, layer].ravel(), minlength=16))
    assert stats.counts.sum() == whole[whole >= 0].size
    np.testing.assert_array_equal(stats.trace(), whole)


def test_trace_is_bounded() -> None:
    stats = RoutingStats(1, 8, 1, trace_tokens=100)
    for token in range(1000):
        stats.record(np.array([[[token % 8]]], np.int32))
    assert stats.trace()[:, 0, 0].tolist() == [token % 8 for token in range(900, 1000)]
    assert stats.counts.sum() == 1000
    assert stats.experts_touched == 8


def test_entropy() -> None:
    np.testing.assert_allclose(entropy(np.array([[4, 4, 4, 4], [7, 0, 0, 0], [0, 0, 0, 0]])), [2, 0, 0])


def test_co_activation() -> None:
    pairs = co_activation(np.array([[0, 1], [1, 0], [2, 3], [NO_EXPERT, NO_EXPERT]], np.int16), 4)
    np.testing.assert_array_equal(pairs, [[2, 2, 0, 0], [2, 2, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])


def test_the_routing_of_a_model_gives_both() -> None:
    stats = RoutingStats(1, 4, 2)
    stats.record(np.array([[[0, 1], [1, 0], [2, 3]]], np.int32))
    np.testing.assert_array_equal(stats.co_activation(0), [[2, 2, 0, 0], [2, 2, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    np.testing.assert_allclose(stats.entropy(), entropy(stats.counts))


@pytest.mark.parametrize(
    ("experts", "kind"), [(8, np.int16), (1 << 15, np.int16), ((1 << 15) + 1, np.int32), (1 << 16, np.int32)]
)
def test_every_id_of_many_experts_fits_into_the_trace(experts: int, kind: type) -> None:
    stats = RoutingStats(2, experts, 2)
    stats.record(np.array([[[0, experts - 1]], [[NO_EXPERT, NO_EXPERT]]], np.int32))
    assert stats.trace().dtype == trace_type(experts) == kind
    assert stats.trace().tolist() == [[[0, experts - 1], [NO_EXPERT, NO_EXPERT]]]
    assert stats.counts[0].nonzero()[0].tolist() == [0, experts - 1]
    assert frequent_pairs(stats.trace()[:, 0], experts, 3) == [(0, experts - 1, 1)]


def test_frequent_pairs_are_those_of_co_activation() -> None:
    chosen = steps(4, 5, (0,), 12, 3)
    rows = np.concatenate(chosen)[:, 0]
    pairs = np.triu(co_activation(rows, 12), 1)
    order = np.argsort(-pairs, axis=None, kind="stable")[:20]
    assert frequent_pairs(rows, 12, 20) == [(*divmod(int(at), 12), int(pairs.flat[at])) for at in order]
    assert frequent_pairs(rows[:0], 12, 20) == []
