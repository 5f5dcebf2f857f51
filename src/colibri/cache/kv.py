"""Keys and values of past tokens in float16 blocks of 256 tokens that sequences borrow.

Blocks are numbered alike in all layers, so a sequence has one table of block numbers. The mapping takes memory only
where tokens were stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.config import ModelConfig
from colibri.errors import ContextFullError

HALF = 2  # bytes of a float16
HUGE_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's blocks: keys (blocks, kv_heads, head_dim, 256), values (blocks, kv_heads, 256, head_dim), F16."""

    keys: ops.Tensor
    values: ops.Tensor


def blocks_for(tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // ops.KV_BLOCK)


def cache_bytes(config: ModelConfig, blocks: int) -> int:
    """Bytes of all layers' keys and values when every block is in use."""
    return 2 * config.layers * blocks * config.kv_width * ops.KV_BLOCK * HALF


class KeyValueCache:
    """Blocks for `blocks` * 256 tokens over all sequences."""

    def __init__(self, config: ModelConfig, blocks: int) -> None:
        self.blocks = blocks
        self.nbytes = cache_bytes(config, blocks)
        self._memory = ops.Memory(self.nbytes)
        heads, dim, size = config.kv_heads, config.head_dim, ops.KV_BLOCK
        part = blocks * config.kv_width * size * HALF
        self.layers = tuple(
            LayerCache(
                ops.tensor("F16", (blocks, heads, dim, size), self._memory, 2 * layer * part),
                ops.tensor("F16", (blocks, heads, size, dim), self._memory, (2 * layer + 1) * part),
            )
            for layer in range(config.layers)
        )
        self._free = list(range(blocks - 1, -1, -1))  # the lowest is taken first: touched memory stays compact
        self.touched_blocks = 0  # the first so many were in use once, and their memory is
        self.on_growth: Callable[[int], None] | None = None  # hears `touched_bytes` before more memory is used
        self._layer_bytes = part

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free)

    @property
    def touched_bytes(self) -> int:
        """Memory that the cache takes at most by now, in huge pages."""
        part = self._layer_bytes  # keys or values of one layer
        used = part * self.touched_blocks // max(1, self.blocks)
        ends = ((start // HUGE_PAGE, -(-(start + used) // HUGE_PAGE)) for start in range(0, self.nbytes, part))
        return min(self.nbytes + HUGE_PAGE, sum(last - first for first, last in ends) * HUGE_PAGE if used else 0)

    def has_room(self, tokens: int) -> bool:
        """Whether `take` would succeed."""
        return blocks_for(tokens) <= len(self._free)

    def take(self, tokens: int) -> NDArray[np.int32]:
        """A table of blocks for this many tokens. Raises ContextFullError when there are not enough."""
        count = blocks_for(tokens)
        if count > len(self._free):
            raise ContextFullError(
                f"{tokens} tokens need {count} blocks of the key-value cache, {len(self._free)} of {self.blocks} are "
                "free; end another sequence or load with a larger context"
            )
        table = np.array([self._free.pop() for _ in range(count)], np.int32)
        if table.max(initial=-1) >= self.touched_blocks:
            self.touched_blocks = int(table.max()) + 1
            if self.on_growth is not None:
                self.on_growth(self.touched_bytes)
        return table

    def give_back(self, table: NDArray[np.int32]) -> None:
        """Free the blocks of a table."""
        self._free.extend(table.tolist())
        self._free.sort(reverse=True)
