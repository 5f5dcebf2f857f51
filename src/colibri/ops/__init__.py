"""The arithmetic of the engine: tensors in native memory and the ops on them.

The only importer of the native module. tests/helpers/reference.py says in numpy what each op computes.
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
)
from ._native import (
    Batch as Batch,
)
from ._native import (
    ExpertTable as ExpertTable,
)
from ._native import (
    Memory as Memory,
)
from ._native import (
    Tensor as Tensor,
)
from ._native import (
    add as add,
)
from ._native import (
    attention as attention,
)
from ._native import (
    combine as combine,
)
from ._native import (
    dequantize as dequantize,
)
from ._native import (
    embed as embed,
)
from ._native import (
    embed_positions as embed_positions,
)
from ._native import (
    finite as finite,
)
from ._native import (
    isa as isa,
)
from ._native import (
    isas as isas,
)
from ._native import (
    matmul as matmul,
)
from ._native import (
    measure_dot as measure_dot,
)
from ._native import (
    measure_read as measure_read,
)
from ._native import (
    moe as moe,
)
from ._native import (
    norm as norm,
)
from ._native import (
    quantize as quantize,
)
from ._native import (
    router as router,
)
from ._native import (
    sample as sample,
)
from ._native import (
    tensor as tensor,
)
from ._native import (
    threads as threads,
)
from ._native import (
    tile as tile,
)
from ._native import (
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
