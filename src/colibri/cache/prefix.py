"""Blocks of the key-value cache that later prompts use again when they begin alike.

A full block is known by the hash of everything up to its end, so that equal beginnings meet whatever came after. The
unfinished last block of a sequence is known, too, as far as its prompt is computed and after its end; a prompt that
goes on from within it gets a copy of it. What nobody uses is given up when room is needed, the least recently used
first, the ends of texts before their beginnings.

Where layers keep states, a prompt goes on from the last snapshot of them as far as the blocks are known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.kv import KeyValueCache, blocks_for
from colibri.cache.snapshots import Snapshot, Snapshots, places
from colibri.config import KvType
from colibri.errors import ContextFullError
from colibri.spec import KeyValues, State

SIZE = ops.KV_BLOCK
LEAST_COPIED = 16  # tokens that are worth the copy of a block
ROOT = b""

Ids = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class _Kept:
    """A block whose content is known: `ids` after all that `parent` stands for. Full blocks hold SIZE ids."""

    block: int
    key: bytes
    parent: bytes
    ids: Ids
    users: int = 0


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of a prompt: full blocks, then one of which `common` tokens go on; a snapshot of states there."""

    path: list[_Kept]
    partial: _Kept | None = None
    common: int = 0
    snapshot: Snapshot | None = None

    @property
    def tokens(self) -> int:
        return SIZE * len(self.path) + self.common


@dataclass(slots=True, eq=False)
class Lease:
    """What a sequence holds: blocks, a slot for its states.

    cached: tokens of its beginning that need not be computed. places: where its states are to be copied, ascending;
    None where there are none and others can go on from anywhere.
    """

    table: NDArray[np.int32]
    cached: int = 0
    slot: int = 0
    epoch: int = 0
    places: Sequence[int] | None = None
    _path: list[_Kept] = field(default_factory=list)  # the shared blocks it uses, in order
    _key: bytes = ROOT  # of all its full blocks so far
    _noted: int = 0  # how many full blocks that are
    _open: _Kept | None = None  # what is known of the block after these, which is the sequence's own

    def shared_from(self, computed: int) -> int | None:
        """The least number of tokens, of which `computed` are done, that is worth waiting for; None if none will be."""
        if self.places is None:
            return computed + LEAST_COPIED
        return next((place for place in self.places if place > computed), None)


