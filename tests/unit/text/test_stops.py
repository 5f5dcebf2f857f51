"""Stop strings are found wherever they are cut, and nothing of them leaks."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from colibri.errors import ArgumentError
from colibri.text import StopMatcher


def run(stops: list[str], chunks: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    text = "".join([matcher.feed(chunk) for chunk in chunks])
    return (text, matcher.stopped) if matcher.stopped else (text + matcher.finish(), None)


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    """One character after the other: the first stop that is complete ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


def test_stop_across_token_borders() -> None:
    matcher = StopMatcher(["O P Q"])
    fed = [matcher.feed(part) for part in ["L M N ", "O", " P", " Q", " R"]]
    assert fed == ["L M N ", "", "", "", ""]
    assert matcher.stopped == "O P Q"
    assert matcher.finish() == ""


def test_a_beginning_that_is_no_stop_is_passed_on() -> None:
    matcher = StopMatcher(["O P Q"])
    assert [matcher.feed(part) for part in ["N O", " P", " X"]] == ["N ", "", "O P X"]
    assert matcher.feed("O P") == ""
    assert matcher.held == "O P"
    assert matcher.finish() == "O P"
    assert matcher.finish() == ""


def test_several_stops() -> None:
    assert run(["\n\n", "User:", "</s>"], ["Hello\n", "Us", "er", ": x"]) == ("Hello\n", "User:")
    assert run(["ab", "abc"], ["xabc"]) == ("x", "ab")
    assert run(["bcd", "c"], ["abcd"]) == ("ab", "c")
    assert run(["abc", "bc"], ["xabc"]) == ("x", "abc")


def test_overlapping_beginnings() -> None:
    assert run(["aab"], ["a", "a", "a", "b"]) == ("a", "aab")
    assert run(["abab"], ["ab", "aabab"]) == ("aba", "abab")


def test_none_passes_everything() -> None:
    matcher = StopMatcher()
    assert matcher.feed("abc") == "abc"
    assert matcher.stopped is None


def test_one_string_is_one_stop() -> None:
    assert run("end", ["the e", "nd"]) == ("the ", "end")  # type: ignore[arg-type]


@pytest.mark.parametrize("stops", [[""], ["a", ""], [5], [None]])
def test_stops_are_texts(stops: list[str]) -> None:
    with pytest.raises(ArgumentError, match="stop"):
        StopMatcher(stops)


@given(
    stops=st.lists(st.text("ab ", min_size=1, max_size=4), max_size=4),
    chunks=st.lists(st.text("ab c", max_size=6), max_size=12),
)
def test_chunks_do_not_matter(stops: list[str], chunks: list[str]) -> None:
    assert run(stops, chunks) == expected(stops, "".join(chunks))
    assert run(stops, list("".join(chunks))) == expected(stops, "".join(chunks))


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    chunks=st.lists(st.text("abc", max_size=5), max_size=12),
    rest=st.text("abc", max_size=5),
)
def test_what_is_passed_on_stays_right_whatever_follows(stops: list[str], chunks: list[str], rest: str) -> None:
    matcher, passed, seen = StopMatcher(stops), "", ""
    for chunk in chunks:
        seen += chunk
        passed += matcher.feed(chunk)
        assert expected(stops, seen + rest)[0].startswith(passed)
        if matcher.stopped is None:
            assert passed + matcher.held == seen
