"""Copies of states in the middle of a step: for prompts that begin alike to go on from, and behind guesses."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.prefix import SharedCache
from colibri.cache.state import Part
from colibri.engine.scheduler import Work
from colibri.engine.sequence import Sequence
from colibri.speculation.control import Control

STATES_OF_GUESSES = 4  # of all sequences in a step

Ids = NDArray[np.int32]


class Copy(NamedTuple):
    """After so many rows of a step the states of a sequence, at a position, go to a slot."""

    rows: int
    sequence: Sequence
    position: int
    slot: int


def states_of_guesses(control: Control | None) -> int:
    """How many states are kept behind the guesses of a step."""
    return 0 if control is None else min(STATES_OF_GUESSES, control.most)


class Copies:
    """Those of one step; the slots are taken, and are free again unless `keep` is called.

    The states before each guess are in the spare slots, until `settle` takes up those where the right ones end.
    """

    def __init__(self, cache: SharedCache, work: Iterable[Work]) -> None:
        self._cache = cache
        self._copies: list[Copy] = []
        self._before: list[Copy] = []  # the guesses
        free = iter(()) if cache.states is None else iter(cache.states.spare)
        row = 0
        for item in work:
            sequence, count = item.sequence, item.rows
            assert sequence.lease is not None
            for place in sequence.lease.places or ():
                if sequence.computed < place <= sequence.computed + count:
                    slot = cache.reserve()
                    if slot is not None:
                        self._copies.append(Copy(row + place - sequence.computed, sequence, place, slot))
            for number, slot in zip(range(len(item.guesses)), free):  # noqa: B905 (there are slots enough, or no states)
                self._before.append(Copy(row + count + number, sequence, sequence.computed + count + number, slot))
            row += item.all_rows

    def parts(self, positions: Ids, numbers: Ids, tables: list[Ids], slots: Ids) -> list[Part]:
        """The rows of the step, apart where states are copied; none where they never are."""
        made = [*self._copies, *self._before]
        if not made:
            return []
        ends = sorted({copy.rows for copy in made} | {len(positions)})
        parts = []
        for first, last in itertools.pairwise((0, *ends)):
            batch = ops.Batch(positions[first:last], numbers[first:last], tables, slots)
            copies = [
                (copy.sequence.lease.slot, copy.slot)
                for copy in made
                if copy.rows == last and copy.sequence.lease is not None
            ]
            parts.append(Part(first, last, batch, copies))
        return parts

    def keep(self) -> None:
        """The step is done: prompts may go on from the copies."""
        for _, sequence, position, slot in self._copies:
            assert sequence.lease is not None
            self._cache.snapshot(sequence.lease, slot, sequence.ids, position)
        self._copies.clear()

    def settle(self) -> None:
        """The verdict is there: sequences go on from the states behind their last right guess."""
        for _, sequence, position, slot in self._before:
            if sequence.computed == position and sequence.lease is not None and self._cache.states is not None:
                self._cache.states.copy(slot, sequence.lease.slot)

    def drop(self) -> None:
        """Free the slots of copies that are not kept."""
        for copy in self._copies:
            self._cache.unreserve(copy.slot)
        self._copies.clear()
