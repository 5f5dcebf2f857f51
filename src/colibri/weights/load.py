"""Brings tensors into memory: explicit reads into a small staging buffer, tiled from there.

The plain bytes of a tensor are never kept, and a file is never mapped.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from colibri import ops
from colibri.errors import UnsupportedError
from colibri.weights.file_reader import FileReader
from colibri.weights.row_order import STORED_AT_ONCE
from colibri.weights.rows import fetched_by, read_rows
from colibri.weights.tensor_info import TensorInfo

STAGING_BYTES: Final = 2 << 20  # large enough for the disk, small enough to stay in the second-level cache's reach
_TILE_ROWS: Final = 16

Bytes = npt.NDArray[np.uint8]


def load_plain(info: TensorInfo, reader: FileReader) -> ops.Tensor:
    """Read a small F32, F16 or BF16 tensor of any shape as plain F32: norms and biases."""
    if info.type not in ("F32", "F16", "BF16"):
        raise UnsupportedError(f"{info.file}: tensor {info.name} is of type {info.type}; F32, F16 or BF16 is expected")
    if info.expert_stride is not None:
        raise ValueError(f"{info.name} is a view with gaps; read it expert by expert")
    fetch = fetched_by(reader)
    if info.strides is not None:
        raw = np.concatenate([read_rows(row, 0, 1, fetch) for row in _vectors(info)])
    elif len(info.shape) == 1:
        raw = read_rows(info, 0, info.shape[0], fetch, k=1)
    else:
        raw = read_rows(info, 0, math.prod(info.shape[:-1]), fetch)
    tensor = ops.tensor("F32", info.shape)
    tensor.numpy()[...] = transformed(info, to_float32(raw.reshape(-1), info.type)).reshape(info.shape)
    return tensor


def _vectors(info: TensorInfo) -> list[TensorInfo]:
    """The rows of a merged bias, or the vector itself."""
    return [info] if len(info.shape) == 1 else [info.expert(row) for row in range(info.shape[0])]


def transformed(info: TensorInfo, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The values of a tensor as the engine and GGUF files have them."""
    return values if info.transform is None else TRANSFORMS[info.transform](values)


TRANSFORMS: Final[dict[str, Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]]] = {
    "plus_one": lambda values: values + np.float32(1),  # norms that multiply by 1 + weight
    "negative_exponential": lambda values: -np.exp(values),  # decays that are stored as logarithms
}


def read_tiles(info: TensorInfo, tensor: ops.Tensor, reader: FileReader) -> None:
    """Fill a tiled tensor of the same type and shape (rows, k) from the file, a few rows at a time.

    Raises FileError when the file cannot be read whole.
    """
    rows, _ = info.shape
    step = _TILE_ROWS * max(1, STAGING_BYTES // (_TILE_ROWS * info.row_bytes))
    most = min(step, rows) * (1 if info.order is None else STORED_AT_ONCE)
    staging = np.frombuffer(mmap.mmap(-1, most * info.row_bytes), np.uint8)  # goes back to the system at once

    def fetch(file: Path, offset: int, nbytes: int) -> Bytes:
        piece = staging[:nbytes] if nbytes <= len(staging) else np.empty(nbytes, np.uint8)
        reader.read_into(file, offset, piece)
        return piece

    for first in range(0, rows, step):
        count = min(step, rows - first)
        piece = read_rows(info, first, count, fetch)
        ops.tile(tensor, piece.reshape(-1).data, first_row=first, rows=count)


def to_float32(raw: npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
    """The values of plain F32, F16 or BF16 bytes (little endian)."""
    if type_name == "F32":
        return raw.view("<f4").astype(np.float32, copy=False)
    if type_name == "F16":
        return raw.view("<f2").astype(np.float32)
    return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
