"""Where a tensor's bytes are: name, type, shape and the range in a file; and those of an expert. No data is held."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from colibri.errors import FormatError
from colibri.weights.block_types import BY_NAME, row_bytes
from colibri.weights.encodings import Encoding
from colibri.weights.row_order import RowOrder

_PART: Final = re.compile(r"blk\.\d+\.(\w+)\.(?:weight|bias)")
Layout = tuple[tuple[str, int, int], ...]
"""(type, rows, k) of each part: experts of one layout fit into each other's slots."""


@dataclass(frozen=True, slots=True)
class Side:
    """What stands beside a tensor's rows: each `each` of them, counted from row `first` on, have a row of it in common.

    each 0: all rows have one row of it in common.
    of_expert: how many rows of it each expert has, where they begin anew with every expert of a merged tensor.
    """

    file: Path
    offset: int
    row_bytes: int
    each: int = 1
    first: int = 0
    of_expert: int = 0

    def expert(self, index: int, rows: int) -> Side:
        """What stands beside one of the parts of so many stored rows."""
        if self.of_expert:
            return replace(self, offset=self.offset + index * self.of_expert * self.row_bytes, of_expert=0)
        return replace(self, first=self.first + index * rows)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint.

    shape is in numpy order, slowest first: (rows, k) or, for merged experts, (experts, rows, k).
    offset is absolute in `file`. `nbytes` counts the data only, without gaps between experts.
    order: which stored rows these are, where the file holds them in another order or has others between them; shape and
    nbytes are those of the tensor, not of what is stored.
    columns: the same of the values of each row, of types whose values stand alone.
    sides: of a tensor in another encoding what stands beside it, in the order in which the encoding takes it; type,
    shape and nbytes are then those that it is read as.
    transform: the name in load.TRANSFORMS of what the values go through, of small tensors of floats.
    transpose_of: the tensor (heads, k, rows) of which these are the matrices (rows, k), transposed. Type and nbytes are
    those that it is read as: F16 where that one has blocks of several values.
    expert_stride is the number of bytes from one expert to the next where experts are not back to back.
    strides are values from one index to the next along each dimension where these are not back to back, as in PyTorch's
    transposed views.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    order: RowOrder | None = None
    expert_stride: int | None = None
    strides: tuple[int, ...] | None = None
    transform: str | None = None
    encoding: Encoding | None = None
    sides: tuple[Side, ...] = ()
    columns: RowOrder | None = None
    transpose_of: TensorInfo | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (the last dimension)."""
        return row_bytes(self.type, self.shape[-1])

    @property
    def plain(self) -> bool:
        """Whether its bytes are as they are stored, from end to end."""
        moved = self.order, self.columns, self.strides, self.expert_stride, self.transpose_of, self.encoding
        return all(each is None for each in moved)

    @property
    def stored_row_bytes(self) -> int:
        """Bytes of one row in the file, where scales may stand elsewhere."""
        encoding = self.encoding
        return self.row_bytes if encoding is None else self.shape[-1] // encoding.values * encoding.bytes

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
        rows = math.prod(rest[:-1]) if self.order is None else self.order.stored(math.prod(rest[:-1]))
        stride = rows * self.stored_row_bytes if self.expert_stride is None else self.expert_stride
        if self.strides is not None:
            stride = self.strides[0] * self.value_bytes
        return replace(
            self,
            name=f"{self.name}[{index}]",
            shape=rest,
            offset=self.offset + index * stride,
            nbytes=nbytes,
            expert_stride=None,
            sides=tuple(side.expert(index, rows) for side in self.sides),
            strides=None if self.strides is None else self.strides[1:],
        )

    def of_rows(self, rows: int, order: RowOrder) -> TensorInfo:
        """The rows of a matrix, or values of a vector, that `order` takes; of one that is stored in order."""
        if self.order is not None or self.strides is not None:
            raise ValueError(f"{self.name}: the rows that are asked for are in an order already")
        return replace(self, shape=(rows, *self.shape[1:]), nbytes=self.nbytes // self.shape[0] * rows, order=order)

    def halves(self, first: str, second: str) -> tuple[TensorInfo, TensorInfo]:
        """The first and the second half of every expert's rows of a merged (experts, 2 * rows, k) tensor."""
        if len(self.shape) != 3 or self.shape[1] % 2:
            raise FormatError(f"{self.file}: {self.name} has shape {self.shape}, (experts, 2 * rows, k) is expected")
        experts, rows, k = self.shape
        stride = rows * self.stored_row_bytes if self.expert_stride is None else self.expert_stride
        row = self.stored_row_bytes if self.strides is None else self.strides[1] * self.value_bytes
        part = replace(self, name=first, shape=(experts, rows // 2, k), nbytes=self.nbytes // 2, expert_stride=stride)
        sides = tuple(replace(side, first=side.first + rows // 2) for side in self.sides)
        return part, replace(part, name=second, offset=self.offset + rows // 2 * row, sides=sides)


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


def with_row_orders(tensors: Mapping[str, TensorInfo], orders: Mapping[str, RowOrder]) -> dict[str, TensorInfo]:
    """The tensors of which `orders`, by their part of a layer such as attn_q, says how rows are stored."""
    result: dict[str, TensorInfo] = dict(tensors)
    for name, info in tensors.items():
        order = orders.get(part_of(name))
        if order is not None:
            if not order.divides(info.shape[0]):
                found = f"{info.file}: tensor {name} has {info.shape[0]} rows"
                raise FormatError(f"{found}, not whole heads of {order.unit}")
            result[name] = replace(info, order=order)
    return result


def part_of(name: str) -> str:
    """attn_q of blk.3.attn_q.weight or blk.3.attn_q.bias; "" of any other name."""
    match = _PART.fullmatch(name)
    return match[1] if match else ""
