"""Rates of the products against the limits of the machine: `python benchmarks/kernels.py [--threads N]`.

Decode is one column over weights that no cache holds, in GB/s of tiles; prefill is many columns, in G products/s.
Tiling is one thread's, of a piece as experts are read in, from the second cache to memory that no cache holds, in GB/s
of the file's bytes.
Limits and products are measured in turn, and the best of each counts: other work on the machine only slows both.
With one thread the time is that of the processor, so that other processes disturb less. A row for each rate is
appended to results/kernels-<processor>.csv.
"""

from __future__ import annotations

import argparse
import csv
import platform
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from colibri import ops

HIDDEN, INTERMEDIATE, SLOTS = 2048, 768, 8
SHAPES = ((INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))  # of gate, up, down
DECODE_BYTES = 384 << 20
PIECE_BYTES = 512 << 10
ROUNDS = 4
COLUMNS = ["processor", "isa", "threads", "commit", "what", "type", "columns", "rate", "limit", "unit"]


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def weight(name: str, rows: int, k: int) -> ops.Tensor:
    """Random bytes: the time of a product does not depend on the values, other than that they are not subnormal."""
    form = ops.BLOCK_TYPES[name]
    blocks = np.random.default_rng(0).integers(0x20, 0x40, (16 * k // form.values, form.bytes), np.uint8)
    tensor = ops.tensor(name, (rows, k), tiled=True)
    for row in range(0, rows, 16):
        ops.tile(tensor, blocks.tobytes(), first_row=row, rows=16)
    return tensor


def rows_of(n: int, k: int) -> ops.Tensor:
    tensor = ops.tensor("F32", (n, k))
    tensor.numpy()[...] = 0.01 * np.random.default_rng(1).standard_normal((n, k), np.float32)
    return tensor


def best_seconds(call: Callable[[], object], at_least: float = 0.3) -> float:
    clock = time.process_time if ops.threads() == 1 else time.perf_counter
    times: list[float] = []
    end = time.perf_counter() + at_least
    while len(times) < 3 or time.perf_counter() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def decode(name: str) -> tuple[float, float]:
    """GB/s of one column, and of reading alone."""
    rows = DECODE_BYTES // ops.tiled_bytes(name, 16, HIDDEN) * 16
    w, x, out = weight(name, rows, HIDDEN), rows_of(1, HIDDEN), ops.tensor("F32", (1, rows))
    rates, limits = [], []
    for _ in range(ROUNDS):
        limits.append(max(ops.measure_read(ops.Memory(256 << 20), 0.2)) / 1e9)
        rates.append(w.nbytes / best_seconds(lambda: ops.matmul((out,), x, (w,))) / 1e9)
    return max(rates), max(limits)


def tiling(name: str) -> tuple[float, float]:
    """GB/s of tiling by one thread, and of reading memory by one."""
    form, threads = ops.BLOCK_TYPES[name], ops.threads()
    row_bytes = HIDDEN // form.values * form.bytes
    rows = PIECE_BYTES // row_bytes // 16 * 16
    plain = np.random.default_rng(0).integers(0, 256, rows * row_bytes, np.uint8)
    places = [ops.tensor(name, (rows, HIDDEN), tiled=True) for _ in range(DECODE_BYTES // plain.nbytes)]

    def piecewise() -> None:
        for place in places:
            ops.tile(place, plain)

    ops.set_threads(1)
    seconds, limit = best_seconds(piecewise), max(ops.measure_read(ops.Memory(256 << 20), 0.2))
    ops.set_threads(threads)
    return len(places) * plain.nbytes / seconds / 1e9, limit / 1e9


def products(name: str, n: int, exact: bool) -> float:
    """G products/s of n columns over weights of 1024 rows."""
    w, x, out = weight(name, 1024, HIDDEN), rows_of(n, HIDDEN), ops.tensor("F32", (n, 1024))
    seconds = min(best_seconds(lambda: ops.matmul((out,), x, (w,), exact=exact)) for _ in range(ROUNDS))
    return n * 1024 * HIDDEN / seconds / 1e9


def experts(name: str, n: int, count: int = 128) -> tuple[float, float]:
    """G products/s and GB/s of the experts of n tokens, as in a Qwen3-30B-A3B layer."""
    table = ops.ExpertTable(count, HIDDEN, INTERMEDIATE)
    parts = []
    for e in range(count):
        parts = [weight(name, *shape) for shape in SHAPES]
        table.set(e, *parts)
    random = np.random.default_rng(2)
    x, slots, ids = rows_of(n, HIDDEN), ops.tensor("F32", (n * SLOTS, HIDDEN)), ops.tensor("I32", (n, SLOTS))

    def step() -> None:
        ids.numpy()[...] = np.argsort(random.random((n, count)), axis=1)[:, :SLOTS]
        ops.moe(slots, x, table, ids)

    seconds = best_seconds(step, 1.0)
    return n * SLOTS * 3 * HIDDEN * INTERMEDIATE / seconds / 1e9, SLOTS * sum(w.nbytes for w in parts) / seconds / 1e9


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=ops.threads())
    parser.add_argument("--no-csv", action="store_true", help="print only")
    options = parser.parse_args()
    ops.set_threads(options.threads)
    machine = [processor(), ops.isa(), ops.threads(), commit()]
    rows: list[list[object]] = []

    def report(what: str, name: str, n: int, rate: float, limit: float, unit: str) -> None:
        rows.append([*machine, what, name, n, f"{rate:.1f}", f"{limit:.1f}", unit])
        print(f"{what:14} {name:6} {n:4} columns {rate:7.1f} of {limit:7.1f} {unit} ({rate / limit:.0%})", flush=True)

    peak = max(max(ops.measure_dot(0.5)) for _ in range(ROUNDS)) / 1e9
    for name in ops.BLOCK_TYPES:
        report("decode", name, 1, *decode(name), "GB/s")
    for name in ops.BLOCK_TYPES:
        report("tiling", name, 1, *tiling(name), "GB/s")
    for name in ops.BLOCK_TYPES:
        for n in (1, 2, 4, 8, 16, 32, 64):
            report("products", name, n, products(name, n, exact=False), peak, "G/s")
    report("exact", "Q4_K", 32, products("Q4_K", 32, exact=True), peak, "G/s")
    for name in ("Q4_K", "MXFP4"):
        report("experts", name, 1, experts(name, 1)[1], max(ops.measure_read(ops.Memory(256 << 20), 0.5)) / 1e9, "GB/s")
        for n in (32, 128, 512):
            report("experts", name, n, experts(name, n)[0], peak, "G/s")
    if options.no_csv:
        return
    slug = re.sub(r"[^a-z0-9]+", "-", processor().lower().replace("(r)", "")).strip("-")
    path = Path(__file__).parent / "results" / f"kernels-{slug}.csv"
    path.parent.mkdir(exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *rows] if new else rows)


if __name__ == "__main__":
    main()
