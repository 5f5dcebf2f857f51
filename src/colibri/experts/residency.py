"""Which experts are in memory: read when first routed to, kept in slots, given up for others when slots run out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from colibri import ops
from colibri.experts.loading import Job, Loader
from colibri.experts.overlay import Overlay
from colibri.experts.policy import NextUse, Policy
from colibri.experts.reading import STRIPE, ExpertReader
from colibri.experts.slots import Slot, SlotPool
from colibri.experts.stats import ResidencyCounters, RoutingStats
from colibri.experts.store import ExpertStore, Layout
from colibri.weights.file_reader import FileReader

READERS = 2
Part = tuple[ops.ExpertTable, "ops.Tensor | None"]


class Residency:
    """Slots for the experts of a model and the threads that fill them.

    `limits` is the number of slots of each layout; None gives every expert a slot. Safe to use from several threads.
    One lock guards all state; it is held for microseconds, never while reading or computing.
    """

    def __init__(
        self,
        store: ExpertStore,
        experts_per_token: int,
        *,
        limits: dict[Layout, int] | None = None,
        policy: Policy | None = None,
        readers: int = READERS,
        reader: ExpertReader | None = None,
    ) -> None:
        self.store = store
        self.counters = ResidencyCounters()
        self.routing = RoutingStats(store.layers, store.experts, experts_per_token)
        self.reader = reader or ExpertReader(_largest_stripe(store))
        self._experts = store.experts
        self._policy: Policy = policy or NextUse(store.layers, store.experts)
        self.pools = {layout: SlotPool(layout, count) for layout, count in (limits or _all_slots(store)).items()}
        self._first_layer = store.moe_layers()[0]  # a step begins here
        self._tables = {
            layer: ops.ExpertTable(store.count(layer), store.hidden, store.intermediate) for layer in store.moe_layers()
        }
        self._biases = load_biases(store)
        keys = store.layers * store.experts
        layers_of_keys = np.arange(keys) // self._experts
        self._of_pool = {
            layout: np.isin(layers_of_keys, [layer for layer in store.moe_layers() if store.layouts[layer] == layout])
            for layout in self.pools
        }  # (keys,) which experts may use a pool
        self._layer_keys = {layer: self._keys_of(layer) for layer in store.moe_layers()}
        self._present = bytearray(keys)
        self._absent = [store.count(layer) for layer in range(store.layers)]
        self._slots: list[Slot | None] = [None] * keys
        self._leases: dict[int, int] = {}  # key -> how many parts use it now
        self._layer_leases = [0] * store.layers
        self._loading: dict[int, Job] = {}
        self._lock = threading.RLock()  # a dropped step may be collected, and give its leases back, at any allocation
        self._change = threading.Condition(self._lock)  # requesters wait for arrivals and slots
        self._loader = Loader(self.reader, self._lock, self._finished, readers)
        self._bounded = limits is not None
        self._overlay = Overlay(store)
        self._looking = threading.Lock()
        self._take_up_replacements()

    def _keys_of(self, layer: int) -> list[int]:
        base = layer * self._experts
        return list(range(base, base + self.store.count(layer)))

    # ---- what a layer asks ---------------------------------------------------------------------------------------

    def handles(self, layer: int, ids: ops.Tensor) -> Iterator[Part]:
        """Yield (table, only) parts that together cover the experts in `ids` (n, k) int32; each expert in one part.

        When all of them are here: one part with only=None. Otherwise first those that are here, then the others as
        they arrive, so that reading overlaps the caller's arithmetic. The experts of a part stay in their slots until
        the next part is asked for. Raises FileError when one cannot be read; the residency stays usable.
        """
        table = self._tables[layer]
        if layer == self._first_layer:
            self._take_up_replacements()
        with self._lock:
            self.routing.record(layer, ids.numpy())
            complete = self._absent[layer] == 0 and not self._bounded
            if complete:
                self._layer_leases[layer] += 1
                self.counters.hits += ids.shape[1] if ids.shape[0] == 1 else len(self._chosen(layer, ids))
        if complete:
            try:
                yield table, None
            finally:
                with self._lock:
                    self._layer_leases[layer] -= 1
                    if self._bounded:  # limits came while the part was out
                        self._trim()
            return
        yield from self._leased_parts(layer, self._chosen(layer, ids))

    def _leased_parts(self, layer: int, chosen: list[int]) -> Iterator[Part]:
        present = self._present
        with self._lock:
            missing = [key for key in chosen if not present[key]]
            held = [key for key in chosen if present[key]] if missing else chosen
            self._lease(held)
            self._policy.touch(layer, chosen)
            self.counters.hits += len(held)
            self.counters.misses += len(missing)
        if missing:
            yield from self._stream(layer, held, missing)
            return
        try:
            yield self._tables[layer], None
        finally:
            self._release(chosen)

    def _take_up_replacements(self) -> None:
        """Between two steps: use the replaced experts that came since, in all layers at once."""
        if not self._looking.acquire(blocking=False):
            return  # another thread does
        try:
            changes = list(self._overlay.changes())
        finally:
            self._looking.release()
        for replacement in changes:
            keys = [layer * self._experts + replacement.expert for layer in self.store.moe_layers()]
            with self._lock:
                while any(key in self._loading or key in self._leases for key in keys):
                    self._change.wait()
                if replacement.file is not None:
                    self.reader.use(replacement.file)
                self.store.replace(replacement.expert, replacement.layers)
                for key in keys:
                    if self._present[key]:
                        self._drop(key)

    def _chosen(self, layer: int, ids: ops.Tensor) -> list[int]:
        """The distinct keys that ids name."""
        keys = self._layer_keys[layer]
        array = ids.numpy()
        if len(array) == 1:
            return [keys[expert] for expert in array[0].tolist()]
        return [keys[expert] for expert in np.flatnonzero(np.bincount(array.ravel())).tolist()]

    def _stream(self, layer: int, held: list[int], missing: list[int]) -> Iterator[Part]:
        """Parts of a step of which some experts are not here; `held` are, and are leased."""
        table, base = self._tables[layer], self._layer_keys[layer][0]
        todo: deque[int] = deque(missing)
        jobs: dict[int, Job] = {}
        try:
            with self._lock:
                held = held + self._start(todo, jobs)
            while held or jobs or todo:
                if held:
                    yield table, _only(held, base)
                    self._release(held)
                held = []
                held = self._arrivals(todo, jobs)
        finally:
            self._release([*held, *jobs])

    def _arrivals(self, todo: deque[int], jobs: dict[int, Job]) -> list[int]:
        """Wait for, or read, experts of this step; those that are here now move from `jobs` to the result."""
        while jobs or todo:
            with self._lock:
                for job in jobs.values():
                    if job.error is not None:
                        raise job.error
                arrived = self._start(todo, jobs) + [key for key, job in jobs.items() if job.done]
                if arrived:
                    for key in arrived:
                        jobs.pop(key, None)
                    return arrived
                taken = self._loader.take(urgent_only=True)
                if taken is None:
                    self._change.wait()
                    continue
            self._loader.read(*taken)
        return []

    def set_limits(self, limits: dict[Layout, int]) -> None:
        """Change the number of slots of each layout, up to what it was made with.

        What nobody uses is given up at once, the rest when its part ends; nothing is read into a pool above its limit,
        and the memory of surplus slots returns to the system.
        """
        with self._lock:
            self._bounded = True
            for layout, limit in limits.items():
                pool = self.pools[layout]
                pool.limit = max(1, min(limit, pool.capacity))
                pool.release_unused()
            self._trim()
            self._change.notify_all()

    # ---- what is here --------------------------------------------------------------------------------------------

    @property
    def resident_experts(self) -> int:
        """Experts in slots, those that are being read included."""
        return sum(pool.live for pool in self.pools.values())

    @property
    def resident_bytes(self) -> int:
        """Bytes of the slots in use."""
        return sum(pool.live * pool.slot_bytes for pool in self.pools.values())

    @property
    def leased(self) -> int:
        """Experts that a part uses or a step waits for."""
        return len(self._leases)

    def resident_ids(self, layer: int) -> list[int]:
        """The experts of one layer that are in slots."""
        return [number for number, key in enumerate(self._layer_keys[layer]) if self._present[key]]

    def tensors(self, layer: int, expert: int) -> tuple[ops.Tensor, ops.Tensor, ops.Tensor] | None:
        """gate, up and down of an expert in a slot, or None."""
        slot = self._slots[layer * self._experts + expert]
        return None if slot is None else slot.tensors

    # ---- under the lock ------------------------------------------------------------------------------------------

    def _lease(self, keys: Sequence[int]) -> None:
        leases = self._leases
        for key in keys:
            leases[key] = leases.get(key, 0) + 1

    def _start(self, todo: deque[int], jobs: dict[int, Job]) -> list[int]:
        """Begin reading as many of `todo` as slots can be had for; the result came meanwhile, for another requester.

        Each is leased for this step from now on.
        """
        here: list[int] = []
        while todo:
            key = todo[0]
            job = self._loading.get(key)
            if job is not None:
                self._loader.hurry(job)
            elif self._present[key]:
                here.append(key)
            elif (job := self._begin(key, urgent=True)) is None:
                break
            self._lease((todo.popleft(),))
            if job is not None:
                jobs[key] = job
        return here

    def _begin(self, key: int, urgent: bool) -> Job | None:
        """Queue one expert, or None when there is no slot for it."""
        slot = self._find_slot(key)
        if slot is None:
            return None
        job = self._loader.submit(key, slot, self.store.expert(*divmod(key, self._experts)), urgent)
        self._loading[key] = job
        return job

    def _find_slot(self, key: int) -> Slot | None:
        pool = self.pools[self.store.layouts[key // self._experts]]
        slot = pool.take()
        if slot is None and self._evict(pool):
            slot = pool.take()
        return slot

    def _trim(self) -> None:
        """Bring every pool under its limit as far as leases allow."""
        for pool in self.pools.values():
            while pool.live > pool.limit and self._evict(pool):
                pass

    def _evict(self, pool: SlotPool) -> bool:
        """Give up the least valuable expert of this pool that nobody uses."""
        present = np.frombuffer(self._present, np.bool_)
        values = np.where(present & self._of_pool[pool.layout], self._policy.values(), np.inf)
        values[list(self._leases)] = np.inf
        for layer, count in enumerate(self._layer_leases):
            if count:
                values[layer * self._experts : (layer + 1) * self._experts] = np.inf
        victim = int(np.argmin(values))
        if values[victim] == np.inf:
            return False
        self.counters.evicted += 1
        self._drop(victim)
        return True

    def _drop(self, key: int) -> None:
        layer, expert = divmod(key, self._experts)
        slot = _slot_of(self._slots, key)
        self._tables[layer].clear(expert)
        self._slots[key] = None
        self._present[key] = 0
        self._absent[layer] += 1
        self.pools[self.store.layouts[layer]].give_back(slot)

    # ---- outside the lock ----------------------------------------------------------------------------------------

    def _release(self, keys: Sequence[int]) -> None:
        if not keys:
            return
        leases = self._leases
        with self._lock:
            for key in keys:
                count = leases[key] - 1
                if count:
                    leases[key] = count
                else:
                    del leases[key]
            if self._bounded:
                self._trim()
            self._change.notify_all()

    def _finished(self, job: Job) -> None:
        """Called under the lock when the last piece of an expert was read, or one could not be."""
        del self._loading[job.key]
        layer, number = divmod(job.key, self._experts)
        if job.error is None:
            self._install(job, layer, number, job.expert.nbytes)
        else:
            self.pools[self.store.layouts[layer]].give_back(job.slot)
        job.done = True
        self._trim()  # nobody may wait for it any more
        self._change.notify_all()

    def _install(self, job: Job, layer: int, number: int, nbytes: int) -> None:
        self._tables[layer].set(number, *job.slot.tensors, *self._biases[layer][number])
        self._slots[job.key] = job.slot
        self._present[job.key] = 1
        self._absent[layer] -= 1
        self.counters.bytes_read += nbytes

    def close(self) -> None:
        """Stop the readers and close the files."""
        self._loader.close()
        self.reader.close()


def load_biases(store: ExpertStore) -> dict[int, list[tuple[ops.Tensor, ...]]]:
    """The biases of each layer's experts, which are small and stay: () or (gate, up, down) for every expert."""
    biases: dict[int, list[tuple[ops.Tensor, ...]]] = {}
    with FileReader() as files:
        for layer in store.moe_layers():
            infos = store.biases(layer)
            biases[layer] = [() for _ in range(store.count(layer))]
            for info in infos or ():
                tensor = ops.tensor("F32", info.shape)
                files.read_into(info.file, info.offset, tensor.numpy())
                for number, parts in enumerate(biases[layer]):
                    biases[layer][number] = (*parts, tensor.rows(number, number + 1).reshape(info.shape[1]))
    return biases


def _slot_of(slots: list[Slot | None], key: int) -> Slot:
    slot = slots[key]
    assert slot is not None
    return slot


def _only(keys: list[int], base: int) -> ops.Tensor:
    """The experts of one part as an op takes them: (m,) int32."""
    only = ops.tensor("I32", (len(keys),))
    only.numpy()[:] = np.array(keys, np.int32) - base
    return only


def _all_slots(store: ExpertStore) -> dict[Layout, int]:
    counts: dict[Layout, int] = {}
    for layer in store.moe_layers():
        layout = store.layouts[layer]
        counts[layout] = counts.get(layout, 0) + store.count(layer)
    return counts


def _largest_stripe(store: ExpertStore) -> int:
    """Bytes of the largest 16 rows: the least that a staging buffer must hold."""
    parts = [part for layer in store.moe_layers() for part in store.expert(layer, 0).parts]
    return STRIPE * max(part.row_bytes for part in parts)
