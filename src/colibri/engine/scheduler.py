"""Which sequences wait, and which rows go through the layers next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from colibri.engine.sequence import Sequence


class Work(NamedTuple):
    """The next `rows` tokens of a sequence, which are computed in this step, and guesses of those that follow."""

    sequence: Sequence
    rows: int
    guesses: tuple[int, ...] = ()

    @property
    def all_rows(self) -> int:
        """With those of the guesses."""
        return self.rows + len(self.guesses)


def follows(sequence: Sequence, running: Iterable[Sequence]) -> bool:
    """Whether more of a prompt's beginning than is in the cache is about to be computed for another sequence."""
    for other in running:
        shared = None if other.lease is None else other.lease.shared_from(other.computed)
        if shared is not None and other.pending > 1 and shared < len(sequence.ids) and shared <= len(other.ids):
            last = shared - 1  # most differ here
            if sequence.ids[last] == other.ids[last] and sequence.ids[:last] == other.ids[:last]:
                return True
    return False


def schedule(sequences: Iterable[Sequence], budget: int) -> list[Work]:
    """At most `budget` rows: each sequence that waits for its next token, then parts of prompts as they came."""
    work: list[Work] = []
    prompts: list[Sequence] = []
    for sequence in sequences:
        if sequence.pending > 1:
            prompts.append(sequence)
        elif budget:
            work.append(Work(sequence, 1))
            budget -= 1
    for sequence in prompts:
        if not budget:
            break
        count = min(sequence.pending, budget)
        work.append(Work(sequence, count))
        budget -= count
    return work
