"""Slots for states: as many as are counted, one for each sequence, beside the blocks of layers with keys and values."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.cache.kv import KeyValueCache, LayerCache
from colibri.cache.prefix import SharedCache
from colibri.cache.state import States
from colibri.spec import DeltaNetSpec, KeyValues, State

DELTA = DeltaNetSpec(heads=4, key_heads=2, key_size=8, value_size=20)
KEYS = KeyValues(heads=1, key_dim=8, value_dim=8)


def test_a_state_says_what_it_takes() -> None:
    kept = DELTA.keeps
    assert kept == State(tensors=(("heads", (4, 8 * 32)), ("convolution", (3, 2 * 2 * 8 + 4 * 20))))
    states = States([kept, kept], 3)
    assert states.slot_bytes == 2 * kept.nbytes == 2 * 4 * (4 * 8 * 32 + 3 * 112)
    assert 3 * states.slot_bytes <= states.nbytes <= 3 * states.slot_bytes + 4 * 4096
    for layer in states.layers:
        assert layer.tensors["heads"].shape == (3, 4, 256)
        assert layer.tensors["convolution"].shape == (3, 3, 112)


def test_slots_are_given_once_and_copied_in_all_layers() -> None:
    states = States([DELTA.keeps] * 2, 3)
    slots = [states.take() for _ in range(3)]
    assert sorted(slots) == [0, 1, 2] and not states.free
    for number, layer in enumerate(states.layers):
        layer.tensors["heads"].numpy()[...] = 7
        layer.tensors["heads"].numpy()[1] = number
    states.copy(1, 2)
    for number, layer in enumerate(states.layers):
        assert np.unique(layer.tensors["heads"].numpy()[2]).tolist() == [number]
        assert np.unique(layer.tensors["heads"].numpy()[0]).tolist() == [7]
    states.give_back(1)
    assert states.take() == 1


@pytest.mark.parametrize("keeps", [
    [DELTA.keeps, KEYS, DELTA.keeps, KEYS], [KEYS, DELTA.keeps], [DELTA.keeps] * 2, [None, KEYS, None, DELTA.keeps],
])  # fmt: skip
def test_each_layer_has_what_it_keeps(keeps: list[State | KeyValues | None]) -> None:
    cache = KeyValueCache(keeps, 2, slots=5)
    assert cache.states is not None
    paged = sum(kept is KEYS for kept in keeps)
    assert cache.nbytes == paged * 2 * 2 * 256 * 8 * 2
    assert cache.token_bytes == paged * 2 * 8 * 2
    for kept, layer in zip(keeps, cache.layers, strict=True):
        if isinstance(layer, LayerCache):
            assert kept is KEYS and layer.keys.shape == (2, 1, 8, 256)
        elif layer is None:
            assert kept is None
        else:
            assert kept == DELTA.keeps and layer.tensors["heads"].shape == (5, 4, 256)
    table = cache.take(300)
    cache.make_ready()
    assert cache.touched_blocks == 2
    assert cache.touched_bytes <= cache.nbytes + (2 << 20)
    cache.give_back(table)


def test_a_sequence_has_a_slot_while_it_runs() -> None:
    cache = SharedCache([DELTA.keeps, KEYS], 8, slots=2, share=False)
    first, second = cache.borrow([1, 2], 3), cache.borrow([1, 2], 3)
    assert {first.slot, second.slot} == {0, 1}
    assert not cache.has_room(1) and cache.free_blocks == 6
    cache.end(first)
    assert cache.has_room(1) and cache.borrow([5], 1).slot == first.slot
