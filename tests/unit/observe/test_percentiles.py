"""Percentiles are measured values, and the ends of a spread belong to it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from colibri.observe.percentiles import latency, percentile, spread

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@pytest.mark.parametrize(("percent", "expected"), [(50, 500), (90, 900), (99, 990), (99.9, 999), (100, 1000)])
def test_of_a_thousand(percent: float, expected: int) -> None:
    assert percentile(range(1000, 0, -1), percent) == expected


@given(VALUES, st.floats(0.1, 100))
def test_enough_values_are_no_larger(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-6
    assert sum(value < found for value in values) < percent / 100 * len(values) + 1e-6


@given(VALUES)
def test_latency_rises(values: list[float]) -> None:
    times = list(latency(values).as_dict().values())
    assert times == sorted(times)
    assert times[-1] == max(values)


def test_spread() -> None:
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.min, found.max) == (2, 1, 3)
    assert found.scaled(2).as_dict() == {"median": 4, "min": 2, "max": 6}
