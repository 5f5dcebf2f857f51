"""Keys and values of past tokens in blocks of 256 tokens that sequences borrow, as half floats or int8 with scales.

Blocks are numbered alike in all layers, so a sequence has one table of block numbers. The mapping takes memory only
where tokens were stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.state import LayerState, States
from colibri.config import KvType
from colibri.errors import ContextFullError
from colibri.spec import KeyValues, State

HUGE_PAGE = 2 << 20
MAKE_READY_STEPS = 64  # of the tokens before a block


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's blocks: keys (blocks, heads, width, 256), values (blocks, heads, 256, width), or keys alone.

    F16: width is that of a head. Q8_0, as U8: the bytes of an int8 for each dimension and a half float for each 32 of
    them, in the order that native/kernels.h describes.
    """

    keys: ops.Tensor
    values: ops.Tensor | None

    @property
    def parts(self) -> tuple[ops.Tensor, ...]:
        """Keys and, where they are stored, values."""
        return (self.keys,) if self.values is None else (self.keys, self.values)


def blocks_for(tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // ops.KV_BLOCK)


def _width(dim: int, kv_type: KvType) -> tuple[str, int, int]:
    """The tensor type of a cache, its width for one head of this size, and the bytes of that."""
    if kv_type == "f16":
        return "F16", dim, 2 * dim
    width = dim + 2 * -(-dim // 32)
    return "U8", width, width


class KeyValueCache:
    """Blocks for `blocks` * 256 tokens over all sequences; `keeps` is what each layer keeps, of a token or a sequence.

    Layers that keep a state have `slots` for it, beside the blocks, and `spare` ones for the time of a step.
    """

    def __init__(
        self, keeps: Sequence[KeyValues | State | None], blocks: int, kv_type: KvType = "f16", slots: int = 1,
        spare: int = 0,
    ) -> None:  # fmt: skip
        self.blocks = blocks
        paged = [kept for kept in keeps if isinstance(kept, KeyValues)]
        states = [kept for kept in keeps if isinstance(kept, State)]
        self._block_bytes: list[int] = []  # of each part: the keys of a layer, or its values
        for kept in paged:
            for dim in filter(None, (kept.key_dim, kept.value_dim)):
                self._block_bytes.append(ops.KV_BLOCK * kept.heads * _width(dim, kv_type)[2])
        self._offsets = [0, *itertools.accumulate(size * blocks for size in self._block_bytes)]
        self.nbytes = self._offsets[-1]
        self.token_bytes = sum(self._block_bytes) // ops.KV_BLOCK
        self._memory = ops.Memory(self.nbytes)
        self.states = States(states, slots, spare) if states else None
        offsets = iter(self._offsets)
        self.paged = tuple(self._layer(offsets, kept, kv_type) for kept in paged)
        paged_layers, state_layers = iter(self.paged), iter(self.states.layers if self.states else ())
        self.layers: tuple[LayerCache | LayerState | None, ...] = tuple(
            None if kept is None else next(state_layers) if isinstance(kept, State) else next(paged_layers)
            for kept in keeps
        )
        self._free = list(range(blocks - 1, -1, -1))  # the lowest is taken first: touched memory stays compact
        self._taken = 0  # the first so many blocks were in use once
        self._ready = 0  # pieces, a block of one part each, whose memory is there
        self.on_growth: Callable[[int], None] | None = None  # hears `touched_bytes` before more memory is used

    def _layer(self, offsets: Iterator[int], kept: KeyValues, kv_type: KvType) -> LayerCache:
        kind, keys, _ = _width(kept.key_dim, kv_type)
        _, values, _ = _width(kept.value_dim, kv_type)
        blocks, size = self.blocks, ops.KV_BLOCK
        shapes = (blocks, kept.heads, keys, size), (blocks, kept.heads, size, values)
        key_tensor = ops.tensor(kind, shapes[0], self._memory, next(offsets))
        return LayerCache(key_tensor, ops.tensor(kind, shapes[1], self._memory, next(offsets)) if values else None)

    @property
    def touched_blocks(self) -> int:
        """The first so many blocks take memory."""
        return max(self._taken, -(-self._ready // max(1, len(self._block_bytes))))

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free)

    @property
    def touched_bytes(self) -> int:
        """Memory that the cache takes at most by now, in huge pages."""
        touched = self.touched_blocks
        starts = zip(self._offsets, self._block_bytes, strict=False)
        ends = ((start // HUGE_PAGE, -(-(start + touched * size) // HUGE_PAGE)) for start, size in starts)
        return min(self.nbytes + HUGE_PAGE, sum(last - first for first, last in ends) * HUGE_PAGE if touched else 0)

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
        self._ready = max(self._ready, len(self._block_bytes) * self._taken)
        self._grown(before)
        return table

    def make_ready(self) -> None:
        """Find memory for some of the block that would be used next for the first time.

        The system clears it first, which takes longer than a step: done step by step, no step waits for all of it.
        """
        for _ in range(-(-len(self._block_bytes) // MAKE_READY_STEPS)):
            if self._ready >= len(self._block_bytes) * min(self._taken + 1, self.blocks):
                return
            before = self.touched_blocks
            block, part = divmod(self._ready, len(self._block_bytes))
            self._ready += 1
            self._grown(before)
            size = self._block_bytes[part]
            self._memory.populate(self._offsets[part] + block * size, size)

    def _grown(self, before: int) -> None:
        if self.touched_blocks > before and self.on_growth is not None:
            self.on_growth(self.touched_bytes)

    def give_back(self, table: NDArray[np.int32]) -> None:
        """Free the blocks of a table."""
        self._free.extend(table.tolist())
        self._free.sort(reverse=True)
