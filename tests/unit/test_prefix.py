"""Blocks that prompts share: who holds what, what is found again, what goes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from colibri.cache.prefix import LEAST_COPIED, SIZE, SharedCache
from colibri.errors import ContextFullError
from colibri.spec import KeyValues

KEEPS = [KeyValues(heads=1, key_dim=4, value_dim=4)] * 2


def run(cache: SharedCache, ids: list[int], new: int = 1) -> int:
    """A sequence from its beginning to its end; the tokens that it found."""
    lease = cache.borrow(ids, len(ids) + new)
    cache.note(lease, ids, len(ids))
    cache.end(lease, ids, len(ids))
    return lease.cached


def numbers(count: int, start: int = 0) -> list[int]:
    return [(start + place) % 1000 for place in range(count)]


def test_a_second_turn_computes_only_what_is_new() -> None:
    cache = SharedCache(KEEPS, 16)
    assert run(cache, numbers(700)) == 0
    assert run(cache, [*numbers(700), *numbers(90, 5)]) == 700
    assert run(cache, numbers(700)) == 699  # the last token's logits are wanted
    assert cache.free_blocks == 16


def test_two_interleaved_chats_both_keep_theirs() -> None:
    cache = SharedCache(KEEPS, 16)
    first, second = numbers(300), numbers(300, 500)
    for turn in range(3):
        assert run(cache, first) == (len(first) - 20 if turn else 0)
        assert run(cache, second) == (len(second) - 20 if turn else 0)
        first, second = first + numbers(20, turn), second + numbers(20, turn)


def test_blocks_are_shared_while_both_run() -> None:
    cache = SharedCache(KEEPS, 8)
    ids = numbers(600)
    first = cache.borrow(ids, 601)
    cache.note(first, ids, 512)
    second = cache.borrow(ids, 601)
    assert second.cached == 512
    assert second.table[:2].tolist() == first.table[:2].tolist()
    assert second.table[2] != first.table[2]
    assert cache.free_blocks == 8 - 4
    cache.end(first, ids, 512)
    assert cache.free_blocks == 8 - 3
    cache.end(second, ids, 600)
    assert cache.free_blocks == 8


def test_a_copied_block_holds_the_same_and_the_original_stays() -> None:
    cache = SharedCache(KEEPS, 4)
    ids = numbers(100)
    lease = cache.borrow(ids, 101)
    block = int(lease.table[0])
    for layer in cache.layers:
        layer.keys.numpy()[block] = 7
    cache.end(lease, ids, 100)
    other = cache.borrow([*ids[:50], 9, 9, 9], 60)
    assert other.cached == 50
    assert int(other.table[0]) != block
    assert (cache.layers[1].keys.numpy()[int(other.table[0])] == 7).all()
    cache.layers[0].keys.numpy()[int(other.table[0])] = 1
    assert (cache.layers[0].keys.numpy()[block] == 7).all()


def test_the_block_that_a_running_sequence_fills_can_be_copied() -> None:
    cache = SharedCache(KEEPS, 8)
    ids = numbers(600)
    first = cache.borrow(ids, 601)
    cache.note(first, ids, 40)
    assert cache.borrow(ids, 601).cached == 40
    cache.note(first, ids, 300)
    other = cache.borrow([*numbers(290), 999], 300)
    assert other.cached == 290
    assert other.table[1] != first.table[1]
    cache.end(first)  # after an error: what it had computed before stays known as far as its blocks are full
    assert cache.borrow(ids, 300).cached == SIZE


def test_few_tokens_are_not_worth_a_copy() -> None:
    cache = SharedCache(KEEPS, 4)
    run(cache, numbers(100))
    assert run(cache, [*numbers(LEAST_COPIED - 1), 999, 998]) == 0


def test_the_least_recently_used_goes_first_and_ends_before_beginnings() -> None:
    cache = SharedCache(KEEPS, 4)
    old, new = numbers(2 * SIZE), numbers(SIZE, 500)
    run(cache, old, new=0)
    run(cache, new, new=0)
    lease = cache.borrow(numbers(10, 900), 2 * SIZE)  # one is free, one must go: the end of the old text
    assert cache.borrow(old, 2 * SIZE).cached == SIZE
    assert cache.free_blocks == 4 - 2 - 2
    cache.end(lease)


def test_room_is_made_or_refused() -> None:
    cache = SharedCache(KEEPS, 4)
    ids = numbers(4 * SIZE)
    run(cache, ids, new=0)
    assert cache.has_room(4 * SIZE)
    assert cache.has_room(4 * SIZE, ids)
    assert not cache.has_room(5 * SIZE)
    with pytest.raises(ContextFullError):
        cache.borrow(ids, 5 * SIZE)
    assert cache.free_blocks == 4
    assert run(cache, ids, new=0) > 0


def test_a_text_that_needs_every_block_does_without_a_copy() -> None:
    cache = SharedCache(KEEPS, 2)
    run(cache, numbers(SIZE + 100), new=0)
    ids = [*numbers(SIZE - 40), *numbers(200, 700)]
    assert cache.has_room(2 * SIZE, ids)
    lease = cache.borrow(ids, 2 * SIZE)
    assert lease.cached == 0
    assert sorted(lease.table.tolist()) == [0, 1]


def test_nothing_is_found_again_after_the_weights_changed() -> None:
    cache = SharedCache(KEEPS, 8)
    ids = numbers(600)
    run(cache, ids)
    running = cache.borrow(ids, 601)
    cache.forget()
    assert cache.borrow(ids, 601).cached == 0
    cache.end(running, ids, 600)
    assert run(cache, ids) == 0
    assert cache.free_blocks == 8 - 3


def test_without_sharing_nothing_is_kept() -> None:
    cache = SharedCache(KEEPS, 4, share=False)
    run(cache, numbers(600))
    assert run(cache, numbers(600)) == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_block_is_lost_or_held_twice(data: st.DataObject) -> None:
    cache = SharedCache(KEEPS, 6)
    held: list[tuple[list[int], object]] = []
    texts = [numbers(300 * part, seed) for part in (1, 2, 3) for seed in (0, 100)]
    for _ in range(data.draw(st.integers(1, 25))):
        if held and data.draw(st.booleans()):
            ids, lease = held.pop(data.draw(st.integers(0, len(held) - 1)))
            cache.end(lease, ids, data.draw(st.integers(lease.cached, len(ids))))  # type: ignore[arg-type,attr-defined]
        else:
            base = data.draw(st.sampled_from(texts))
            ids = [*base[: data.draw(st.integers(1, len(base)))], *numbers(data.draw(st.integers(0, 40)), 50)]
            if cache.has_room(len(ids), ids):
                lease = cache.borrow(ids, len(ids))
                assert lease.cached < len(ids)
                cache.note(lease, ids, data.draw(st.integers(lease.cached, len(ids))))
                held.append((ids, lease))
    own = [set(lease.table.tolist()[lease.cached // SIZE :]) for _, lease in held]  # type: ignore[attr-defined]
    for place, blocks in enumerate(own):
        others = set[int]().union(*(set(lease.table.tolist()) for _, lease in held[:place]))  # type: ignore[attr-defined]
        assert not blocks & others
    for ids, lease in held:
        cache.end(lease, ids, len(ids))  # type: ignore[arg-type]
    assert cache.free_blocks == 6
    assert np.unique(cache.take(6 * SIZE)).tolist() == list(range(6))
