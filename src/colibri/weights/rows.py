"""Rows of a tensor in the type that it is read as, however a file holds them: the one reader of weights' bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri import ops
from colibri.errors import FormatError, UnsupportedError
from colibri.weights.block_types import BY_NAME
from colibri.weights.file_reader import FileReader
from colibri.weights.row_order import read_in_order
from colibri.weights.tensor_info import Side, TensorInfo

Bytes = npt.NDArray[np.uint8]
Fetch = Callable[[Path, int, int], Bytes]
"""(file, offset, nbytes) -> the bytes there, which the next call may overwrite."""


def fetched_by(reader: FileReader) -> Fetch:
    """Into memory of its own at each call."""

    def fetch(file: Path, offset: int, nbytes: int) -> Bytes:
        read = np.empty(nbytes, np.uint8)
        reader.read_into(file, offset, read)
        return read

    return fetch


def read_rows(info: TensorInfo, first: int, count: int, fetch: Fetch, k: int | None = None) -> Bytes:
    """(count, bytes a row): rows of a matrix (rows, k) or (experts, rows, k), or of a vector (k,), which is one.

    With k = 1 values of a vector (rows,). What comes may be memory of `fetch`. Raises UnsupportedError for types that
    are not transposed, and what `fetch` raises.
    """
    k = info.shape[-1] if k is None else k
    if info.transpose_of is not None:
        return _transposed(info, info.transpose_of, first, count, fetch)
    if info.strides is not None:
        return _strided(info, first, count, k, fetch)
    width = info.value_bytes if k == 1 and len(info.shape) == 1 else info.stored_row_bytes
    rows = read_in_order(info.order, first, count, partial(_stored, info, width, fetch))
    if info.encoding is not None:
        rows = _joined(info, first, count, rows, fetch)
    return rows if info.columns is None else _in_columns(info, rows)


def _joined(info: TensorInfo, first: int, count: int, rows: Bytes, fetch: Fetch) -> Bytes:
    """The rows of another encoding, with what stands beside them, in the type that they are read as."""
    assert info.encoding is not None
    rows = rows.copy() if info.order is None else rows
    places = np.arange(first, first + count) if info.order is None else info.order.sources(first, count)
    try:
        return info.encoding.join(places, rows, *(_beside(side, places, fetch) for side in info.sides))
    except FormatError as error:
        raise FormatError(f"{info.file}: tensor {info.name}: {error}") from error


def _in_columns(info: TensorInfo, rows: Bytes) -> Bytes:
    """The values of each row in their order, whole blocks at a time."""
    assert info.columns is not None
    block = BY_NAME[info.type]
    sources = info.columns.sources(0, info.shape[-1]).reshape(-1, block.values)
    if (sources[:, 0] % block.values).any() or (sources != sources[:, :1] + np.arange(block.values)).any():
        raise UnsupportedError(
            f"{info.file}: the values of a row of {info.name} are in another order, by heads that are not whole blocks "
            f"of {block.values} ({info.type}); use a checkpoint in another format"
        )
    return rows.reshape(len(rows), -1, block.bytes)[:, sources[:, 0] // block.values].reshape(len(rows), -1)


def _stored(info: TensorInfo, width: int, fetch: Fetch, first: int, count: int) -> Bytes:
    if not width:
        return np.empty((count, 0), np.uint8)
    return fetch(info.file, info.offset + first * width, count * width).reshape(count, width)


def _beside(side: Side, places: npt.NDArray[np.int64], fetch: Fetch) -> Bytes:
    """For each of the stored rows at `places` the row that stands beside it, or the one that stands beside all."""
    if not side.each:
        return fetch(side.file, side.offset, side.row_bytes).reshape(1, -1).copy()
    rows = (side.first + places) // side.each
    low, high = int(rows.min()), int(rows.max()) + 1
    read = fetch(side.file, side.offset + low * side.row_bytes, (high - low) * side.row_bytes)
    return read.reshape(high - low, side.row_bytes)[rows - low]


def _transposed(info: TensorInfo, source: TensorInfo, first: int, count: int, fetch: Fetch) -> Bytes:
    """Rows, counted through all heads, of a tensor that is the transpose of another."""
    _, k, height = source.shape
    pieces: list[Bytes] = []
    while count > 0:
        head, row = divmod(first, height)
        taken = min(count, height - row)
        values = _values(info, source, read_rows(source, head * k, k, fetch))[:, row : row + taken]
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


def _strided(info: TensorInfo, first: int, count: int, k: int, fetch: Fetch) -> Bytes:
    """Rows of a tensor that is not stored row by row, such as a transposed matrix.

    Line by line along the dimension in which values are closest, which of a transposed matrix are its columns."""
    assert info.strides is not None
    width = info.value_bytes
    down, right = info.strides if len(info.strides) == 2 else (info.strides[0], 0) if k == 1 else (0, info.strides[0])
    rows = np.empty((count, k), f"V{width}")
    by_rows = k > 1 and (right <= down or count == 1)
    lines, step, apart = (rows, right, down) if by_rows else (rows.T, down, right)
    nbytes = ((lines.shape[1] - 1) * step + 1) * width
    for number, line in enumerate(lines):
        offset = first * down + number * apart
        read = fetch(info.file, info.offset + offset * width, nbytes).view(rows.dtype)
        line[:] = read[::step] if step else read
    return rows.view(np.uint8).reshape(count, k * width)
