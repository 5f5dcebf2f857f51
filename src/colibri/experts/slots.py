"""Slots: places of one expert each, in large aligned mappings that take memory only as they are used."""

from __future__ import annotations

import mmap

from colibri import ops
from colibri.experts.store import slot_bytes
from colibri.weights.tensor_info import Layout


class Slot:
    """Memory of one expert and the tiled tensors in it: gate, up and down, or up and down."""

    __slots__ = ("index", "nbytes", "offset", "tensors")

    def __init__(self, layout: Layout, memory: ops.Memory, index: int) -> None:
        self.index = index
        self.nbytes = slot_bytes(layout)
        self.offset = index * self.nbytes
        tensors = []
        offset = self.offset
        for type_name, rows, k in layout:
            tensors.append(ops.tensor(type_name, (rows, k), memory, offset, tiled=True))
            offset += ops.tiled_bytes(type_name, rows, k)
        self.tensors = tuple(tensors)


class SlotPool:
    """Slots of one layout: at most `capacity`, handed out lowest first so that the touched part stays compact.

    Not thread-safe; the residency's lock guards it.
    """

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.layout = layout
        self.slot_bytes = slot_bytes(layout)
        self.limit = self.capacity = capacity
        self.live = 0
        self._memory = ops.Memory(max(1, capacity * self.slot_bytes))
        self._free: list[Slot] = []
        self._made = 0

    def take(self) -> Slot | None:
        """A free slot, or None when as many are out as the limit allows."""
        if self.live >= self.limit:
            return None
        self.live += 1
        if self._free:
            return self._free.pop()
        self._made += 1
        return Slot(self.layout, self._memory, self._made - 1)

    def give_back(self, slot: Slot) -> None:
        """Take a slot back; above the limit its pages return to the system."""
        self.live -= 1
        if self.live >= self.limit:
            self._release(slot)
        self._free.append(slot)

    def release_unused(self) -> None:
        """Return the pages of all free slots to the system."""
        for slot in self._free:
            self._release(slot)

    def close(self) -> None:
        """Return the pages of all slots to the system; none is used any more."""
        whole = self._made * self.slot_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if whole:
            self._memory.release(0, whole)

    def _release(self, slot: Slot) -> None:
        first = -(-slot.offset // mmap.PAGESIZE) * mmap.PAGESIZE  # neighbours share the pages at the ends
        last = (slot.offset + slot.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._memory.release(first, last - first)
