"""Rows that files store in another order, or among others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from colibri.weights.row_order import RowOrder, adjacent_pairs, read_in_order

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def stored(rows: int) -> Bytes:
    return np.arange(rows, dtype=np.uint8)[:, None].repeat(3, axis=1)


def test_adjacent_pairs_of_a_part_of_each_head() -> None:
    """DeepSeek's heads: the first rows are not turned, of the others neighbours turn together."""
    assert adjacent_pairs(4).rows == (0, 2, 1, 3)
    assert adjacent_pairs(8, first=2, rotary=4).rows == (0, 1, 2, 4, 3, 5, 6, 7)


@pytest.mark.parametrize("order", [
    None, adjacent_pairs(8), RowOrder(2, (1,)), RowOrder(6, (0, 1, 5)), RowOrder(48, tuple(range(47, -1, -1))),
    RowOrder(48, (*range(40, 48), *range(0, 8))),
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("first", "count"), [(0, 8), (8, 8), (0, 16)])
def test_any_part_of_the_rows(order: RowOrder | None, first: int, count: int) -> None:
    rows = stored(48)
    whole = rows if order is None else rows.reshape(-1, order.unit, 3)[:, list(order.rows)].reshape(-1, 3)
    reads: list[int] = []

    def read(at: int, wanted: int) -> Bytes:
        reads.append(wanted)
        return rows[at : at + wanted]

    np.testing.assert_array_equal(read_in_order(order, first, count, read), whole[first : first + count])
    assert sum(reads) <= 4 * count


def test_the_inverse() -> None:
    order = adjacent_pairs(16, 4, 8)
    np.testing.assert_array_equal(stored(16)[list(order.rows)][list(order.inverse().rows)], stored(16))
