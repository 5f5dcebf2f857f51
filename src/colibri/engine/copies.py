"""Copies of states in the middle of a step, for prompts that begin alike to go on from."""

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

Ids = NDArray[np.int32]


class Copy(NamedTuple):
    """After so many rows of a step the states of a sequence, at a position, go to a slot."""

    rows: int
    sequence: Sequence
    position: int
    slot: int


class Copies:
    """Those of one step; the slots are taken, and are free again unless `keep` is called."""

    def __init__(self, cache: SharedCache, work: Iterable[Work]) -> None:
        self._cache = cache
        self._copies: list[Copy] = []
        row = 0
        for sequence, count in work:
            assert sequence.lease is not None
            for place in sequence.lease.places or ():
                if sequence.computed < place <= sequence.computed + count:
                    slot = cache.reserve()
                    if slot is not None:
                        self._copies.append(Copy(row + place - sequence.computed, sequence, place, slot))
            row += count

    def parts(self, positions: Ids, numbers: Ids, tables: list[Ids], slots: Ids) -> list[Part]:
        """The rows of the step, apart where states are copied; none where they never are."""
        if not self._copies:
            return []
        ends = sorted({copy.rows for copy in self._copies} | {len(positions)})
        parts = []
        for first, last in itertools.pairwise((0, *ends)):
            batch = ops.Batch(positions[first:last], numbers[first:last], tables, slots)
            copies = [
                (copy.sequence.lease.slot, copy.slot)
                for copy in self._copies
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

    def drop(self) -> None:
        """Free the slots of copies that are not kept."""
        for copy in self._copies:
            self._cache.unreserve(copy.slot)
        self._copies.clear()
