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


def random_weight(name: str, rows: int, k: int, seed: int = 0) -> reference.Weight:
    """Any bits in the integers, scales such that values are about one."""
    random, form = np.random.default_rng(seed), ops.BLOCK_TYPES[name]
    if form.values == 1:
        values = random.standard_normal((rows, k), np.float32)
        if name == "BF16":
            return reference.Weight(name, (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(), (rows, k))
        return reference.Weight(name, values.astype(np.float16 if name == "F16" else np.float32).tobytes(), (rows, k))
    blocks = random.integers(0, 256, (rows * k // form.values, form.bytes), np.uint8)
    step = {"Q4_0": 0.2, "Q8_0": 0.015, "Q4_K": 0.003, "Q5_K": 0.0015, "Q6_K": 0.0005, "MXFP4": 0}[name]
    halves = (step * random.uniform(0.5, 1.5, (len(blocks), 2))).astype(np.float16).view(np.uint8)  # (blocks, 4)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(124, 128, len(blocks))
    elif name == "Q6_K":
        blocks[:, -2:] = halves[:, :2]
    else:
        places = 4 if name in ("Q4_K", "Q5_K") else 2
        blocks[:, :places] = halves[:, :places]
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