class SharedCache(KeyValueCache):
    """A key-value cache that remembers what its blocks hold."""

    def __init__(
        self, keeps: Sequence[KeyValues | State | None], blocks: int, kv_type: KvType = "f16", slots: int = 1, *,
        share: bool = True, spare: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(keeps, blocks, kv_type, slots, spare)
        self.shares = share  # otherwise every block is forgotten when its sequence ends
        self._snapshots = None if self.states is None else Snapshots(self.states)
        self._least = LEAST_COPIED if self.states is None else 1  # a state ends where it ends
        self._kept: dict[bytes, _Kept] = {}
        self._after: dict[bytes, dict[bytes, _Kept]] = {}  # what may follow a text
        self._unused: OrderedDict[bytes, _Kept] = OrderedDict()  # the least recently used first
        self._epoch = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free) + len(self._unused)

    def has_room(self, tokens: int, ids: Sequence[int] = ()) -> bool:
        """Whether `borrow` would succeed for these ids (`take`, without any)."""
        if self._snapshots is not None and not self._snapshots.slots:
            return False
        return self._fits(self._chosen(ids, tokens), tokens)

    def _fits(self, found: _Found, tokens: int) -> bool:
        """Whether there are blocks for the rest. The last that is known may be given up, but not a state with it."""
        held = found.path if self._snapshots is None or found.partial is None else [*found.path, found.partial]
        pinned = sum(not kept.users for kept in held)
        return blocks_for(tokens) - len(found.path) <= self.free_blocks - pinned

    def _chosen(self, ids: Sequence[int], tokens: int) -> _Found:
        """What a prompt goes on from: nothing where there is no room for that and a state."""
        found = self._find(ids)
        return found if self._snapshots is None or self._fits(found, tokens) else _Found([])

    def take(self, tokens: int) -> NDArray[np.int32]:
        """A table of blocks for this many tokens. Raises ContextFullError when there are not enough."""
        self._make_room(blocks_for(tokens))
        return super().take(tokens)

    def borrow(self, ids: Sequence[int], tokens: int, *, share: bool = True) -> Lease:
        """Blocks for a prompt that grows to `tokens`, with all that is known of its beginning.

        At least its last token is left to compute. Without `share` nothing is used again. Raises ContextFullError.
        """
        found = self._chosen(ids if share else (), tokens)
        path, partial = found.path, found.partial
        for kept in path:
            self._use(kept)
        if partial is not None:
            self._use(partial)
        try:
            if blocks_for(tokens) - len(path) > self.free_blocks and partial is not None:
                self._leave(partial)  # its own block is needed
                found, partial = _Found(path), None
            own = self.take(tokens - SIZE * len(path))
        except ContextFullError:
            self._leave_all(path)
            raise
        table = np.concatenate([np.array([kept.block for kept in path], np.int32), own])
        if partial is not None:
            self._copy(partial.block, int(own[0]))
            self._leave(partial)
        lease = Lease(table, found.tokens, epoch=self._epoch, _path=path, _noted=len(path))
        lease._key = path[-1].key if path else ROOT
        if self._snapshots is not None:
            known = self._known(ids).tokens if share else 0
            lease.places = places(len(ids), known, lease.cached) if self.shares else ()
            lease.slot = self._snapshots.resume(found.snapshot)
        return lease

    def extend(self, lease: Lease, tokens: int) -> bool:
        """Let a sequence have blocks for `tokens`; False when there are not enough."""
        missing = blocks_for(tokens) - len(lease.table)
        if missing > self.free_blocks:
            return False
        if missing > 0:
            lease.table = np.concatenate([lease.table, self.take(SIZE * missing)])
        return True

    def note(self, lease: Lease, ids: Sequence[int], computed: int) -> None:
        """Remember what is there now: the first `computed` of a sequence's ids are in the cache."""
        if lease.epoch != self._epoch or not self.shares:
            return
        self._note_full(lease, ids, computed)
        tail = np.array(ids[SIZE * lease._noted : computed], np.int32)
        key = _digest(lease._key, tail)
        if len(tail) >= self._least and key not in self._kept:
            lease._open = self._keep(int(lease.table[lease._noted]), key, lease._key, tail)
            lease._open.users = 1

    def _note_full(self, lease: Lease, ids: Sequence[int], computed: int) -> None:
        if lease._open is not None:
            self._drop(lease._open)
            lease._open = None
        while SIZE * (lease._noted + 1) <= computed:
            start = SIZE * lease._noted
            own = np.array(ids[start : start + SIZE], np.int32)
            parent, block = lease._key, int(lease.table[lease._noted])
            lease._key = _digest(parent, own)
            lease._noted += 1
            if lease._key not in self._kept:
                kept = self._keep(block, lease._key, parent, own)
                kept.users = 1
                lease._path.append(kept)

    def end(self, lease: Lease, ids: Sequence[int] = (), computed: int = 0, *, state: bool = True) -> None:
        """Give a sequence's blocks back; what is `computed` of its ids stays known while there is room.

        state: whether its slot holds the states after these.
        """
        known = self.shares and lease.epoch == self._epoch
        if known:
            self._note_full(lease, ids, computed)
        shared = {kept.block for kept in lease._path}
        own = [int(block) for block in lease.table if int(block) not in shared]
        rest = computed - SIZE * lease._noted
        if known and rest >= self._least:
            tail = np.array(ids[computed - rest : computed], np.int32)
            key = _digest(lease._key, tail)
            block = int(lease.table[lease._noted])
            if key not in self._kept and block in own:
                self._unused[key] = self._keep(block, key, lease._key, tail)
                own.remove(block)
        self._leave_all(lease._path)
        self.give_back(np.array(own, np.int32))
        if self._snapshots is not None and self.states is not None:
            if known and computed and state:
                self._snapshots.keep(lease.slot, lease._key, ids[computed - rest : computed])
            else:
                self.states.give_back(lease.slot)

    def forget(self) -> None:
        """The weights have changed: what was computed with the old ones is not used again."""
        self._epoch += 1
        if self._snapshots is not None:
            self._snapshots.clear()
        self.give_back(np.array([kept.block for kept in self._unused.values()], np.int32))
        self._unused.clear()
        self._kept.clear()
        self._after.clear()

    # ---- snapshots of states -------------------------------------------------------------------------------------

    def reserve(self) -> int | None:
        """A slot to which a state can be copied; None when there is none."""
        return None if self._snapshots is None else self._snapshots.take()

    def unreserve(self, slot: int) -> None:
        """It was not needed."""
        assert self.states is not None
        self.states.give_back(slot)

    def snapshot(self, lease: Lease, slot: int, ids: Sequence[int], computed: int) -> None:
        """A slot holds the states after the first `computed` of a sequence's ids."""
        assert self._snapshots is not None and self.states is not None
        if lease.epoch != self._epoch:
            self.states.give_back(slot)
            return
        key, whole = ROOT, computed - computed % SIZE
        for start in range(0, whole, SIZE):
            key = _digest(key, np.array(ids[start : start + SIZE], np.int32))
        self._snapshots.keep(slot, key, ids[whole:computed])

    def _resume(self, ids: Ids, known: _Found) -> _Found:
        """As far as there is a snapshot of the states."""
        assert self._snapshots is not None
        for depth in range(len(known.path), -1, -1):
            parent = known.path[depth - 1].key if depth else ROOT
            block, common = (known.path[depth], SIZE) if depth < len(known.path) else (known.partial, known.common)
            snapshot = self._snapshots.find(parent, ids[SIZE * depth : SIZE * depth + common])
            if snapshot is not None:
                size = len(snapshot.tail)
                return _Found(known.path[:depth], block if size else None, size, snapshot)
        return _Found([])

    # ---- what is known -------------------------------------------------------------------------------------------

    def _find(self, ids: Sequence[int]) -> _Found:
        """What a prompt can go on from."""
        known = self._known(ids)
        return known if self._snapshots is None else self._resume(np.array(ids[:-1], np.int32), known)

    def _known(self, ids: Sequence[int]) -> _Found:
        """The full blocks that a prompt begins with, then the block that shares the most of what follows."""
        path: list[_Kept] = []
        if not len(ids) or not self._kept:
            return _Found(path)
        known = np.array(ids[:-1], np.int32)
        key = ROOT
        while len(known) - SIZE * len(path) >= SIZE:
            own = known[SIZE * len(path) : SIZE * (len(path) + 1)]
            key = _digest(key, own)
            kept = self._kept.get(key)
            if kept is None or not np.array_equal(kept.ids, own):
                break
            path.append(kept)
        parent = path[-1].key if path else ROOT
        rest = known[SIZE * len(path) : SIZE * (len(path) + 1)]
        best, common = None, self._least - 1
        for kept in self._after.get(parent, {}).values():
            length = _common(kept.ids, rest)
            if length > common:
                best, common = kept, length
        return _Found(path, best, common if best is not None else 0)

    def _keep(self, block: int, key: bytes, parent: bytes, ids: Ids) -> _Kept:
        kept = self._kept[key] = _Kept(block, key, parent, ids)
        self._after.setdefault(parent, {})[key] = kept
        return kept

    def _drop(self, kept: _Kept) -> None:
        """Know no more what a block holds."""
        del self._kept[kept.key]
        siblings = self._after[kept.parent]
        del siblings[kept.key]
        if not siblings:
            del self._after[kept.parent]

    def _use(self, kept: _Kept) -> None:
        kept.users += 1
        self._unused.pop(kept.key, None)

    def _leave_all(self, path: list[_Kept]) -> None:
        """The ends of texts are given up before their beginnings."""
        for kept in reversed(path):
            self._leave(kept)

    def _leave(self, kept: _Kept) -> None:
        kept.users -= 1
        if kept.users:
            return
        if self._kept.get(kept.key) is kept:
            self._unused[kept.key] = kept
        else:  # it was forgotten while it was used
            self.give_back(np.array([kept.block], np.int32))

    def _make_room(self, count: int) -> None:
        """Give up unused blocks until `count` are free, if that is possible."""
        if count > self.free_blocks:
            return
        while len(self._free) < count:
            _, kept = self._unused.popitem(last=False)
            self._drop(kept)
            self.give_back(np.array([kept.block], np.int32))

    def _copy(self, source: int, target: int) -> None:
        for layer in self.paged:
            for tensor in layer.parts:
                array = tensor.numpy()
                array[target] = array[source]


def _digest(parent: bytes, ids: Ids) -> bytes:
    """Of a text that goes on from `parent`."""
    return blake2b(parent + ids.tobytes(), digest_size=16).digest()


def _common(first: Ids, second: Ids) -> int:
    """How many ids at the beginning are the same."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
