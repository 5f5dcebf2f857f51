"""Random weights in every block format, for the tests of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import reference
from numpy.typing import NDArray

from colibri import ops
from colibri.ops import _native

FORMATS = list(ops.BLOCK_TYPES)
OF_GGUF = [name for name, form in ops.BLOCK_TYPES.items() if form.code >= 0]
# Where a block has half floats, and which ones make values of about one.
HALVES: dict[str, dict[int, float]] = {
    "Q4_0": {0: 0.2}, "Q4_1": {0: 0.2, 2: -1.5}, "Q5_0": {0: 0.1}, "Q5_1": {0: 0.1, 2: -1.5}, "Q8_0": {0: 0.015},
    "IQ4_NL": {0: 0.015}, "IQ4_XS": {0: 0.0008}, "Q2_K": {80: 0.1, 82: 0.15}, "Q3_K": {108: 0.02},
    "Q4_K": {0: 0.003, 2: 0.003}, "Q5_K": {0: 0.0015, 2: 0.0015}, "Q6_K": {208: 0.0005},
    "IQ3_S": {0: 0.006}, "IQ3_XXS": {0: 0.007}, "IQ2_S": {0: 0.02}, "IQ2_XS": {0: 0.02}, "IQ2_XXS": {0: 0.02},
    "IQ1_S": {0: 0.1}, "TQ1_0": {52: 1}, "TQ2_0": {64: 0.8},
}  # fmt: skip

# How many floats a block begins with, and which ones make values of about one.
FLOATS = {"INT4": (1, 0.2), "INT5": (1, 0.1), "INT8": (1, 0.015), "FP4": (2, 0.4)}

EXTREMES = np.array([65504, -65504, 6e-8, -6e-8, 6e-5, -0.0, 0, 1], np.float16)


def put_split_half(blocks: NDArray[np.uint8], halves: NDArray[np.float16]) -> None:
    """The scale of IQ1_M, four bits in each of the last four numbers of 16."""
    bits = halves.view(np.uint16)
    for i in range(4):
        blocks[:, 49 + 2 * i] = (blocks[:, 49 + 2 * i] & 15) | ((bits >> 4 * i & 15) << 4).astype(np.uint8)


def random_weight(name: str, rows: int, k: int, seed: int = 0) -> reference.Weight:
    """Any bits in the integers, scales such that values are about one."""
    random, form = np.random.default_rng(seed), ops.BLOCK_TYPES[name]
    if form.values == 1:
        values = random.standard_normal((rows, k), np.float32)
        if name == "BF16":
            return reference.Weight(name, (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(), (rows, k))
        return reference.Weight(name, values.astype(np.float16 if name == "F16" else np.float32).tobytes(), (rows, k))
    blocks = random.integers(0, 256, (rows * k // form.values, form.bytes), np.uint8)
    for at, step in HALVES.get(name, {}).items():
        halves = (step * random.uniform(0.5, 1.5, len(blocks))).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "F8_E4M3":
        blocks[:, :64] -= blocks[:, :64] & 127 == 127  # no NaN
        blocks[:, 64:] = random.uniform(0.01, 0.02, (len(blocks), 1)).astype(np.float32).view(np.uint8)
    if name in FLOATS:
        count, step = FLOATS[name]
        scales = (step * random.uniform(0.5, 1.5, (len(blocks), count))).astype(np.float32)
        blocks[:, : 4 * count] = scales.view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(124, 128, len(blocks))
    if name == "NVFP4":
        blocks[:, :4] = random.integers(40, 56, (len(blocks), 4))
    if name == "IQ1_M":
        put_split_half(blocks, (0.1 * random.uniform(0.5, 1.5, len(blocks))).astype(np.float16))
    return reference.Weight(name, blocks.tobytes(), (rows, k))


def extreme_weight(name: str, rows: int, k: int, seed: int = 0) -> reference.Weight:
    """Blocks of all zeros, of all ones and of any bits, with the largest and the smallest scales there are."""
    random = np.random.default_rng(seed)
    blocks = np.frombuffer(random_weight(name, rows, k, seed).data, np.uint8).reshape(-1, ops.BLOCK_TYPES[name].bytes)
    blocks = blocks.copy()
    blocks[::3] = 0
    blocks[1::3] = 255
    for at in HALVES.get(name, {}):
        halves = random.choice(EXTREMES, len(blocks))
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = random.choice([0, 1, 2, 254], len(blocks))
    if name == "NVFP4":
        blocks[:, :4] = random.integers(0, 256, (len(blocks), 4))
        blocks[::2, :4] = random.choice([0, 1, 7, 8, 126, 127, 128, 255], (len(blocks[::2]), 4))
    if name == "IQ1_M":
        put_split_half(blocks, random.choice(EXTREMES, len(blocks)))
    return reference.Weight(name, blocks.tobytes(), (rows, k))


def tiled(weight: reference.Weight) -> ops.Tensor:
    tensor = ops.tensor(weight.type, weight.shape, tiled=True)
    ops.tile(tensor, weight.data)
    return tensor


def plain(array: NDArray[Any]) -> ops.Tensor:
    tensor = ops.tensor({"float32": "F32", "int32": "I32"}[array.dtype.name], array.shape)
    tensor.numpy()[...] = array
    return tensor


# Every set of the build: tests of those that this processor lacks are counted as skipped.
SETS = [
    pytest.param(isa, marks=pytest.mark.skipif(isa not in ops.isas(), reason=f"this processor has no {isa}"))
    for isa in ops.isas_of_build()
]


def instruction_sets() -> Iterator[str]:
    """Makes each of this processor's the chosen one, and puts the first choice back."""
    chosen = ops.isa()
    try:
        for isa in ops.isas():
            _native.use_isa(isa)
            yield isa
    finally:
        _native.use_isa(chosen)


def same_everywhere(run: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """The result of `run`, after checking that every instruction set and thread count gives its bits."""
    threads, results = ops.threads(), []
    try:
        for _ in instruction_sets():
            for count in (1, 2, 3, 7):
                ops.set_threads(count)
                results.append(run())
    finally:
        ops.set_threads(threads)
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return results[0]


def close(found: NDArray[np.float32], expected: NDArray[np.float32], error: float) -> None:
    """Every value within `error` of the root mean square of the expected ones."""
    size = float(np.sqrt(np.mean(expected.astype(np.float64) ** 2)))
    assert np.abs(found - expected).max() <= error * size
