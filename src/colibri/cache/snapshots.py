"""States after texts that prompts may go on from, in slots that no sequence needs: the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.state import States

FIRST, STEP = ops.KV_BLOCK, 4  # places in every prompt: after 256 tokens, 1,024, 4,096, ...
NEAR_END = 16  # tokens before the end of a prompt, where another turn of a chat often differs
APART = 64  # tokens between two places, at least

Ids = NDArray[np.int32]


def places(tokens: int, known: int, cached: int) -> list[int]:
    """Positions of a prompt at which its states are to be copied, ascending.

    known: how many of its tokens another text began with, though the states there are gone or were never kept; cached:
    where it goes on.
    """
    fixed, place = [], FIRST
    while place < tokens:
        fixed.append(place)
        place *= STEP
    chosen: list[int] = []
    for place in (known, tokens - NEAR_END, *reversed(fixed)):
        if cached + APART <= place < tokens and all(abs(place - other) >= APART for other in chosen):
            chosen.append(place)
    return sorted(chosen)


@dataclass(slots=True, eq=False)
class Snapshot:
    """States after `tail`, which follows all that `parent` stands for, whole blocks."""

    slot: int
    parent: bytes
    tail: Ids


class Snapshots:
    """All of them, and the slots that are free or can be had by giving one up."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._kept: OrderedDict[tuple[bytes, bytes], Snapshot] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def slots(self) -> int:
        """How many slots `take` can give."""
        return self._states.free + len(self._kept)

    def take(self) -> int | None:
        """A slot, for which the least recently used snapshot is given up if need be; None when sequences hold all."""
        if not self._states.free:
            if not self._kept:
                return None
            _, snapshot = self._kept.popitem(last=False)
            return snapshot.slot
        return self._states.take()

    def resume(self, snapshot: Snapshot | None) -> int:
        """A slot that goes on from a snapshot, or begins; there must be one."""
        if snapshot is not None:
            self._use(snapshot)
        slot = self.take()
        assert slot is not None
        if snapshot is not None and slot != snapshot.slot:  # the last slot is the snapshot's own
            self._states.copy(snapshot.slot, slot)
        return slot

    def find(self, parent: bytes, ids: Ids) -> Snapshot | None:
        """The longest whose tail `ids` begins with."""
        found = [each for each in self._kept.values() if each.parent == parent and _begins(ids, each.tail)]
        return max(found, key=lambda each: len(each.tail), default=None)

    def keep(self, slot: int, parent: bytes, tail: Sequence[int]) -> None:
        """Know what a slot holds from now on; it is free again where another holds the same."""
        ids = np.array(tail, np.int32)
        key = parent, ids.tobytes()
        if key in self._kept:
            self._states.give_back(slot)
            self._kept.move_to_end(key)
        else:
            self._kept[key] = Snapshot(slot, parent, ids)

    def clear(self) -> None:
        """Give all up."""
        for snapshot in self._kept.values():
            self._states.give_back(snapshot.slot)
        self._kept.clear()

    def _use(self, snapshot: Snapshot) -> None:
        self._kept.move_to_end((snapshot.parent, snapshot.tail.tobytes()))


def _begins(ids: Ids, tail: Ids) -> bool:
    return np.array_equal(ids[: len(tail)], tail)
