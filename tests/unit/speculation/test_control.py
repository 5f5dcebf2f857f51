"""As many guesses as pay by what steps took."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from colibri.speculation.control import MOST_ROWS, TRY_EVERY, Control

SURE, VAIN = [0.95] * 8, [0.05] * 8


def learned(costs: dict[int, float]) -> Control:
    control = Control("auto")
    for rows, seconds in costs.items():
        for _ in range(5):
            control.note(rows, seconds)
    return control


def test_rows_that_cost_nothing_are_used() -> None:
    assert learned({1: 1.0, 2: 1.0, 5: 1.0, 9: 1.0}).choose([SURE]) == [8]


def test_rows_that_cost_a_step_each_are_not() -> None:
    assert learned({rows: float(rows) for rows in range(1, 10)}).choose([SURE]) == [0]


def test_guesses_that_fail_are_not_made() -> None:
    assert learned({1: 1.0, 2: 1.3, 3: 1.6}).choose([VAIN]) == [0]


def test_the_likely_ones_of_several_sequences() -> None:
    costs = {rows: 1 + 0.2 * (rows - 2) for rows in range(2, 20)}
    some = learned(costs).choose([SURE, VAIN])
    assert some[0] > 0
    assert some[1] == 0


def test_what_became_slow_is_given_up_and_tried_again() -> None:
    control = learned({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 1.4})
    assert control.choose([SURE]) != [0]
    for _ in range(60):
        for rows in range(2, 10):
            control.note(rows, 9.0)
    choices = []
    for _ in range(3 * TRY_EVERY):
        if control.looks():
            choices.append(control.choose([SURE])[0])
    assert choices[0] == 0
    assert any(choices)
    assert sum(map(bool, choices)) <= 3


def test_a_number_is_kept_whatever_it_costs() -> None:
    control = Control(3)
    for _ in range(5):
        control.note(1, 1.0)
        control.note(4, 9.0)
    assert control.most == 3
    assert all(control.looks() for _ in range(100))
    assert control.choose([VAIN[:3], SURE[:1], []]) == [3, 1, 0]
    assert sum(Control(8).choose([VAIN] * 10)) == MOST_ROWS - 10


@pytest.mark.parametrize("seconds", [10.0, 100.0])
def test_one_slow_step_changes_little(seconds: float) -> None:
    control = learned({1: 1.0, 2: 1.2})
    control.note(2, seconds)
    assert control.cost(2) < 1.5


COSTS = st.dictionaries(st.integers(1, 40), st.floats(1e-4, 10), max_size=9)
CHANCES = st.lists(st.lists(st.floats(0, 1), max_size=8), min_size=1, max_size=40)


@given(COSTS, CHANCES)
def test_choices_are_within_bounds(costs: dict[int, float], chances: list[list[float]]) -> None:
    counts = learned(costs).choose(chances)
    assert len(counts) == len(chances)
    assert all(0 <= count <= len(own) for count, own in zip(counts, chances, strict=True))
    assert sum(counts) <= max(0, MOST_ROWS - len(chances))
