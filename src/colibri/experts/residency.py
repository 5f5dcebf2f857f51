"""Which experts are in memory: read when first routed to, kept in slots, given up for others when slots run out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from colibri import forking, ops
from colibri.experts.heat import Heat
from colibri.experts.loading import Job, Listener, Loader
from colibri.experts.occupancy import Occupancy
from colibri.experts.overlay import Overlay, Replacement
from colibri.experts.policy import MOST_SEQUENCES, NextUse, Uses
from colibri.experts.prefetch import LEAST_SLOTS, Ahead, Trial
from colibri.experts.reading import ExpertReader, staging_bytes
from colibri.experts.stats import ResidencyCounters, RoutingStats
from colibri.experts.store import ExpertStore
from colibri.weights.tensor_info import Layout

READERS = 4
IN_FLIGHT_BYTES = 16 << 20  # that a step has read at once: enough to keep the disk busy while a part is computed
LEAST_IN_FLIGHT = 3  # experts
WARM_SECONDS = 10.0
WARM_JOBS = 2  # experts of a warm start that are read at once
WARM_TOKENS = 16.0  # how many tokens' worth of evidence earlier runs are
Part = tuple[ops.ExpertTable, "ops.Tensor | None"]


class Residency:
    """Slots for the experts of a model and the threads that fill them.

    `limits` is the number of slots of each layout; None gives every expert a slot. `chunk` is the number of tokens in
    the chunks of a long prompt. Safe to use from several threads.
    One lock guards all state; it is held for microseconds, never while reading or computing.
    """

    def __init__(
        self,
        store: ExpertStore,
        experts_per_token: int,
        *,
        limits: dict[Layout, int] | None = None,
        chunk: int | None = None,
        readers: int = READERS,
        reader: ExpertReader | None = None,
    ) -> None:
        self.store = store
        self.routing = RoutingStats(store.layers, store.experts, experts_per_token)
        self.reader = reader or ExpertReader(staging_bytes(store))
        for file in store.files:  # now, while they are what the store was made from
            self.reader.open(file)
        self.counters = ResidencyCounters()  # since the start
        self._experts = store.experts
        self._policy = NextUse(store.layers, store.experts, chunk=chunk)
        self._here = Occupancy(store, limits, self._policy, self.counters)
        self._layer_keys = {
            layer: list(range(layer * store.experts, (layer + 1) * store.experts)) for layer in store.moe_layers()
        }
        self._first_layer = store.moe_layers()[0]  # a step begins here
        self._loading: dict[int, Job] = {}
        self._lock = threading.RLock()  # a dropped step may be collected, and give its leases back, at any allocation
        self._change = threading.Condition(self._lock)  # requesters wait for arrivals and slots
        self._loader = Loader(self.reader, self._lock, self._finished, readers)
        self._ahead = Ahead(self._here.read_ahead, self.counters)
        self._trial = Trial()
        self._heat: Heat | None = None
        self._warming: deque[int] = deque()
        self._warm_until = 0.0
        self._step_began: float | None = None  # of a step that may read ahead
        self._overlay = Overlay(store)
        self._looking = threading.Lock()
        self.refresh()
        forking.follow(self)

    # ---- what a layer asks ---------------------------------------------------------------------------------------

    def handles(self, layer: int, ids: ops.Tensor) -> Iterator[Part]:
        """Yield (table, only) parts that together cover the experts in `ids` (n, k) int32; each expert in one part.

        When all of them are here: one part with only=None. Otherwise first those that are here, then the others as
        they arrive, so that reading overlaps the caller's arithmetic. The experts of a part stay in their slots until
        the next part is asked for. Raises FileError when one cannot be read; the residency stays usable.
        """
        here = self._here
        rows, k = ids.shape
        if layer == self._first_layer:
            self._begin_step(rows)
        with self._lock:
            complete = here.absent[layer] == 0 and not here.bounded
            if complete:
                here.layer_leases[layer].append(None)
                self.counters.hits += k if rows == 1 else len(set(ids.numpy().ravel().tolist()))
        if not complete:
            yield from self._leased_parts(layer, *self._chosen(layer, ids), rows)
            return
        try:
            yield here.tables[layer], None
        finally:
            here.layer_leases[layer].pop()
            if here.bounded:  # limits came while the part was out
                with self._lock:
                    here.trim()

    def _leased_parts(self, layer: int, chosen: list[int], uses: Uses | None, rows: int) -> Iterator[Part]:
        present = self._here.present
        with self._lock:
            missing = [key for key in chosen if not present[key]]
            held = [key for key in chosen if present[key]] if missing else chosen
            self._here.lease(held)
            self._ahead.needed(chosen)
            if self._here.expected and self._here.expected[0] in self._layer_keys[layer]:
                self._here.expected = []
            self._policy.touch(layer, chosen, uses, rows)
            self.counters.hits += len(held)
            self.counters.misses += len(missing)
        if missing:
            yield from self._stream(layer, held, missing)
            return
        try:
            yield self._here.tables[layer], None
        finally:
            self._release(chosen)

    def _chosen(self, layer: int, ids: ops.Tensor) -> tuple[list[int], Uses | None]:
        """The distinct keys that ids name, and how many rows chose each (None: one)."""
        keys = self._layer_keys[layer]
        array = ids.numpy()
        if len(array) == 1:
            return [keys[expert] for expert in array[0].tolist()], None
        uses = np.bincount(array.ravel())
        chosen = np.flatnonzero(uses)
        return [keys[expert] for expert in chosen.tolist()], uses[chosen]

    def _stream(self, layer: int, held: list[int], missing: list[int]) -> Iterator[Part]:
        """Parts of a step of which some experts are not here; `held` are, and are leased."""
        table, base = self._here.tables[layer], self._layer_keys[layer][0]
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

    def _release(self, keys: Sequence[int]) -> None:
        if keys:
            with self._lock:
                self._here.release(keys)
                self._change.notify_all()

    # ---- what is expected ----------------------------------------------------------------------------------------

    def reads_ahead(self, rows: int) -> bool:
        """Whether a step of so many rows should predict the experts of the next layer.

        A prompt needs most anyway, and of few slots those for what comes later are missed more than it helps.
        """
        here = self._here
        return here.bounded and rows <= MOST_SEQUENCES and self._trial.reading_ahead and here.least_slots >= LEAST_SLOTS

    def prefetch(self, layer: int, experts: Iterable[int]) -> None:
        """Read experts that `layer` will probably need, when the disk has nothing else to do.

        Likeliest first. Few at once, and never in place of an expert in use or one that is worth more.
        """
        keys = [self._layer_keys[layer][expert] for expert in experts]
        with self._lock:
            self._here.expected = keys
            for key in keys:
                if self._here.present[key] or key in self._loading:
                    continue
                if not self._ahead.may_begin():
                    return
                if (job := self._begin(key, urgent=False)) is not None:
                    self._ahead.begin(key)
                    job.ended = self._ahead.ended

    def listen(self, listener: Listener | None) -> None:
        """Tell `listener` of every piece of an expert that is read; None ends it."""
        self._loader.listener = listener

    def learn(self, heat: Heat) -> None:
        """Begin with what earlier runs needed, and leave what this one needed when it is closed."""
        self._heat = heat
        counts = heat.read((self.store.layers, self.store.experts))
        if counts is not None:
            self.warm(counts)

    def warm(self, heat: NDArray[np.float64], seconds: float = WARM_SECONDS) -> None:
        """Begin with the experts that were needed most before: heat (layers, experts), any unit.

        Fills free slots only, in the background, for at most so many seconds; what a step needs is read first.
        """
        keys = heat.ravel()
        shares = keys / max(1e-300, heat.sum(axis=1).max()) * self.routing.experts_per_token
        with self._lock:
            self._policy.warm(np.minimum(shares, 1.0), WARM_TOKENS)
            self._warming = deque(key for key in np.argsort(-keys, kind="stable").tolist() if keys[key] > 0)
            self._warm_until = time.monotonic() + seconds
            for _ in range(WARM_JOBS):
                self._warm_next()

    def _warm_next(self) -> None:
        """Read the next expert of the warm start, while there is time and a free slot."""
        while self._warming and time.monotonic() < self._warm_until:
            key = self._warming.popleft()
            pool = self._here.pool_of(key)
            if self._here.present[key] or key in self._loading or pool.live >= pool.limit:
                continue
            if (job := self._begin(key, urgent=False)) is not None:
                job.ended = self._warm_next
                return

    # ---- between steps -------------------------------------------------------------------------------------------

    def _begin_step(self, rows: int) -> None:
        self.refresh()
        now = time.perf_counter()
        if self._step_began is not None:
            self._trial.step(now - self._step_began)
        self._step_began = now if rows <= MOST_SEQUENCES else None

    def refresh(self) -> None:
        """Use the replaced experts that came since, in all layers at once; each step looks for them by itself."""
        if not self._looking.acquire(blocking=False):
            return  # another thread does
        try:
            changes = list(self._overlay.changes())
        finally:
            self._looking.release()
        for replacement in changes:
            self._take_up(replacement)

    def _take_up(self, replacement: Replacement) -> None:
        keys = [layer * self._experts + replacement.expert for layer in self.store.moe_layers()]
        with self._lock:
            while any(key in self._loading or key in self._here.leases for key in keys):
                self._change.wait()
            if replacement.file is not None:
                self.reader.use(replacement.file)
            self.store.replace(replacement.expert, replacement.layers)
            for key in keys:
                if self._here.present[key]:
                    self._here.drop(key)

    def set_limits(self, limits: dict[Layout, int]) -> None:
        """Change the number of slots of each layout, up to what it was made with.

        What nobody uses is given up at once, the rest when its part ends; nothing is read into a pool above its limit,
        and the memory of surplus slots returns to the system.
        """
        with self._lock:
            self._here.set_limits(limits)
            self._change.notify_all()

    def before_fork(self, until: float) -> None:
        """Keep the lock, with no read under way: see `forking`."""
        self._lock.acquire()
        self._loader.rest(until)

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the child, readers start again with the first expert that is not here."""
        if child:
            self._change = threading.Condition(self._lock)
            self._warming.clear()
            self._loader.forget()
            self.reader.renew()
        self._loader.go_on()
        self._change.notify_all()
        self._lock.release()

    def close(self) -> None:
        """Stop the readers, close the files, give the experts' memory back, keep what was learned."""
        self._loader.close()
        self.reader.close()
        for pool in self._here.pools.values():
            pool.close()
        if self._heat is not None:
            self._heat.add(self.routing.counts)
            self._heat = None

    # ---- what is here --------------------------------------------------------------------------------------------

    @property
    def resident_bytes(self) -> int:
        """Bytes of the slots that are taken."""
        return sum(pool.live * pool.slot_bytes for pool in self._here.pools.values())

    # ---- under the lock ------------------------------------------------------------------------------------------

    def _start(self, todo: deque[int], jobs: dict[int, Job]) -> list[int]:
        """Begin reading some of `todo`, as slots can be had; the result came meanwhile, for another requester.

        Each is leased for this step from now on. Few at once: those that are computed leave their slots to the next,
        and what other layers need stays.
        """
        here: list[int] = []
        most = max(LEAST_IN_FLIGHT, IN_FLIGHT_BYTES // self.store.slot_bytes(todo[0] // self._experts)) if todo else 0
        while todo and len(jobs) < most:
            key = todo[0]
            job = self._loading.get(key)
            if job is not None:
                self._loader.hurry(job)
            elif self._here.present[key]:
                here.append(key)
            elif (job := self._begin(key, urgent=True)) is None:
                break
            self._here.lease((todo.popleft(),))
            if job is not None:
                jobs[key] = job
        return here

    def _begin(self, key: int, urgent: bool) -> Job | None:
        """Queue one expert, or None when there is no slot for it."""
        slot = self._here.find_slot(key, careful=not urgent)
        if slot is None:
            return None
        job = self._loader.submit(key, slot, self.store.expert(*divmod(key, self._experts)), urgent)
        self._loading[key] = job
        return job

    def _finished(self, job: Job) -> None:
        """The last piece of an expert was read, or one could not be."""
        del self._loading[job.key]
        if job.error is None:
            self._here.install(job.key, job.slot)
            self.counters.bytes_read += job.expert.nbytes
        else:
            self._here.read_ahead.discard(job.key)
            self._here.pool_of(job.key).give_back(job.slot)
        job.done = True
        if job.ended is not None:
            job.ended()
        self._here.trim()  # nobody may wait for it any more
        self._change.notify_all()


def _only(keys: list[int], base: int) -> ops.Tensor:
    """The experts of one part as an op takes them: (m,) int32."""
    only = ops.tensor("I32", (len(keys),))
    only.numpy()[:] = np.array(keys, np.int32) - base
    return only
