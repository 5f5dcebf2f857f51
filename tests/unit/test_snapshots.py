"""States that prompts go on from: what is found is what was computed there, few slots are enough, none is lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from colibri.cache.prefix import SIZE, Lease, SharedCache
from colibri.cache.snapshots import APART, NEAR_END, places
from colibri.spec import KeyValues, State

KEEPS = [KeyValues(heads=1, key_dim=8, value_dim=8), State(tensors=(("heads", (2, 3)),))]


def made(blocks: int, slots: int) -> SharedCache:
    return SharedCache(KEEPS, blocks, slots=slots)


def digest(ids: Sequence[int]) -> float:
    """What the states are after these tokens."""
    return float(sum((place + 1) * token for place, token in enumerate(ids)) % 65521)


def check(cache: SharedCache, lease: Lease, ids: Sequence[int]) -> None:
    """The sequence's slot and blocks hold what belongs to the first `cached` of its tokens."""
    state, keys = cache.layers[1].tensors["heads"].numpy(), cache.paged[0].keys.numpy()  # type: ignore[union-attr]
    if lease.cached:
        assert (state[lease.slot] == digest(ids[: lease.cached])).all()
    found = np.concatenate([keys[block, 0, 0] for block in lease.table])[: lease.cached]
    np.testing.assert_array_equal(found, np.array(ids[: lease.cached], np.float16))


