"""How fast a plan will run: from bytes a token, the memory's rate and the disk's, before anything is loaded."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from colibri import ops
from colibri.errors import starting_threads
from colibri.experts.plan import Plan
from colibri.experts.reading import ExpertReader, staging_bytes
from colibri.experts.residency import READERS
from colibri.experts.slots import Slot
from colibri.experts.store import ExpertStore

MEASURE_THREADS = READERS + 1  # the readers and the thread that waits for them
MEMORY_EFFICIENCY = 0.8  # of the measured memory rate that a decode step reaches
SERIAL_SHARE = 0.2  # of the shorter of reading and computing that does not overlap with the longer


@dataclass(frozen=True, slots=True)
class Disk:
    """How experts come in: bytes a second, and seconds of processor time a byte for reading and tiling them."""

    rate: float
    processor: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """One row: what a decoded token reads from the disk at this hit rate, the rate, and what limits it."""

    hit_rate: float
    disk_bytes: float
    tokens_per_s: float
    limit: str


def forecast(plan: Plan, weight_bytes: float, memory_rate: float, disk: Disk, hit_rate: float) -> Forecast:
    """Tokens a second for decoding one sequence; memory_rate in bytes a second, weight_bytes read from it a token."""
    disk_bytes = 0.0 if plan.fits else (1.0 - hit_rate) * plan.token_bytes
    computing = weight_bytes / (memory_rate * MEMORY_EFFICIENCY) + disk_bytes * disk.processor / ops.threads()
    reading = disk_bytes / disk.rate
    seconds = max(computing, reading) + SERIAL_SHARE * min(computing, reading)
    return Forecast(hit_rate, disk_bytes, 1.0 / seconds, "disk" if reading > computing else "memory")


def measure_disk(store: ExpertStore, seconds: float = 0.5) -> Disk:
    """Bring in experts of one layer, drawn at random, around the page cache where the filesystem allows.

    Each thread brings in one at least, however late it gets to run.
    """
    layer = store.moe_layers()[0]
    memory = ops.Memory(MEASURE_THREADS * store.slot_bytes(layer))
    reader = ExpertReader(staging_bytes(store))
    reader.assume_uncached = True
    deadline = time.monotonic() + seconds

    def read(number: int) -> None:
        slot = Slot(store.layouts[layer], memory, number)
        chance = random.Random(number)  # the pattern, not the secrecy, matters
        while True:
            expert = store.base(layer, chance.randrange(store.count(layer)))
            for tensor, info in zip(slot.tensors, expert.parts, strict=True):
                for first, count in reader.pieces(info):
                    reader.load_piece(tensor, info, first, count)
            if time.monotonic() >= deadline:
                return

    threads = [threading.Thread(target=read, args=(number,)) for number in range(MEASURE_THREADS)]
    start, processor = time.monotonic(), time.process_time()
    with starting_threads("measure the disk"):
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    took, processor = time.monotonic() - start, time.process_time() - processor
    reader.close()
    return Disk(reader.nbytes / took, processor / reader.nbytes)
