"""The arithmetic of the engine: tensors in native memory and the ops on them.

The only importer of the native module. tests/helpers/reference.py says in numpy what each op computes;
`norm_matmul` and `route` compute what `norm` and then `matmul` and `router` do. Ops that return a bool say False, and
leave out what would follow, where a value is not finite.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from colibri.config import MAX_THREADS
from colibri.errors import ArgumentError, UnsupportedError
from colibri.machine import cpus

from . import _native
from ._native import (
    KV_BLOCK as KV_BLOCK,
    Activation as Activation,
    AttentionRule as AttentionRule,
    Batch as Batch,
    Convolution as Convolution,
    DeltaRule as DeltaRule,
    ExpertTable as ExpertTable,
    Memory as Memory,
    Norm as Norm,
    Routing as Routing,
    StateSpace as StateSpace,
    Tensor as Tensor,
    add as add,
    attention as attention,
    combine as combine,
    delta_net as delta_net,
    dequantize as dequantize,
    embed as embed,
    embed_positions as embed_positions,
    gated_norm as gated_norm,
    head_matmul as head_matmul,
    isa as isa,
    isas as isas,
    isas_of_build as isas_of_build,
    mamba2 as mamba2,
    matmul as matmul,
    measure_dot as measure_dot,
    measure_handover as measure_handover,
    measure_read as measure_read,
    moe as moe,
    norm as norm,
    norm_matmul as norm_matmul,
    quantize as quantize,
    route as route,
    router as router,
    sample as sample,
    short_conv as short_conv,
    sigmoid_gate as sigmoid_gate,
    soft_cap as soft_cap,
    tensor as tensor,
    threads as threads,
    tile as tile,
    tiled_bytes as tiled_bytes,
)


class BlockType(NamedTuple):
    """A block format: GGUF's type code, values and bytes a block, bytes of a block column in a tile of 16 rows."""

    name: str
    code: int
    values: int
    bytes: int
    tile_bytes: int
    activation: str  # format of the other factor in fast mode: "f32", "q32", "q256"


BLOCK_TYPES: dict[str, BlockType] = {entry[0]: BlockType(*entry) for entry in _native.block_types()}


def set_threads(count: int) -> None:
    """Compute with so many threads, which give way to each other when they are more than the processors."""
    _native.set_threads(count, cpus())


def _configure() -> None:
    """Obey COLIBRI_ISA and COLIBRI_THREADS; both change speed only."""
    if name := os.environ.get("COLIBRI_ISA"):
        try:
            _native.use_isa(name)
        except ValueError as error:
            raise UnsupportedError(f"COLIBRI_ISA: {error}") from None
    count = min(cpus(), MAX_THREADS)
    if text := os.environ.get("COLIBRI_THREADS"):
        count = int(text) if text.isdecimal() and len(text) < 10 else 0
        if not 1 <= count <= MAX_THREADS:
            raise ArgumentError(f"COLIBRI_THREADS: found {text!r:.40}, expected an integer within 1..{MAX_THREADS}")
    set_threads(count)


_configure()
