"""Reads rows of a tensor, contiguous or not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from colibri.weights.file_reader import FileReader
from colibri.weights.load import joined, transposed
from colibri.weights.strided import read_strided
from colibri.weights.tensor_info import TensorInfo

Bytes = npt.NDArray[np.uint8]


def read_rows(info: TensorInfo, first: int, count: int, k: int, reader: FileReader) -> Bytes:
    """(count, bytes a row): rows of a matrix (rows, k), of a vector (k,), or with k = 1 values of a vector (rows,)."""
    if info.transpose_of is not None:
        return transposed(info, first, count, lambda part, at, rows: read_rows(part, at, rows, part.shape[-1], reader))
    if info.strides is not None:
        return read_strided(info, first, count, k, reader)

    def stored(part: TensorInfo, first: int, count: int) -> Bytes:
        width = part.value_bytes if k == 1 and len(part.shape) == 1 else part.stored_row_bytes
        rows = np.empty((count, width), np.uint8)
        reader.read_into(part.file, part.offset + first * width, rows)
        return rows

    return joined(info, first, count, stored)
