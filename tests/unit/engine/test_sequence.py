"""A sequence passes tokens on when their text is final, and ends for the right reason."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from colibri.config import SamplingParams
from colibri.engine.sampler import Choice
from colibri.engine.scheduler import schedule
from colibri.engine.sequence import Sequence
from colibri.errors import NumericalError
from colibri.text import IncrementalDecoder

VOCABULARY = [b"a", b"b", b"ab", b" ", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xff", b"!\xc3", b"END"]
END = len(VOCABULARY)


class Pieces:
    """What the decoder needs of a vocabulary."""

    special = frozenset({END})
    strip_leading_space = False

    def piece_bytes(self, token: int) -> bytes:
        return b"" if token == END else VOCABULARY[token]


def sequence(params: SamplingParams, max_tokens: int = 100) -> Sequence:
    decoder = IncrementalDecoder(Pieces())  # type: ignore[arg-type]
    return Sequence([1], params, max_tokens, {END}, decoder)


def feed(target: Sequence, tokens: list[int]) -> list[tuple[int, str]]:
    """Let the sequence choose these tokens, as long as it goes on."""
    for token in tokens:
        if target.finish_reason is None:
            target.advance(Choice(token, 0.0))
    return [(token.id, token.text) for token in target.output]


def greedy(*stop: str) -> SamplingParams:
    return SamplingParams(temperature=0, stop=stop)


def test_tokens_come_at_once_when_nothing_is_open() -> None:
    target = sequence(greedy())
    assert feed(target, [0, 1]) == [(0, "a"), (1, "b")]
    assert target.finish_reason is None


def test_half_a_character_waits() -> None:
    target = sequence(greedy())
    assert feed(target, [0, 4]) == [(0, "a")]
    assert feed(target, [5]) == [(0, "a"), (4, ""), (5, "é")]


def test_half_a_character_at_the_end_is_replaced() -> None:
    target = sequence(greedy())
    assert feed(target, [9, END]) == [(9, "!\ufffd")]
    assert target.finish_reason == "stop"


def test_a_stop_over_two_tokens() -> None:
    target = sequence(greedy("b!"))
    assert feed(target, [0, 2, 9, 0]) == [(0, "a"), (2, "a"), (9, "")]
    assert target.finish_reason == "stop"
    assert target.stop_text == "b!"


def test_the_beginning_of_a_stop_that_is_none() -> None:
    target = sequence(greedy("abc"))
    assert feed(target, [2]) == []
    assert feed(target, [3]) == [(2, ""), (3, "ab ")]
    assert feed(target, [0, END]) == [(2, ""), (3, "ab "), (0, "a")]


def test_length() -> None:
    target = sequence(greedy(), max_tokens=2)
    feed(target, [0, 1, 0])
    assert target.generated == [0, 1]
    assert target.finish_reason == "length"


def test_an_end_token_is_not_part_of_the_answer() -> None:
    target = sequence(greedy())
    feed(target, [0, END, 1])
    assert target.generated == [0]
    assert target.finish_reason == "stop"
    assert target.sampled == 2


def test_end_tokens_may_be_ignored() -> None:
    target = sequence(SamplingParams(temperature=0, ignore_eos=True))
    assert feed(target, [0, END, 1]) == [(0, "a"), (END, ""), (1, "b")]


@given(st.lists(st.integers(0, END - 1), max_size=30), st.lists(st.text("ab !é€", min_size=1, max_size=3), max_size=3))
def test_nothing_is_lost_doubled_or_leaked(tokens: list[int], stops: list[str]) -> None:
    target = sequence(greedy(*stops))
    output = feed(target, [*tokens, END])
    whole = b"".join(VOCABULARY[token] for token in target.generated).decode("utf-8", "replace")
    text = "".join(piece for _, piece in output)
    assert [token for token, _ in output] == target.generated
    if target.stop_text is None:
        assert text == b"".join(VOCABULARY[token] for token in tokens).decode("utf-8", "replace")
    else:
        assert whole.startswith(text + target.stop_text)
    assert not any(stop in text for stop in stops)


# ---- scheduling ------------------------------------------------------------------------------------------------------


def prompt_of(length: int, computed: int = 0) -> Sequence:
    target = Sequence([0] * length, greedy(), 10, (), None)
    target.computed = computed
    return target


def test_waiting_tokens_go_before_prompts() -> None:
    prompt, running = prompt_of(100), prompt_of(50, 49)
    assert [(work.sequence, work.rows) for work in schedule([prompt, running], 20)] == [(running, 1), (prompt, 19)]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 49)), max_size=8), st.integers(1, 64))
def test_the_budget_is_kept_and_used(shapes: list[tuple[int, int]], budget: int) -> None:
    sequences = [prompt_of(length, min(computed, length - 1)) for length, computed in shapes]
    work = schedule(sequences, budget)
    assert all(1 <= part.rows <= part.sequence.pending for part in work)
    assert sum(part.rows for part in work) == min(budget, sum(target.pending for target in sequences))
    assert len({id(part.sequence) for part in work}) == len(work)


def test_nothing_to_do() -> None:
    assert schedule([], 10) == []


def test_a_failure_is_kept() -> None:
    target = sequence(greedy())
    with pytest.raises(NumericalError, match="NaN"):
        target.advance(NumericalError("output: a logit is a NaN"))
