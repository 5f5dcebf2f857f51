"""Latent attention at real shapes: `python benchmarks/latent.py [--threads 2]`

For each shape, one layer's attention of one token at several contexts, the matrices of heads before and after it, and
512 tokens of a prompt: microseconds, products a second, and what is read of the cache or of the matrices. The least of
several runs, on this process's processor time where one thread works.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from colibri import ops

LATENT, ROPE, NOPE = 512, 64, 128


class Shape(NamedTuple):
    """Query heads of a model."""

    name: str
    heads: int


SHAPES = [Shape("DeepSeek-V2-Lite", 16), Shape("GLM-4.7-Flash", 20), Shape("Kimi-K2", 64), Shape("DeepSeek-V3", 128)]


def random(*shape: int) -> ops.Tensor:
    """A tensor of numbers about one."""
    tensor = ops.tensor("F32", shape)
    tensor.numpy()[...] = np.random.default_rng(0).standard_normal(shape, np.float32)
    return tensor


def seconds(call: Callable[[], object], rounds: int) -> float:
    """The least time of a call."""
    clock, times = time.process_time if ops.threads() == 1 else time.perf_counter, []
    for _ in range(rounds):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def attention(heads: int, tokens: int, context: int, kind: str, rounds: int) -> str:
    """The last `tokens` of a context."""
    width, key = (LATENT + ROPE), {"f16": "F16", "q8_0": "U8"}[kind]
    stored = width if kind == "f16" else width + 2 * width // 32
    blocks = -(-context // ops.KV_BLOCK)
    keys = ops.tensor(key, (blocks, 1, stored, ops.KV_BLOCK))
    keys.numpy()[...] = 1
    q, k, out = random(tokens, heads * width), random(tokens, width), ops.tensor("F32", (tokens, heads * LATENT))
    positions = np.arange(context - tokens, context, dtype=np.int32)
    batch = ops.Batch(positions, np.zeros_like(positions), [np.arange(blocks, dtype=np.int32)])
    rule = ops.AttentionRule(scale=192**-0.5)
    took = seconds(lambda: ops.attention(out, q, k, None, keys, None, batch, rule), rounds)
    products = heads * (width + LATENT) * sum(range(context - tokens + 1, context + 1))
    return f"{took * 1e6:9.0f} us {products / took / 1e9:6.1f} G products/s, cache {keys.nbytes / took / 1e9:5.1f} GB/s"


def matrices(heads: int, tokens: int, rounds: int) -> str:
    """The queries into the space of the latent, and the answers out of it, in Q8_0."""
    into, out_of = (ops.tensor("Q8_0", (heads * rows, k), tiled=True) for rows, k in ((LATENT, NOPE), (NOPE, LATENT)))
    q, answers = random(tokens, heads * (NOPE + ROPE)), random(tokens, heads * LATENT)
    absorbed, out = (ops.tensor("F32", (tokens, heads * w)) for w in (LATENT + ROPE, NOPE))

    def both() -> None:
        ops.head_matmul(absorbed, q, into, heads, rest=True)
        ops.head_matmul(out, answers, out_of, heads)

    took, size = seconds(both, rounds), into.nbytes + out_of.nbytes
    products = tokens * heads * 2 * LATENT * NOPE
    return f"{took * 1e6:9.0f} us {products / took / 1e9:6.1f} G products/s, weights {size / took / 1e9:5.1f} GB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=ops.threads())
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    ops.set_threads(arguments.threads)
    print(f"{ops.isa()}, {ops.threads()} threads")
    for name, heads in SHAPES:
        for tokens in (1, 512):
            print(f"{name:17} matrices, {tokens:3} tokens      : {matrices(heads, tokens, arguments.rounds)}")
        for kind in ("f16", "q8_0"):
            for tokens, context in ((1, 1), (1, 1024), (1, 4096), (512, 512)):
                rate = attention(heads, tokens, context, kind, arguments.rounds if tokens == 1 else 3)
                print(f"{name:17} {kind:4} {tokens:3} tokens at {context:4}: {rate}")


if __name__ == "__main__":
    main()
