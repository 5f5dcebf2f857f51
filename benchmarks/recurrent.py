"""Rates of recurrent mixers beside what the machine reads and multiplies: `python benchmarks/recurrent.py [--rounds 5]`

Decode: one token through the states of all layers of a model's shape, which no cache holds; bytes read and written a
second, beside those that `measure_read` reads in the same round. Prefill: 512 tokens of one sequence through one layer;
floating point operations a second (the delta rule has 7 for a number of the state and token, Mamba2 5), beside those of
an F32 product with as many columns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from colibri import ops


class Shape(NamedTuple):
    """Layers with a state, heads, key heads or groups, sizes of a key and of a value, taps of the convolution."""

    name: str
    kind: str
    layers: int
    heads: int
    key_heads: int
    key_size: int
    value_size: int


SHAPES = [
    Shape("Qwen3.6-35B-A3B", "delta", 30, 32, 16, 128, 128),
    Shape("Nemotron-3-Nano", "mamba", 23, 64, 8, 128, 64),
    Shape("Granite-4-H-Small", "mamba", 36, 128, 1, 128, 64),
]
TOKENS = 512


def random(*shape: int) -> ops.Tensor:
    """A tensor of numbers about one."""
    tensor = ops.tensor("F32", shape)
    tensor.numpy()[...] = np.random.default_rng(sum(shape)).standard_normal(shape)
    return tensor


def batch(first: int, last: int) -> ops.Batch:
    """Positions first..last of one sequence."""
    positions = np.arange(first, last, dtype=np.int32)
    return ops.Batch(positions, np.zeros_like(positions), [np.arange(8, dtype=np.int32)], np.zeros(1, np.int32))


class Layer:
    """One shape's rows for `tokens` tokens, and what runs them through a layer's states."""

    def __init__(self, shape: Shape, tokens: int) -> None:
        keys, values = shape.key_heads * shape.key_size, shape.heads * shape.value_size
        self.shape, self.mixed, self.rows = shape, random(tokens, 2 * keys + values), random(tokens, 2 * keys + values)
        self.out, self.gates, self.z = (random(tokens, width) for width in (values, shape.heads, values))
        decay, bias = random(shape.heads), random(shape.heads)
        decay.numpy()[...] = -1
        self.delta = ops.DeltaRule(decay, bias, shape.key_heads, shape.key_size)
        self.space = ops.StateSpace(decay, bias, shape.key_heads, shape.key_size, bias)
        self.convolution = ops.Convolution(random(4, 2 * keys + values), None, True)
        self.groups = shape.heads if shape.kind == "delta" else shape.key_heads
        self.norm = ops.Norm(random(values // self.groups), 1e-6)

    def states(self) -> tuple[ops.Tensor, ops.Tensor]:
        """Of the heads and of the convolution, for one sequence."""
        s = self.shape
        head = ops.tensor("F32", (1, s.heads, s.key_size * s.value_size))
        head.numpy()[...] = 0
        return head, random(1, 3, self.rows.shape[1])

    def recur(self, state: ops.Tensor, step: ops.Batch) -> None:
        """The states of the heads alone."""
        if self.shape.kind == "delta":
            assert ops.delta_net(self.out, self.rows, self.gates, self.gates, state, step, self.delta)
        else:
            assert ops.mamba2(self.out, self.rows, self.gates, state, step, self.space)

    def all(self, state: ops.Tensor, inputs: ops.Tensor, step: ops.Batch) -> None:
        """With the convolution before and the norm behind."""
        assert ops.short_conv(self.rows, self.mixed, inputs, step, self.convolution)
        self.recur(state, step)
        assert ops.gated_norm(self.out, self.out, self.z, self.norm, self.groups, self.shape.kind == "mamba")


def seconds(call: Callable[[], object], repeat: int) -> float:
    """The median of `repeat` calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def decode(shape: Shape, rounds: int, memory: ops.Memory) -> None:
    """One token through every layer; ratios to reading of the same round."""
    layer, step = Layer(shape, 1), batch(5, 6)
    states = [layer.states() for _ in range(shape.layers)]
    moved = 2e-9 * sum(head.nbytes for head, _ in states)
    results = []
    for _ in range(rounds):
        read = statistics.median(ops.measure_read(memory, 0.3)) / 1e9
        alone = moved / seconds(lambda: [layer.recur(head, step) for head, _ in states], 20)
        every = moved / seconds(lambda: [layer.all(head, inputs, step) for head, inputs in states], 20)
        results.append((read, alone, every, alone / read, every / read))
    read, alone, every, ratio, ratio_all = (statistics.median(column) for column in zip(*results, strict=True))
    print(f"{shape.name:20} decode  {moved * 500:6.1f} MB  read {read:5.1f} GB/s  states {alone:5.1f} ({ratio:.2f})"
          f"  with convolution and norm {every:5.1f} ({ratio_all:.2f})")  # fmt: skip


def prefill(shape: Shape, rounds: int) -> None:
    """512 tokens through one layer; ratios to an F32 product of the same round."""
    layer, step = Layer(shape, TOKENS), batch(0, TOKENS)
    head, inputs = layer.states()
    numbers = TOKENS * shape.heads * shape.key_size * shape.value_size
    weight, x, y = ops.tensor("F32", (1024, 1024), tiled=True), random(TOKENS, 1024), random(TOKENS, 1024)
    results = []
    for _ in range(rounds):
        product = 2e-9 * TOKENS * 1024**2 / seconds(lambda: ops.matmul((y,), x, (weight,), True), 3)
        alone, every = seconds(lambda: layer.recur(head, step), 3), seconds(lambda: layer.all(head, inputs, step), 3)
        rate = 1e-9 * numbers * (7 if shape.kind == "delta" else 5) / alone
        results.append((product, rate, rate / product, 1e3 * alone, 1e3 * every))
    product, rate, ratio, alone, every = (statistics.median(column) for column in zip(*results, strict=True))
    print(f"{shape.name:20} prefill {TOKENS} tokens  product {product:5.1f} GFLOP/s  states {rate:5.1f} ({ratio:.2f})"
          f"  {alone:.2f} ms a layer, with convolution and norm {every:.2f}")  # fmt: skip


def main() -> None:
    """One line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(ops.isa(), ops.threads(), "threads")
    memory = ops.Memory(512 << 20)
    for shape in SHAPES:
        decode(shape, rounds, memory)
        prefill(shape, rounds)


if __name__ == "__main__":
    main()
