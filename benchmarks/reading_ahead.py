"""Decoding under a memory budget: tokens/s, bytes read, and the disk's own rate measured in between.

    python benchmarks/reading_ahead.py olmoe.gguf --ram 2.5 --rounds 5 --tokens 16

Reading ahead is on and off in turn. Rates are compared with sequential O_DIRECT reads before and after each part,
because virtual disks drift. The page cache is not used (`assume_uncached`), as it is when a model exceeds memory.
With --disk GB/s the reads are held to the rate of a device that serves one after the other, slower than the one here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from out_of_core import sequential

import colibri
from colibri.config import SamplingParams, Token
from colibri.engine.model import Model

WARM_UP = 12  # tokens


class Decided:
    """Stands in for the trial that would choose by itself."""

    reading_ahead = True

    def step(self, seconds: float) -> None:
        """Nothing to learn."""


class Device:
    """A positioned read that takes as long as on a device of so many bytes a second with one queue."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free = 0.0

    def __call__(self, descriptor: int, view: memoryview, offset: int) -> int:
        with self._lock:
            self._free = end = max(time.perf_counter(), self._free) + len(view) / self._rate
        count = os.preadv(descriptor, [view], offset)
        time.sleep(max(0.0, end - time.perf_counter()))
        return count


def part(
    model: Model, tokens: Iterator[Token], count: int, disk_rate: Callable[[], float]
) -> tuple[float, float, float]:
    """Decode `count` tokens; tokens/s and the reading rate as a part of the disk's, MB a token."""
    before, disk = model.experts.counters.as_dict(), [disk_rate()]
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(tokens)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    disk.append(disk_rate())
    after = model.experts.counters.as_dict()
    did = {name: after[name] - before[name] for name in after}
    rate = did["bytes_read"] / seconds / 1e9
    needed = max(1, did["misses"] + did["prefetch_used"])  # that were not there a layer before
    print(
        f"{count / seconds:6.2f} tok/s  {did['bytes_read'] / count / 1e6:6.0f} MB/token at {rate:.2f} GB/s, disk "
        f"{disk[0]:.2f} and {disk[1]:.2f}, hits {100 * did['hits'] / max(1, did['hits'] + did['misses']):.0f}%, ahead "
        f"{did['prefetched']}, used {did['prefetch_used']} of {needed} needed, "
        f"processor {1000 * cpu / count:.0f} ms/token",
        flush=True,
    )
    return count / seconds, rate / statistics.mean(disk), did["bytes_read"] / count / 1e6


def main() -> None:
    """Run the rounds and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--ram", type=float, required=True, help="GiB")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--disk", type=float, help="GB/s to hold the reads to")
    options = parser.parse_args()

    def disk_rate() -> float:
        return options.disk or sequential(options.model)

    trial = Decided()
    total = WARM_UP + 2 * options.rounds * options.tokens
    with colibri.load(options.model, ram=int(options.ram * (1 << 30)), context=total + 8) as model:
        model.experts.reader.assume_uncached = True
        if options.disk:
            model.experts.reader._read = Device(1e9 * options.disk)
        model.experts._trial = trial  # type: ignore[assignment]
        start = time.perf_counter()
        params = SamplingParams(max_tokens=total, temperature=0.8, seed=1, ignore_eos=True)
        tokens = iter(model.generate(list(range(100, 108)), params))
        next(tokens)
        print(f"first of 8 tokens' prompt after {time.perf_counter() - start:.2f} s")
        for _ in range(WARM_UP - 1):
            next(tokens)
        results: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
        for _ in range(options.rounds):
            for ahead in (True, False):
                trial.reading_ahead = ahead
                results[ahead].append(part(model, tokens, options.tokens, disk_rate))
        for ahead, rows in results.items():
            rate, share, read = (statistics.median(column) for column in zip(*rows, strict=True))
            figures = f"{rate:.2f} tok/s, {share:.0%} of the disk's rate, {read:.0f} MB/token"
            print(f"reading ahead {'on ' if ahead else 'off'}: {figures}")


if __name__ == "__main__":
    main()
