"""Which expert is in which slot, who uses it, and which one goes when a slot is needed.

Nothing here locks, reads or waits; the residency calls it under its lock. Keys are layer * experts + expert.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from colibri import ops
from colibri.experts.policy import NextUse
from colibri.experts.slots import Slot, SlotPool
from colibri.experts.stats import ResidencyCounters
from colibri.experts.store import ExpertStore
from colibri.weights.file_reader import FileReader
from colibri.weights.load import load_plain
from colibri.weights.tensor_info import Layout

SOON = -1.0  # what the policy says of an expert that the next layer is sure to need
Biases = dict[int, list[tuple[ops.Tensor, ...]]]


class Occupancy:
    """The slots of a model and the experts in them.

    present: one byte a key, 1 for experts in slots. absent: how many experts of each layer are not.
    """

    def __init__(
        self, store: ExpertStore, limits: dict[Layout, int] | None, policy: NextUse, counters: ResidencyCounters
    ) -> None:
        self.pools = {layout: SlotPool(layout, count) for layout, count in (limits or store.layout_counts()).items()}
        self.tables = {
            layer: ops.ExpertTable(store.experts, store.hidden, store.intermediate) for layer in store.moe_layers()
        }
        keys = store.layers * store.experts
        self.present = bytearray(keys)
        self.absent = [store.experts if store.has(layer) else 0 for layer in range(store.layers)]
        self.leases: dict[int, int] = {}  # key -> how many parts use it now
        self.layer_leases: list[list[None]] = [[] for _ in range(store.layers)]  # append and pop need no lock
        self.bounded = limits is not None
        self.expected: list[int] = []  # what the next layer will probably need, here or not
        self.read_ahead: set[int] = set()  # not to be given up for another one read ahead
        self._store = store
        self._experts = store.experts
        self._policy = policy
        self._counters = counters
        self._biases = load_biases(store)
        self._slots: list[Slot | None] = [None] * keys
        of_keys = np.arange(keys) // self._experts
        self._of_pool = {
            layout: np.isin(of_keys, [layer for layer in store.moe_layers() if store.layouts[layer] == layout])
            for layout in self.pools
        }  # (keys,) which experts may use a pool

    @property
    def least_slots(self) -> int:
        """Slots of the layout that may have the fewest."""
        return min(pool.limit for pool in self.pools.values())

    def pool_of(self, key: int) -> SlotPool:
        """Where an expert's slot comes from."""
        return self.pools[self._store.layouts[key // self._experts]]

    def lease(self, keys: Iterable[int]) -> None:
        """Keep these experts where they are, once more."""
        leases = self.leases
        for key in keys:
            leases[key] = leases.get(key, 0) + 1

    def release(self, keys: Iterable[int]) -> None:
        """Take back one lease of each; pools above their limit shrink."""
        leases = self.leases
        for key in keys:
            count = leases[key] - 1
            if count:
                leases[key] = count
            else:
                del leases[key]
        if self.bounded:
            self.trim()

    def find_slot(self, key: int, careful: bool) -> Slot | None:
        """A slot, if need be that of another expert; a careful one only takes that of an expert worth less."""
        pool = self.pool_of(key)
        slot = pool.take()
        if slot is None and self._evict(pool, key if careful else None):
            slot = pool.take()
        return slot

    def install(self, key: int, slot: Slot) -> None:
        """An expert is in its slot now."""
        layer, number = divmod(key, self._experts)
        parts, biases = slot.tensors, self._biases[layer][number]
        gate = () if len(parts) == 3 else (None,)
        self.tables[layer].set(number, *gate, *parts, *(gate if biases else ()), *biases)
        self._slots[key] = slot
        self.present[key] = 1
        self.absent[layer] -= 1

    def drop(self, key: int) -> None:
        """Give up an expert that is here."""
        layer, number = divmod(key, self._experts)
        slot = self._slots[key]
        assert slot is not None
        self.tables[layer].clear(number)
        self._slots[key] = None
        self.present[key] = 0
        self.absent[layer] += 1
        self.read_ahead.discard(key)
        self.pool_of(key).give_back(slot)

    def set_limits(self, limits: dict[Layout, int]) -> None:
        """Change how many slots of each layout may be in use; what nobody uses goes at once."""
        self.bounded = True
        for layout, limit in limits.items():
            pool = self.pools[layout]
            pool.limit = max(1, min(limit, pool.capacity))
            pool.release_unused()
        self.trim()

    def trim(self) -> None:
        """Bring every pool under its limit as far as leases allow."""
        for pool in self.pools.values():
            while pool.live > pool.limit and self._evict(pool):
                pass

    def _evict(self, pool: SlotPool, than: int | None = None) -> bool:
        """Give up the least valuable expert of this pool that nobody uses, if it is worth less than the key `than`."""
        present = np.frombuffer(self.present, np.bool_)
        worth = self._policy.values()
        values = np.where(present & self._of_pool[pool.layout], worth, np.inf)
        if self.expected:
            values[self.expected] = np.maximum(values[self.expected], SOON)
        _spare(values, self.leases)
        if than is not None:
            _spare(values, self.read_ahead)
        for layer, leases in enumerate(self.layer_leases):
            if leases:
                values[layer * self._experts : (layer + 1) * self._experts] = np.inf
        victim = int(np.argmin(values))
        if values[victim] == np.inf or (than is not None and values[victim] >= worth[than]):
            return False
        self._counters.evicted += 1
        self.drop(victim)
        return True


def _spare(values: np.ndarray[tuple[int], np.dtype[np.float64]], keys: Collection[int]) -> None:
    if keys:
        values[list(keys)] = np.inf


def load_biases(store: ExpertStore) -> Biases:
    """The biases of each layer's experts, which are small and stay: () or one for each part, for every expert."""
    biases: Biases = {}
    files = FileReader()
    for layer in store.moe_layers():
        merged = [load_plain(info, files) for info in store.biases(layer)]
        biases[layer] = [
            tuple(part.rows(expert, expert + 1).reshape(part.shape[1]) for part in merged)
            for expert in range(store.experts)
        ]
    return biases
