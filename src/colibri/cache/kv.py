"""Keys and values of past tokens in blocks of 256 tokens that sequences borrow, as half floats or int8 with scales.

Blocks are numbered alike in all layers, so a sequence has one table of block numbers. The mapping takes memory only
where tokens were stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.config import KvType, ModelConfig
from colibri.errors import ContextFullError

HUGE_PAGE = 2 << 20
MAKE_READY_STEPS = 64  # of the tokens before a block


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's blocks: keys (blocks, kv_heads, width, 256), values (blocks, kv_heads, 256, width).

    F16: width is head_dim. Q8_0, as U8: the bytes of an int8 for each dimension and a half float for each 32 of them,
    in the order that native/kernels.h describes.
    """

    keys: ops.Tensor
    values: ops.Tensor


def blocks_for(tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // ops.KV_BLOCK)


def _numbers(config: ModelConfig, kv_type: KvType) -> tuple[str, int, int]:
    """The tensor type of a cache, its width for one head, and the bytes of that."""
    dim = config.head_dim
    if kv_type == "f16":
        return "F16", dim, 2 * dim
    width = dim + 2 * -(-dim // 32)
    return "U8", width, width


class KeyValueCache:
    """Blocks for `blocks` * 256 tokens over all sequences."""

    def __init__(self, config: ModelConfig, blocks: int, kv_type: KvType = "f16") -> None:
        self.blocks = blocks
        heads, size = config.kv_heads, ops.KV_BLOCK
        kind, width, width_bytes = _numbers(config, kv_type)
        self.token_bytes = 2 * config.layers * heads * width_bytes  # of all layers' keys and values of one token
        self.nbytes = blocks * size * self.token_bytes
        self._memory = ops.Memory(self.nbytes)
        part = self.nbytes // (2 * config.layers)
        self.layers = tuple(
            LayerCache(
                ops.tensor(kind, (blocks, heads, width, size), self._memory, 2 * layer * part),
                ops.tensor(kind, (blocks, heads, size, width), self._memory, (2 * layer + 1) * part),
            )
            for layer in range(config.layers)
        )
        self._free = list(range(blocks - 1, -1, -1))  # the lowest is taken first: touched memory stays compact
        self._taken = 0  # the first so many blocks were in use once
        self._ready = 0  # pieces, a block of keys or values of one layer each, whose memory is there
        self.on_growth: Callable[[int], None] | None = None  # hears `touched_bytes` before more memory is used
        self._layer_bytes = part
        self._parts = 2 * config.layers

    @property
    def touched_blocks(self) -> int:
        """The first so many blocks take memory."""
        return max(self._taken, -(-self._ready // self._parts))

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
        before = self.touched_blocks
        self._taken = max(self._taken, int(table.max(initial=-1)) + 1)
        self._ready = max(self._ready, self._parts * self._taken)
        self._grown(before)
        return table

    def make_ready(self) -> None:
        """Find memory for some of the block that would be used next for the first time.

        The system clears it first, which takes longer than a step: done step by step, no step waits for all of it.
        """
        for _ in range(-(-self._parts // MAKE_READY_STEPS)):
            if self._ready >= self._parts * min(self._taken + 1, self.blocks):
                return
            before = self.touched_blocks
            block, part = divmod(self._ready, self._parts)
            self._ready += 1
            self._grown(before)
            size = self._layer_bytes // self.blocks
            self._memory.populate(part * self._layer_bytes + block * size, size)

    def _grown(self, before: int) -> None:
        if self.touched_blocks > before and self.on_growth is not None:
            self.on_growth(self.touched_bytes)

    def give_back(self, table: NDArray[np.int32]) -> None:
        """Free the blocks of a table."""
        self._free.extend(table.tolist())
        self._free.sort(reverse=True)
