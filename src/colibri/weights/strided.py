"""Reads rows of tensors that are not stored row by row, such as transposed matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from colibri.weights.file_reader import FileReader
from colibri.weights.tensor_info import TensorInfo

Bytes = npt.NDArray[np.uint8]


def read_strided(info: TensorInfo, first: int, count: int, k: int, reader: FileReader) -> Bytes:
    """(count, bytes a row): rows of a matrix (rows, k), of a vector (k,), or with k = 1 values of a vector (rows,).

    Line by line along the dimension in which values are closest, which of a transposed matrix are its columns."""
    assert info.strides is not None
    width = info.value_bytes
    down, right = info.strides if len(info.strides) == 2 else (info.strides[0], 0) if k == 1 else (0, info.strides[0])
    rows = np.empty((count, k), f"V{width}")
    by_rows = k > 1 and (right <= down or count == 1)
    lines, step, apart = (rows, right, down) if by_rows else (rows.T, down, right)
    buffer = np.empty((lines.shape[1] - 1) * step + 1, rows.dtype)
    for number, line in enumerate(lines):
        offset = first * down + number * apart
        reader.read_into(info.file, info.offset + offset * width, buffer.view(np.uint8))
        line[:] = buffer[::step] if step else buffer
    return rows.view(np.uint8).reshape(count, k * width)
