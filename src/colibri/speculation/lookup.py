"""Prompt look-up: what followed the latest tokens where they were written before, in the prompt or the answer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

NOTHING = -1  # no token
PREDICTED = 8  # tokens of a match, as which the end of the prompt counts before the beginning of a prediction
LEAST = 2  # tokens that must be the same
CANDIDATES = 8  # places where these stand that are looked at, the latest first
LONGEST = 64  # tokens that are compared
PRIORS = (0.3, 0.4, 0.6, 0.75, 0.9)  # how often a guess is right after a match of 2, 3, 4, 8, 16 tokens or more
KINDS = (0, 0, 0, 1, *[2] * 4, *[3] * 8, 4)  # for a length of the match, which of these
FORGETTING = 0.06  # of what was known, with each guess more


class Guess(NamedTuple):
    """A token that may come next, and how likely it is once those before it came."""

    token: int
    chance: float


class Lookup:
    """The places of all pairs of tokens of one text, and how often guesses were right in it.

    A guess is compared with the token that came whether it was verified in a step or not, so that the chances are known
    without rows spent on them. Work for a token does not grow with the text. prediction: a text that the answer is
    expected to be like; it counts as what was written before the prompt.
    """

    def __init__(self, prediction: Sequence[int] = ()) -> None:
        self._tokens = array("q", [NOTHING, *prediction] if prediction else [])
        self._latest: dict[int, int] = {}  # a pair: the place behind its latest occurrence
        self._before = array("q", [0] * len(self._tokens))  # for a place: the one behind the same pair earlier; 0: none
        self._start = len(self._tokens)
        self._place = 0  # what followed the match begins here; 0: there is none
        self._length = 0
        self._chances = list(PRIORS)
        for at in range(2, self._start):
            self._index(at)

    def update(self, ids: Sequence[int]) -> None:
        """Take up what was added to the ids of the sequence since."""
        tokens, start = self._tokens, self._start
        first = at = len(tokens)
        end = start + len(ids)
        while at < end:
            token, place = ids[at - start], self._place
            tokens.append(token)
            self._before.append(0)
            if place:
                self._learn(tokens[place] == token)
            if place and tokens[place] == token:
                self._place, self._length = place + 1, self._length + 1
            elif at == end - 1:
                self._find(at)
            else:  # of a prompt only the end is looked for
                self._place = 0
            if at > start:
                self._index(at)
            at += 1
        if first == start < end and start:
            self._place, self._length = 1, PREDICTED

    def propose(self, ids: Sequence[int], most: int, least: float = 0.0) -> list[Guess]:
        """At most so many tokens that may follow ids, all that the sequence has; none where the first is unlikely."""
        self.update(ids)
        if not self._place or self._chance(self._length) < least:
            return []
        guesses: list[Guess] = []
        for number in range(most):
            at = self._place + number  # beyond the end the guesses themselves go on: the text repeats itself
            token = self._tokens[at] if at < len(self._tokens) else guesses[at - len(self._tokens)].token
            guesses.append(Guess(token, self._chance(self._length + number)))
        return guesses

    def _index(self, at: int) -> None:
        """Know the pair that ends at a place."""
        pair = self._tokens[at - 1] << 32 | self._tokens[at]
        self._before[at] = self._latest.get(pair, 0)
        self._latest[pair] = at + 1

    def _find(self, at: int) -> None:
        """The longest match of what ends at a place, among the latest."""
        self._place = self._length = 0
        tokens = self._tokens
        place = self._latest.get(tokens[at - 1] << 32 | tokens[at], 0) if at > self._start else 0
        for _ in range(CANDIDATES):
            if not place:
                return
            length = LEAST
            while length < min(LONGEST, place) and tokens[place - 1 - length] == tokens[at - length]:
                length += 1
            if length > self._length:
                self._place, self._length = place, length
            place = self._before[place - 1]

    def _learn(self, right: bool) -> None:
        kind = KINDS[min(self._length, 16)]
        self._chances[kind] += FORGETTING * (right - self._chances[kind])

    def _chance(self, length: int) -> float:
        return self._chances[KINDS[min(length, 16)]]
