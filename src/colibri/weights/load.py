"""Brings tensors into memory: explicit reads into a small staging buffer, tiled from there.

The plain bytes of a tensor are never kept, and a file is never mapped.
"""

from __future__ import annotations

import math
import mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from colibri import ops
from colibri.errors import UnsupportedError
from colibri.weights.file_reader import FileReader
from colibri.weights.tensor_info import TensorInfo

STAGING_BYTES: Final = 2 << 20  # large enough for the disk, small enough to stay in the second-level cache's reach
_TILE_ROWS: Final = 16


def load_plain(info: TensorInfo, reader: FileReader) -> ops.Tensor:
    """Read a small F32, F16 or BF16 tensor of any shape as plain F32: norms and biases."""
    if info.type not in ("F32", "F16", "BF16"):
        raise UnsupportedError(f"{info.file}: tensor {info.name} is of type {info.type}; F32, F16 or BF16 is expected")
    if info.expert_stride is not None:
        raise ValueError(f"{info.name} is a view with gaps; read it expert by expert")
    raw = np.empty(info.nbytes, np.uint8)
    reader.read_into(info.file, info.offset, raw)
    if info.head_rows:
        raw = _half_split(raw, info.nbytes // info.shape[0], info.head_rows)
    tensor = ops.tensor("F32", info.shape)
    tensor.numpy()[...] = to_float32(raw, info.type).reshape(info.shape)
    return tensor


def read_tiles(info: TensorInfo, tensor: ops.Tensor, reader: FileReader) -> None:
    """Fill a tiled tensor of the same type and shape (rows, k) from the file, a few rows at a time.

    Raises FileError when the file cannot be read whole.
    """
    rows, _ = info.shape
    row_bytes = info.row_bytes
    step = math.lcm(_TILE_ROWS, info.head_rows or 1)
    step *= max(1, STAGING_BYTES // (step * row_bytes))
    staging = np.frombuffer(mmap.mmap(-1, min(step, rows) * row_bytes), np.uint8)  # goes back to the system at once
    for first in range(0, rows, step):
        count = min(step, rows - first)
        piece = staging[: count * row_bytes]
        reader.read_into(info.file, info.offset + first * row_bytes, piece)
        if info.head_rows:
            piece = _half_split(piece, row_bytes, info.head_rows)
        ops.tile(tensor, piece.data, first_row=first, rows=count)


def to_float32(raw: npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
    """The values of plain F32, F16 or BF16 bytes (little endian)."""
    if type_name == "F32":
        return raw.view("<f4").astype(np.float32, copy=False)
    if type_name == "F16":
        return raw.view("<f2").astype(np.float32)
    return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _half_split(raw: npt.NDArray[np.uint8], row_bytes: int, head_rows: int) -> npt.NDArray[np.uint8]:
    """Rows 0, h, 1, h+1, ... of every head back in the order 0, 1, ..., h, h+1, ... (h = head_rows / 2)."""
    pairs: npt.NDArray[Any] = raw.reshape(-1, head_rows // 2, 2, row_bytes)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)
