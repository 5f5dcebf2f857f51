"""How fast a plan will run: from bytes a token, the memory's rate and the disk's, before anything is loaded."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from colibri import ops
from colibri.experts.plan import Plan
from colibri.experts.reading import ExpertReader, staging_bytes
from colibri.experts.residency import Residency
from colibri.experts.store import ExpertStore

MEMORY_EFFICIENCY = 0.8  # of the measured memory rate that a decode step reaches


@dataclass(frozen=True, slots=True)
class Forecast:
    """One row: what a decoded token reads from the disk at this hit rate, the rate, and what limits it."""

    hit_rate: float
    disk_bytes: float
    tokens_per_s: float
    limit: str


def forecast(plan: Plan, weight_bytes: float, memory_rate: float, reading_rate: float, hit_rate: float) -> Forecast:
    """Tokens a second for decoding one sequence; rates in bytes a second, weight_bytes read from memory a token.

    The times add up: what is computed while experts are read makes up for what each layer's wait costs beside.
    """
    disk_bytes = 0.0 if plan.fits else (1.0 - hit_rate) * plan.token_bytes
    computing, reading = decode_seconds(weight_bytes, disk_bytes, memory_rate, reading_rate)
    return Forecast(hit_rate, disk_bytes, 1.0 / (computing + reading), "disk" if reading > computing else "memory")


def decode_seconds(
    weight_bytes: float, disk_bytes: float, memory_rate: float, reading_rate: float
) -> tuple[float, float]:
    """What computing a token takes, and reading what is missing for it."""
    return weight_bytes / (memory_rate * MEMORY_EFFICIENCY), disk_bytes / reading_rate


def measure_reading(store: ExpertStore, misses: int, seconds: float = 0.5, *, cached: bool = True) -> float:
    """Bytes a second at which an engine brings in so many missing experts of each layer, drawn at random.

    From the page cache what is there, as an engine does; with `cached` False all of it from the disk.
    """
    reader = ExpertReader(staging_bytes(store))
    reader.assume_uncached = not cached
    residency = Residency(store, misses, limits=dict.fromkeys(store.layout_counts(), misses), reader=reader)
    ids, chance = ops.tensor("I32", (1, misses)), random.Random(0)  # the pattern, not the secrecy, matters

    def bring(layer: int) -> None:
        ids.numpy()[0] = chance.sample(range(store.experts), misses)
        for _ in residency.handles(layer, ids):
            pass

    try:
        for layer in {layout: layer for layer, layout in store.layouts.items()}.values():
            bring(layer)  # once into each kind of slot: their memory is new
        start, before = time.monotonic(), residency.counters.bytes_read
        while residency.counters.bytes_read == before or time.monotonic() < start + seconds:
            for layer in store.moe_layers():
                bring(layer)
        return (residency.counters.bytes_read - before) / (time.monotonic() - start)
    finally:
        residency.close()
