"""Where a tensor's bytes are: name, type, shape and the range in a file; and those of an expert. No data is held."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from colibri.errors import FormatError
from colibri.weights.block_types import BY_NAME, row_bytes

Layout = tuple[tuple[str, int, int], ...]
"""(type, rows, k) of each part: experts of one layout fit into each other's slots."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint.

    shape is in numpy order, slowest first: (rows, k) or, for merged experts, (experts, rows, k).
    offset is absolute in `file`. `nbytes` counts the data only, without gaps between experts.
    head_rows, unless 0, says that the rows of every head of so many are stored in adjacent pairs, as 0, h, 1, h+1, ...
    (h = head_rows / 2) of the half-split order that the engine uses.
    expert_stride is the number of bytes from one expert to the next where experts are not back to back.
    strides are values from one index to the next along each dimension where these are not back to back, as in PyTorch's
    transposed views; only a converter reads such tensors.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    head_rows: int = 0
    expert_stride: int | None = None
    strides: tuple[int, ...] | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (the last dimension)."""
        return row_bytes(self.type, self.shape[-1])

    @property
    def value_bytes(self) -> int:
        """Bytes of one value, of the types whose values stand alone."""
        return BY_NAME[self.type].bytes

    def expert(self, index: int) -> TensorInfo:
        """The (rows, k) part of one expert of a merged (experts, rows, k) tensor, or (rows,) of a merged bias."""
        if len(self.shape) < 2 or not 0 <= index < self.shape[0]:
            raise IndexError(f"{self.name} of shape {self.shape} has no expert {index}")
        rest = self.shape[1:]
        nbytes = math.prod(rest[:-1]) * self.row_bytes
        stride = nbytes if self.expert_stride is None else self.expert_stride
        if self.strides is not None:
            stride = self.strides[0] * self.value_bytes
        return replace(
            self,
            name=f"{self.name}[{index}]",
            shape=rest,
            offset=self.offset + index * stride,
            nbytes=nbytes,
            expert_stride=None,
            strides=None if self.strides is None else self.strides[1:],
        )

    def halves(self, first: str, second: str) -> tuple[TensorInfo, TensorInfo]:
        """The first and the second half of every expert's rows of a merged (experts, 2 * rows, k) tensor."""
        if len(self.shape) != 3 or self.shape[1] % 2:
            raise FormatError(f"{self.file}: {self.name} has shape {self.shape}, (experts, 2 * rows, k) is expected")
        experts, rows, k = self.shape
        stride = rows * self.row_bytes if self.expert_stride is None else self.expert_stride
        row = self.row_bytes if self.strides is None else self.strides[1] * self.value_bytes
        part = replace(self, name=first, shape=(experts, rows // 2, k), nbytes=self.nbytes // 2, expert_stride=stride)
        return part, replace(part, name=second, offset=self.offset + rows // 2 * row)


@dataclass(frozen=True, slots=True)
class Expert:
    """One expert in one layer: gate, up (intermediate, hidden) and down (hidden, intermediate), in this order.

    Some have no gate.
    """

    by_name: Mapping[str, TensorInfo]

    @property
    def parts(self) -> tuple[TensorInfo, ...]:
        """gate, up and down; or up and down."""
        return tuple(self.by_name.values())

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return sum(part.nbytes for part in self.parts)

    @property
    def layout(self) -> Layout:
        """The types and shapes that decide into which slots it fits."""
        return tuple((part.type, part.shape[0], part.shape[1]) for part in self.parts)
