"""How fast a plan will run: from bytes a token, the memory's rate and the disk's, before anything is loaded."""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import FileError
from colibri.experts.plan import Plan
from colibri.experts.reading import PIECE
from colibri.experts.store import ExpertStore

MEASURE_THREADS = 3  # as many as read experts: the readers and the thread that waits for them
MEMORY_EFFICIENCY = 0.8  # of the measured memory rate that a decode step reaches
SERIAL_SHARE = 0.25  # of the shorter of reading and computing that does not overlap with the longer


@dataclass(frozen=True, slots=True)
class Forecast:
    """One row: what a decoded token reads from the disk at this hit rate, the rate, and what limits it."""

    hit_rate: float
    disk_bytes: float
    tokens_per_s: float
    limit: str


def forecast(plan: Plan, weight_bytes: float, memory_rate: float, disk_rate: float, hit_rate: float) -> Forecast:
    """Tokens a second for decoding one sequence; rates in bytes a second, weight_bytes read from memory a token."""
    computing = weight_bytes / (memory_rate * MEMORY_EFFICIENCY)
    disk_bytes = 0.0 if plan.fits else (1.0 - hit_rate) * plan.token_bytes
    reading = disk_bytes / disk_rate
    seconds = max(computing, reading) + SERIAL_SHARE * min(computing, reading)
    return Forecast(hit_rate, disk_bytes, 1.0 / seconds, "disk" if reading > computing else "memory")


def measure_disk(store: ExpertStore, seconds: float = 0.5) -> float:
    """Bytes a second that experts come in from the disk, around the page cache where the filesystem allows."""
    info = store.base(store.moe_layers()[0], 0).gate
    descriptor = _open(info.file)
    size = os.fstat(descriptor).st_size
    deadline = time.monotonic() + seconds
    total = [0] * MEASURE_THREADS

    def read(number: int) -> None:
        buffer = mmap.mmap(-1, PIECE)
        chance = random.Random(number)  # the pattern, not the secrecy, matters
        while time.monotonic() < deadline:
            offset = chance.randrange(max(1, size // PIECE)) * PIECE
            total[number] += os.preadv(descriptor, [buffer], offset)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(MEASURE_THREADS)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    return max(1.0, sum(total) / (time.monotonic() - start))


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise FileError(f"{path}: cannot be opened: {error.strerror}") from error
