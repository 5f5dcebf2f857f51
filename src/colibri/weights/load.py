"""Brings tensors into memory: explicit reads into a small staging buffer, tiled from there.

The plain bytes of a tensor are never kept, and a file is never mapped.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from colibri import ops
from colibri.errors import UnsupportedError
from colibri.weights.block_types import BY_NAME
from colibri.weights.file_reader import FileReader
from colibri.weights.row_order import STORED_AT_ONCE, read_rows
from colibri.weights.strided import read_strided
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
    if info.strides is not None:
        raw = np.concatenate([read_strided(row, 0, 1, info.shape[-1], reader) for row in _vectors(info)])
    else:
        row_bytes = info.nbytes // info.shape[0]

        def read(first: int, count: int) -> Bytes:
            rows = np.empty((count, row_bytes), np.uint8)
            reader.read_into(info.file, info.offset + first * row_bytes, rows)
            return rows

        raw = read_rows(info.order, 0, info.shape[0], read)
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


def joined(info: TensorInfo, first: int, count: int, read: Callable[[TensorInfo, int, int], Bytes]) -> Bytes:
    """(count, row_bytes): rows of a tensor in its own type. read(info, first, count) gives stored rows of a tensor."""
    rows = read_rows(info.order, first, count, partial(read, info))
    if info.columns is not None:
        values = rows.reshape(count, -1, info.value_bytes)
        return values[:, info.columns.sources(0, info.shape[-1])].reshape(count, -1)
    if info.encoding is None or info.scales is None:
        return rows
    return info.encoding.join(rows, read_rows(info.order, first, count, partial(read, info.scales)))


def transposed(info: TensorInfo, first: int, count: int, read: Callable[[TensorInfo, int, int], Bytes]) -> Bytes:
    """(count, row_bytes): rows, counted through all heads, of a tensor that is the transpose of another.

    read(info, first, count) gives rows of that one as it has them. Raises UnsupportedError for types that are not run.
    """
    source = info.transpose_of
    assert source is not None
    _, k, height = source.shape
    pieces: list[Bytes] = []
    while count > 0:
        head, row = divmod(first, height)
        taken = min(count, height - row)
        values = _values(info, source, read(source, head * k, k))[:, row : row + taken]
        pieces.append(np.ascontiguousarray(values.T).view(np.uint8))
        first, count = first + taken, count - taken
    return np.concatenate(pieces)


def _values(info: TensorInfo, source: TensorInfo, rows: Bytes) -> npt.NDArray[Any]:
    """(k, values): rows of the source as values of the type that it is read as."""
    if source.type == info.type and BY_NAME[source.type].values == 1:
        return rows.view(f"V{source.value_bytes}")
    if source.type not in ops.BLOCK_TYPES:
        raise UnsupportedError(
            f"{source.file}: tensor {source.name} is of type {source.type}, which is not transposed; "
            f"{', '.join(ops.BLOCK_TYPES)} are"
        )
    tensor = ops.tensor(source.type, (len(rows), source.shape[-1]), tiled=True)
    ops.tile(tensor, np.ascontiguousarray(rows).reshape(-1).data)
    return ops.dequantize(tensor).astype("<f2")


def read_tiles(info: TensorInfo, tensor: ops.Tensor, reader: FileReader) -> None:
    """Fill a tiled tensor of the same type and shape (rows, k) from the file, a few rows at a time.

    Raises FileError when the file cannot be read whole.
    """
    rows, _ = info.shape
    step = _TILE_ROWS * max(1, STAGING_BYTES // (_TILE_ROWS * info.row_bytes))
    most = min(step, rows) * (1 if info.order is None else STORED_AT_ONCE)
    staging = np.frombuffer(mmap.mmap(-1, most * info.row_bytes), np.uint8)  # goes back to the system at once

    def read(part: TensorInfo, first: int, count: int) -> Bytes:
        row_bytes = part.stored_row_bytes
        piece = staging[: count * row_bytes] if part is info else np.empty(count * row_bytes, np.uint8)
        reader.read_into(part.file, part.offset + first * row_bytes, piece)
        return piece.reshape(count, row_bytes)

    def rows_of(part: TensorInfo, first: int, count: int) -> Bytes:
        if part.strides is not None:
            return read_strided(part, first, count, part.shape[-1], reader)
        return joined(part, first, count, read)

    for first in range(0, rows, step):
        count = min(step, rows - first)
        piece = rows_of(info, first, count) if info.transpose_of is None else transposed(info, first, count, rows_of)
        ops.tile(tensor, piece.reshape(-1).data, first_row=first, rows=count)


def to_float32(raw: npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
    """The values of plain F32, F16 or BF16 bytes (little endian)."""
    if type_name == "F32":
        return raw.view("<f4").astype(np.float32, copy=False)
    if type_name == "F16":
        return raw.view("<f2").astype(np.float32)
    return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
