"""The next tokens of the sequences of a step, and which guesses were right.

A guess is right when it is the token that is chosen at its place, by the same draw as without it. So a sequence comes
to the same tokens, and nothing that was not chosen has to be taken back but the rows behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.prefix import SharedCache
from colibri.engine.sampler import Chooser, Wish
from colibri.engine.scheduler import Work
from colibri.engine.sequence import Sequence
from colibri.errors import ColibriError
from colibri.layers.workspace import LOGIT_ROWS

Logits = Callable[[int, int], NDArray[np.float32]]


class _Row(NamedTuple):
    """A row of the step from which a token is to be chosen, and what was guessed to be that token."""

    row: int
    sequence: Sequence
    guess: int | None


class Verdict:
    """Chooses the tokens of one step after another."""

    def __init__(self, cache: SharedCache) -> None:
        self._cache = cache
        self._choose = Chooser(LOGIT_ROWS)

    def __call__(self, work: Iterable[Work], logits: Logits) -> list[int]:
        """Let every sequence whose known tokens are computed go on; the rows that were for nothing.

        logits: of the step's rows first..last, at most LOGIT_ROWS, valid until the next call.
        """
        waiting = _rows(work)
        ended: set[int] = set()  # sequences, by id(), for which no further row counts
        wrong: list[int] = []
        while waiting:
            count = _neighbours(waiting)
            rows, waiting = waiting[:count], waiting[count:]
            first = rows[0].row
            shown = logits(first, first + count)
            if any(row.guess is not None for row in rows):
                self._turns(rows, shown, ended, wrong)
            else:
                self._advance(rows, shown, first, ended)
            if ended and waiting:
                wrong += [row.row for row in waiting if id(row.sequence) in ended]
                waiting = [row for row in waiting if id(row.sequence) not in ended]
        return wrong

    def _turns(self, rows: list[_Row], logits: NDArray[np.float32], ended: set[int], wrong: list[int]) -> None:
        """Neighbouring rows: the first of every sequence together, then the second of those whose guess was right."""
        first = rows[0].row
        while rows:
            turn = list({id(row.sequence): row for row in reversed(rows)}.values())[::-1]
            rows = [row for row in rows if row not in turn]
            self._advance(turn, logits, first, ended)
            wrong += [row.row for row in rows if id(row.sequence) in ended]
            rows = [row for row in rows if id(row.sequence) not in ended]

    def _advance(self, turn: list[_Row], logits: NDArray[np.float32], first: int, ended: set[int]) -> None:
        asked: list[_Row] = []
        wishes: list[Wish] = []
        for row in turn:
            wish = _wish(row.sequence)
            if wish is None:
                ended.add(id(row.sequence))
            else:
                asked.append(row)
                wishes.append(wish)
        if not asked:
            return
        own = logits if len(asked) == len(logits) else logits[[row.row - first for row in asked]]
        for row, choice in zip(asked, self._choose(own, wishes), strict=True):
            sequence = row.sequence
            try:
                sequence.advance(choice)
            except ColibriError as error:  # its own; the others of the step go on
                sequence.fail(error)
            if row.guess is not None and sequence.finish_reason is None and sequence.ids[-1] == row.guess:
                self._accept(sequence)
            else:
                ended.add(id(sequence))

    def _accept(self, sequence: Sequence) -> None:
        """What follows the guess was computed with it."""
        sequence.accepted += 1
        sequence.computed += 1
        if sequence.computed % ops.KV_BLOCK == 0 and sequence.lease is not None:
            self._cache.note(sequence.lease, sequence.ids, sequence.computed)


def _rows(work: Iterable[Work]) -> list[_Row]:
    rows: list[_Row] = []
    row = 0
    for item in work:
        row += item.rows
        if item.sequence.pending == 0:
            guesses = [*item.guesses, None]
            rows += [_Row(row - 1 + place, item.sequence, guess) for place, guess in enumerate(guesses)]
        row += len(item.guesses)
    return rows


def _neighbours(rows: list[_Row]) -> int:
    count = min(1, len(rows))
    while count < min(len(rows), LOGIT_ROWS) and rows[count].row == rows[0].row + count:
        count += 1
    return count


def _wish(sequence: Sequence) -> Wish | None:
    try:
        return sequence.wish()
    except ColibriError as error:
        sequence.fail(error)
        return None
