"""Which rows go through the layers next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from colibri.engine.sequence import Sequence


class Work(NamedTuple):
    """The next `rows` tokens of a sequence, which are computed in this step."""

    sequence: Sequence
    rows: int


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
