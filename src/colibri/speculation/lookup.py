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
WEIGHT = 4.0  # of a prior, in guesses
MEMORY = 0.97  # of what the guesses before said, with each new one


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
        self._latest: dict[tuple[int, int], int] = {}  # a pair: the place behind its latest occurrence
        self._before = array("q", [0] * len(self._tokens))  # for a place: the one behind the same pair earlier; 0: none
        self._start = len(self._tokens)
        self._place = 0  # what followed the match begins here; 0: there is none
        self._length = 0
        self._right = [chance * WEIGHT for chance in PRIORS]
        self._made = [WEIGHT] * len(PRIORS)
        for at in range(2, self._start):
            self._index(at)

    def update(self, ids: Sequence[int]) -> None:
        """Take up what was added to the ids of the sequence since."""
        known = len(self._tokens) - self._start
        new = ids[known:]
        for number, token in enumerate(new):
            right = self._place > 0 and self._tokens[self._place] == token
            if self._place:
                self._learn(right)
            self._tokens.append(token)
            self._before.append(0)
            at = len(self._tokens) - 1
            if right:
                self._place, self._length = self._place + 1, self._length + 1
            elif number == len(new) - 1:
                self._find(at)
            else:  # of a prompt only the end is looked for
                self._place = 0
            if at > self._start:
                self._index(at)
        if not known and new and self._start:
            self._place, self._length = 1, PREDICTED

    def propose(self, ids: Sequence[int], most: int) -> list[Guess]:
        """At most so many tokens that may follow ids, all that the sequence has."""
        self.update(ids)
        if not self._place:
            return []
        guesses: list[Guess] = []
        for number in range(most):
            at = self._place + number  # beyond the end the guesses themselves go on: the text repeats itself
            token = self._tokens[at] if at < len(self._tokens) else guesses[at - len(self._tokens)].token
            guesses.append(Guess(token, self._chance(self._length + number)))
        return guesses

    def _index(self, at: int) -> None:
        """Know the pair that ends at a place."""
        pair = self._tokens[at - 1], self._tokens[at]
        self._before[at] = self._latest.get(pair, 0)
        self._latest[pair] = at + 1

    def _find(self, at: int) -> None:
        """The longest match of what ends at a place, among the latest."""
        self._place = self._length = 0
        tokens = self._tokens
        place = self._latest.get((tokens[at - 1], tokens[at]), 0) if at > self._start else 0
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
        kind = _kind(self._length)
        self._right[kind] = MEMORY * self._right[kind] + right
        self._made[kind] = MEMORY * self._made[kind] + 1

    def _chance(self, length: int) -> float:
        kind = _kind(length)
        return self._right[kind] / self._made[kind]


def _kind(length: int) -> int:
    """Which of the PRIORS."""
    return 0 if length < 3 else 1 if length < 4 else 2 if length < 8 else 3 if length < 16 else 4
