"""Which stored rows make a tensor, where files hold them in another order than the engine, or beside others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
STORED_AT_ONCE = 4  # stored rows for one that is wanted: up to so many are read together


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Of every `unit` neighbouring rows in the file, those that `rows` names, in its order."""

    unit: int
    rows: tuple[int, ...]

    def stored(self, rows: int) -> int:
        """How many rows of the file so many rows are made from."""
        return rows // len(self.rows) * self.unit

    def divides(self, rows: int) -> bool:
        """Whether so many rows are whole units."""
        return rows % len(self.rows) == 0

    def sources(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The places of rows first .. first + count in the file."""
        units, places = np.divmod(np.arange(first, first + count), len(self.rows))
        return units * self.unit + _array(self.rows)[places]

    def inverse(self) -> RowOrder:
        """The order in which a file holds rows of the engine's order; only of one that leaves no row out."""
        return RowOrder(self.unit, tuple(np.argsort(_array(self.rows)).tolist()))


@cache
def _array(rows: tuple[int, ...]) -> npt.NDArray[np.int64]:
    return np.array(rows, np.int64)


def adjacent_pairs(head: int, first: int = 0, rotary: int | None = None) -> RowOrder:
    """Heads of so many rows whose `rotary` rows from `first` on are stored for rope on adjacent pairs.

    The engine's order is half-split: stored as 0, h, 1, h + 1, ..., where h = rotary / 2.
    """
    rotary = head if rotary is None else rotary
    turned = [first + place for half in (0, 1) for place in range(half, rotary, 2)]
    return RowOrder(head, (*range(first), *turned, *range(first + rotary, head)))


def read_in_order(order: RowOrder | None, first: int, count: int, read: Callable[[int, int], Bytes]) -> Bytes:
    """(count, bytes): rows first .. first + count. read(first, count) gives stored rows, (count, bytes)."""
    if order is None:
        return read(first, count)
    sources = order.sources(first, count)
    low, high = int(sources.min()), int(sources.max()) + 1
    if high - low <= STORED_AT_ONCE * count:
        return read(low, high - low)[sources - low]
    starts = np.flatnonzero(np.diff(sources, prepend=-2) != 1)
    ends = np.append(starts[1:], count)
    return np.concatenate(
        [read(int(sources[start]), int(end - start)).copy() for start, end in zip(starts, ends, strict=True)]
    )
