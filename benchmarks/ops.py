"""Cost of a call of each small op, and rates of attention: `python benchmarks/ops.py`.

Best of many runs on this process's processor time where one thread works, on the clock where two do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product

import numpy as np

from colibri import ops
from colibri.machine import cpus


def best_ns(call: Callable[[], object], repeat: int = 500, rounds: int = 40) -> float:
    """Nanoseconds of one call, the least of `rounds` means."""
    means = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(repeat):
            call()
        means.append((time.perf_counter_ns() - start) / repeat)
    return min(means)


def calls() -> dict[str, Callable[[], object]]:
    """Each op on operands so small that the call is most of the time."""
    row, out, weight = ops.tensor("F32", (1, 16)), ops.tensor("F32", (1, 16)), ops.tensor("F32", (16,))
    ids, weights, logits = ops.tensor("I32", (1, 2)), ops.tensor("F32", (1, 2)), ops.tensor("F32", (1, 8))
    tiles = ops.tensor("F32", (16, 16), tiled=True)
    position, sequence, tables = np.array([3], np.int32), np.zeros(1, np.int32), [np.zeros(1, np.int32)]
    q, k, v = (ops.tensor("F32", (1, 16)) for _ in range(3))
    batch, angles = ops.Batch(position, sequence, tables), ops.tensor("F32", (16, 4))
    keys, values = ops.tensor("F16", (1, 1, 16, ops.KV_BLOCK)), ops.tensor("F16", (1, 1, ops.KV_BLOCK, 16))
    norm, rule = ops.Norm(weight, 1e-6), ops.AttentionRule(angles, angles)
    routing = ops.Routing("softmax", renormalize=True)
    return {
        "rows": lambda: row.rows(0, 1),
        "numpy": row.numpy,
        "add": lambda: ops.add(out, row),
        "norm": lambda: ops.norm(out, row, norm),
        "router": lambda: ops.router(ids, weights, logits, routing),
        "Batch": lambda: ops.Batch(position, sequence, tables),
        "attention": lambda: ops.attention(out, q, k, v, keys, values, batch, rule),
        "matmul": lambda: ops.matmul((out,), row, (tiles,), True),
    }


def router(tokens: int, experts: int, chosen: int, score: str) -> Callable[[], object]:
    """The choice for a batch: one op from logits to ids and weights."""
    ids, weights = ops.tensor("I32", (tokens, chosen)), ops.tensor("F32", (tokens, chosen))
    logits = ops.tensor("F32", (tokens, experts))
    logits.numpy()[...] = np.random.default_rng(0).normal(0, 2, logits.shape)
    routing = ops.Routing(score, renormalize=True)
    return lambda: ops.router(ids, weights, logits, routing)


def attention(heads: int, kv_heads: int, dim: int, tokens: int, context: int, threads: int, width: int) -> float:
    """Seconds of attention of the last `tokens` of a context; width: bytes of a key in the cache."""
    ops.set_threads(threads)
    blocks = -(-context // ops.KV_BLOCK)
    kind, width = ("F16", dim) if width == 2 * dim else ("U8", width)
    keys = ops.tensor(kind, (blocks, kv_heads, width, ops.KV_BLOCK))
    values = ops.tensor(kind, (blocks, kv_heads, ops.KV_BLOCK, width))
    keys.numpy()[...] = values.numpy()[...] = 1
    q, out = ops.tensor("F32", (tokens, heads * dim)), ops.tensor("F32", (tokens, heads * dim))
    k, v = (ops.tensor("F32", (tokens, kv_heads * dim)) for _ in range(2))
    q.numpy()[...] = np.random.default_rng(0).standard_normal(q.shape)
    positions = np.arange(context - tokens, context, dtype=np.int32)
    batch = ops.Batch(positions, np.zeros(tokens, np.int32), [np.arange(blocks, dtype=np.int32)])
    rule = ops.AttentionRule(scale=dim**-0.5)
    clock = time.process_time if threads == 1 else time.perf_counter
    times = []
    for _ in range(4 if tokens > 1 else 20):
        start = clock()
        ops.attention(out, q, k, v, keys, values, batch, rule)
        times.append(clock() - start)
    return min(times)


def main() -> None:
    print(f"{ops.isa()}, {cpus()} processors")
    for name, call in calls().items():
        print(f"{name:12} {best_ns(call):8.0f} ns")
    for threads in sorted({1, min(2, cpus())}):
        ops.set_threads(threads)
        for score in ("softmax", "sigmoid"):
            microseconds = best_ns(router(64, 128, 8, score), repeat=100) / 1e3
            print(f"router, 64 tokens, 8 of 128 experts, {score}, {threads} threads: {microseconds:6.1f} us")
    for name, heads, kv_heads, dim in [("qwen3moe", 32, 4, 128), ("olmoe", 16, 16, 128), ("gpt-oss", 64, 8, 64)]:
        cases = product([(512, 512), (1, 512), (1, 8192)], sorted({1, min(2, cpus())}), ("f16", "q8_0"))
        for (tokens, context), threads, kind in cases:
            width = 2 * dim if kind == "f16" else dim + dim // 16
            seconds = attention(heads, kv_heads, dim, tokens, context, threads, width)
            products = 2 * heads * dim * sum(range(context - tokens + 1, context + 1))
            cache = 2 * context * kv_heads * width
            where = f"{name:9} {tokens:4} tokens at {context:5}, {kind:4}, {threads} threads"
            rates = f"{products / seconds / 1e9:6.1f} G products/s, cache {cache / seconds / 1e9:5.1f} GB/s"
            print(f"{where}: {seconds * 1e6:9.0f} us {rates}")


if __name__ == "__main__":
    main()
