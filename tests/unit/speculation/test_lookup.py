"""What is guessed from what was written before."""

from __future__ import annotations

from hypothesis import given, strategies as st

from colibri.speculation.lookup import Lookup

IDS = st.lists(st.integers(0, 3), max_size=80)


def tokens(lookup: Lookup, ids: list[int], most: int = 4) -> list[int]:
    return [guess.token for guess in lookup.propose(ids, most)]


def test_what_followed_the_longest_match_comes_first() -> None:
    ids = [1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3]
    assert tokens(Lookup(), ids, 2) == [4, 9]  # 1, 2, 3 are the same, not only the later 2, 3


def test_the_latest_of_equal_matches() -> None:
    assert tokens(Lookup(), [7, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2], 1) == [6]


def test_a_text_that_repeats_itself_goes_on() -> None:
    assert tokens(Lookup(), [1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_nothing_is_known_of_a_new_text() -> None:
    assert tokens(Lookup(), []) == tokens(Lookup(), [4]) == tokens(Lookup(), [1, 2, 3, 4, 5]) == []


def test_a_prediction_is_begun_and_found_again() -> None:
    lookup = Lookup([10, 11, 12, 13, 14])
    assert tokens(lookup, [1, 2]) == [10, 11, 12, 13]
    assert tokens(lookup, [1, 2, 10, 11]) == [12, 13, 14, 1]  # after its end comes the prompt
    assert tokens(lookup, [1, 2, 10, 11, 99]) == []
    assert tokens(lookup, [1, 2, 10, 11, 99, 13, 14]) == [1, 2, 10, 11]


def test_an_empty_prompt_takes_a_prediction() -> None:
    lookup = Lookup([5, 6])
    assert tokens(lookup, []) == []
    assert tokens(lookup, [3]) == [5, 6, 3, 5]


@given(IDS, st.data())
def test_guesses_are_what_followed_an_equal_pair(ids: list[int], data: st.DataObject) -> None:
    lookup, at, found = Lookup(), 0, list[int]()
    while at < len(ids):
        at = data.draw(st.integers(at + 1, len(ids)))
        found = tokens(lookup, ids[:at], 3)
    followed = {ids[place + 2] for place in range(len(ids) - 2) if ids[place : place + 2] == ids[-2:]}
    assert set(found[:1]) <= followed
    assert bool(found) == bool(followed)


def test_chances_follow_what_came() -> None:
    wrong, right = Lookup(), Lookup()
    ids = [1, 2]
    for number in range(40):
        ids = [*ids, 100 + number, 1, 2]
        wrong.update(ids)
    first = right.propose([1, 2] * 30, 1)[0].chance
    for length in range(61, 100):
        right.update(([1, 2] * 50)[:length])
    assert right.propose(([1, 2] * 50)[:100], 1)[0].chance >= first
    assert wrong.propose(ids, 1)[0].chance < 0.1
    assert wrong.propose(ids, 1, least=0.2) == []
