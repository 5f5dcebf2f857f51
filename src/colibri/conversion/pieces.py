"""The bytes of one output tensor, a few megabytes at a time: read, put in order, quantised."""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt

from colibri import ops
from colibri.conversion.checksums import SourceChecksums
from colibri.conversion.dequantize import dequantize
from colibri.conversion.plan import Output
from colibri.errors import FormatError, starting_threads
from colibri.weights.file_reader import FileReader
from colibri.weights.load import to_float32, transformed
from colibri.weights.quantize import quantize_rows
from colibri.weights.rows import fetched_by, read_rows
from colibri.weights.tensor_info import TensorInfo

CHUNK_VALUES: Final = 1 << 21  # 8 MB as float32: enough for a read, little beside a tensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Pieces:
    """The bytes of one output tensor in order, computed by a few threads just ahead of the one that writes.

    Raises FormatError behind a part of the source that does not have the checksum it was written with.
    """

    def __init__(
        self,
        output: Output,
        reader: FileReader,
        importance: Floats | None,
        pool: ThreadPoolExecutor,
        expected: SourceChecksums,
    ) -> None:
        self._output, self._reader, self._importance, self._pool = output, reader, importance, pool
        self._expected = expected
        self.checksums: list[int] = []

    def __iter__(self) -> Iterator[Bytes]:
        if self._output.values is not None:
            constant = self._output.values.view(np.uint8)
            self.checksums.append(zlib.crc32(constant.data))
            yield constant
            return
        ahead: deque[tuple[int, Future[tuple[Bytes, Bytes]]]] = deque()
        jobs = self._jobs()
        read = [0] * len(self._output.parts)  # checksums of the source's parts
        try:
            while True:
                for part, first, count in jobs:
                    with starting_threads("convert"):
                        ahead.append((part, self._pool.submit(self._compute, part, first, count)))
                    if len(ahead) > 2 * ops.threads():
                        break
                if not ahead:
                    return
                part, future = ahead.popleft()
                raw, piece = future.result()
                if self._expected:
                    read[part] = zlib.crc32(raw.data, read[part])
                    if not ahead or ahead[0][0] != part:
                        self._check(self._output.parts[part], read[part])
                part = min(part, self._output.checksums - 1)
                if part == len(self.checksums):
                    self.checksums.append(0)
                self.checksums[part] = zlib.crc32(piece.data, self.checksums[part])
                yield piece
        finally:
            for _, future in ahead:
                future.cancel()

    def _check(self, part: TensorInfo, found: int) -> None:
        expected = self._expected.get((part.file, part.offset, part.nbytes), found)
        if found != expected:
            raise FormatError(
                f"{part.file}: {part.name} is damaged: checksum {found:08x}, {expected:08x} was written at conversion. "
                "Fetch or convert the file again"
            )

    def _jobs(self) -> Iterator[tuple[int, int, int]]:
        """(part, first row, rows) for every piece: whole heads where rows are reordered."""
        for part, info in enumerate(self._output.parts):
            rows, k = math.prod(info.shape[:-1]), info.shape[-1]
            order = self._output.order
            if (order or info.order) and len(info.shape) == 1:
                rows, k = info.shape[0], 1
            unit = 1 if order is None else order.unit
            step = max(1, CHUNK_VALUES // (unit * k)) * unit
            height = info.shape[-2] if self._weighed_heads else rows
            for start in range(0, rows, height):
                for first in range(start, start + height, step):
                    yield part, first, min(step, start + height - first)

    @property
    def _weighed_heads(self) -> bool:
        """Whether one part holds several matrices whose columns have weights of their own."""
        return len(self._output.parts) == 1 and self._importance is not None and self._importance.ndim == 2

    def _compute(self, part: int, first: int, count: int) -> tuple[Bytes, Bytes]:
        """Rows of a part as the source has them, and as they are written."""
        info, spec = self._output.parts[part], self._output.spec
        order = self._output.order
        k = 1 if (order or info.order) and len(info.shape) == 1 else info.shape[-1]
        raw = read_rows(info, first, count, fetched_by(self._reader), k)
        ordered = raw if order is None else raw[order.sources(0, count)]
        if info.type == spec.type and spec.type not in ("F32", "F16", "BF16"):
            return raw, ordered.reshape(-1)
        if info.type in ("F32", "F16", "BF16"):
            rows = transformed(info, to_float32(ordered.reshape(-1), info.type)).reshape(-1, k)
        else:
            rows = dequantize(info.type, ordered, len(ordered), k)
        weights = self._importance
        if weights is not None and weights.ndim == 2:
            weights = weights[first // info.shape[-2] if self._weighed_heads else part]
        return raw, quantize_rows(spec.type, rows, weights, f"{info.file}: tensor {info.name}").reshape(-1)