def compute(cache: SharedCache, lease: Lease, ids: Sequence[int], start: int, end: int) -> None:
    """Tokens start..end of a sequence go through the layers."""
    state, keys = cache.layers[1].tensors["heads"].numpy(), cache.paged[0].keys.numpy()  # type: ignore[union-attr]
    for place in range(start, end):
        keys[lease.table[place // SIZE], 0, :, place % SIZE] = ids[place]
    for place in lease.places or ():
        if start < place <= end:
            slot = cache.reserve()
            if slot is not None:
                state[slot] = digest(ids[:place])
                cache.snapshot(lease, slot, ids, place)
    state[lease.slot] = digest(ids[:end])
    cache.note(lease, ids, end)


def run(cache: SharedCache, ids: Sequence[int], chunk: int = 512) -> int:
    """A sequence from its beginning to its end; the tokens that it found."""
    lease = cache.borrow(ids, len(ids) + 1)
    check(cache, lease, ids)
    for start in range(lease.cached, len(ids), chunk):
        compute(cache, lease, ids, start, min(start + chunk, len(ids)))
    cache.end(lease, ids, len(ids))
    return lease.cached


def numbers(count: int, start: int = 0) -> list[int]:
    return [(start + place) % 1000 for place in range(count)]


def test_places() -> None:
    assert places(5000, 0, 0) == [256, 1024, 4096, 5000 - NEAR_END]
    assert places(5000, 700, 0) == [256, 700, 1024, 4096, 4984]
    assert places(5000, 700, 700) == [1024, 4096, 4984]
    assert places(300, 280, 0) == [280]  # where texts were seen to part comes first, then the end
    assert places(300, 0, 0) == [284]
    assert places(APART + NEAR_END - 1, 0, 0) == []


def test_a_second_turn_computes_only_what_is_new() -> None:
    cache = made(16, 8)
    assert run(cache, numbers(700)) == 0
    assert run(cache, [*numbers(700), *numbers(90, 5)]) == 700
    assert run(cache, [*numbers(700), *numbers(90, 5), *numbers(3)]) == 790
    assert run(cache, numbers(700)) == 700 - NEAR_END


@pytest.mark.parametrize("length", [1, 15, 255, 256, 257, 300, 512, 517])
def test_an_end_anywhere(length: int) -> None:
    cache = made(8, 3)
    assert run(cache, numbers(length)) == 0
    assert run(cache, [*numbers(length), 5, 6]) == length


def test_a_turn_whose_end_is_written_otherwise_goes_on_from_near_the_prompts_end() -> None:
    """Templates leave out what a model thought."""
    cache = made(16, 6)
    prompt, answer = numbers(900), numbers(60, 100)
    lease = cache.borrow(prompt, 960)
    compute(cache, lease, prompt, 0, 900)
    compute(cache, lease, prompt + answer, 900, 960)
    cache.end(lease, prompt + answer, 960)
    assert run(cache, [*prompt[:-5], *numbers(80, 300)]) == 900 - NEAR_END


def test_where_texts_part_is_remembered_the_second_time() -> None:
    cache = made(32, 8)
    system = numbers(600)
    assert run(cache, [*system, *numbers(100, 1)]) == 0
    assert run(cache, [*system, *numbers(100, 2)]) == 256
    assert run(cache, [*system, *numbers(100, 3)]) == 600


def test_without_sharing_nothing_is_kept() -> None:
    cache = SharedCache(KEEPS, 8, slots=2, share=False)
    lease = cache.borrow(numbers(300), 301)
    assert not lease.places
    cache.note(lease, numbers(300), 300)
    cache.end(lease, numbers(300), 300)
    assert cache.borrow(numbers(300), 301).cached == 0


def test_changed_weights_make_all_of_it_worthless() -> None:
    cache = made(16, 6)
    run(cache, numbers(300))
    running = cache.borrow(numbers(300), 301)
    cache.forget()
    compute(cache, running, numbers(300), running.cached, 300)
    cache.end(running, numbers(300), 300)
    assert run(cache, numbers(300)) == 0
    assert cache.states is not None
    taken = {cache.reserve() for _ in range(6)}
    assert taken == set(range(6))


def test_an_error_leaves_no_state() -> None:
    cache = made(16, 2)
    lease = cache.borrow(numbers(300), 301)
    cache.note(lease, numbers(300), 300)
    cache.end(lease, numbers(300), 0)
    assert run(cache, numbers(300)) == 0


def test_one_slot_goes_on_from_its_own_snapshot() -> None:
    cache = made(8, 1)
    assert run(cache, numbers(300)) == 0
    assert run(cache, numbers(350)) == 300
    lease = cache.borrow(numbers(400), 401)
    assert lease.cached == 350 and not cache.has_room(1)
    assert cache.reserve() is None
    cache.end(lease, numbers(400), 350)
    assert cache.has_room(1)


def test_a_prompt_that_fills_the_cache_is_not_stopped_by_what_it_could_go_on_from() -> None:
    cache = made(2, 2)
    run(cache, numbers(300))
    ids = [*numbers(280), *numbers(200, 7)]
    assert cache.has_room(2 * SIZE, ids)
    assert run(cache, ids) in (0, 280)
    assert cache.free_blocks == 2


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_whatever_comes_what_is_found_is_right_and_nothing_is_lost(data: st.DataObject) -> None:
    cache, slots = made(8, 4), 4
    running: list[tuple[Lease, list[int], int]] = []
    texts = [numbers(700), numbers(700, 3), [*numbers(400), *numbers(300, 9)], [*numbers(270), *numbers(300, 4)]]
    for _ in range(data.draw(st.integers(1, 14))):
        action = data.draw(st.sampled_from(["start", "go", "end", "forget"]))
        if action == "start":
            text = data.draw(st.sampled_from(texts))
            ids = text[: data.draw(st.integers(1, len(text)))]
            if cache.has_room(len(ids), ids):
                lease = cache.borrow(ids, len(ids))
                check(cache, lease, ids)
                assert lease.cached < len(ids)
                assert lease.slot not in [other.slot for other, _, _ in running]
                running.append((lease, ids, lease.cached))
            else:
                assert running
        elif running and action != "forget":
            place = data.draw(st.integers(0, len(running) - 1))
            lease, ids, computed = running[place]
            if action == "go":
                end = data.draw(st.integers(computed, len(ids)))
                compute(cache, lease, ids, computed, end)
                running[place] = lease, ids, end
            else:
                cache.end(lease, ids, computed)
                del running[place]
        elif action == "forget":
            cache.forget()
    for lease, ids, computed in running:
        cache.end(lease, ids, computed)
    assert cache.free_blocks == 8
    assert {cache.reserve() for _ in range(slots)} == set(range(slots)) and cache.reserve() is None
