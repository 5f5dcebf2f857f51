"""Memory of the key-value cache: it is there before a step needs it, and what it takes is told beforehand."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import colibri
from colibri import ops
from colibri.cache.kv import KeyValueCache
from colibri.config import SamplingParams
from colibri.spec import KeyValues

KEEPS = [KeyValues(heads=8, key_dim=128, value_dim=128)] * 3
PARTS = 2 * len(KEEPS)
BLOCKS = 16  # of 512 KiB in each part: four to a huge page
MODEL = Path(__file__).resolve().parents[1] / "golden" / "qwen3_moe-quantized" / "model.gguf"


def write(cache: KeyValueCache, block: int) -> int:
    """Page faults of writing to a block in all layers."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for layer in cache.layers:
        for part in layer.parts:
            part.numpy()[block] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def taken(blocks: int) -> KeyValueCache:
    cache = KeyValueCache(KEEPS, BLOCKS)
    for block in cache.take(ops.KV_BLOCK * blocks).tolist():
        write(cache, block)
    return cache


def test_the_next_block_is_there_before_it_is_written() -> None:
    late, ready = taken(4), taken(4)
    for _ in range(PARTS):
        ready.make_ready()
    assert late.take(1).tolist() == ready.take(1).tolist() == [4]
    assert write(late, 4) >= PARTS
    assert write(ready, 4) < PARTS


def test_making_ready_goes_one_block_ahead_and_is_told_beforehand() -> None:
    cache = taken(2)
    told: list[int] = []
    cache.on_growth = told.append
    assert cache.touched_blocks == 2
    cache.make_ready()
    assert cache.touched_blocks == 3
    for _ in range(5 * PARTS):
        cache.make_ready()
    assert cache.touched_blocks == 3
    assert told == [cache.touched_bytes]
    cache.take(1)
    assert told == [cache.touched_bytes]  # nothing new
    cache.take(ops.KV_BLOCK * (BLOCKS - 3))
    cache.make_ready()
    assert cache.touched_blocks == BLOCKS
    assert told[-1] == cache.touched_bytes


def test_a_range_outside_of_the_memory_is_refused() -> None:
    memory = ops.Memory(10_000)
    memory.populate(4096, 10_000 - 4096)
    with pytest.raises(ValueError, match="a range within 10000 bytes"):
        memory.populate(4096, 10_000)


@pytest.mark.parametrize(("max_tokens", "ahead"), [(100, False), (400, True)])
def test_a_sequence_that_may_need_a_block_finds_it(max_tokens: int, ahead: bool) -> None:
    with colibri.load(MODEL, context=640) as model:
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        generation = model.generate([token % 64 for token in range(149)], params)
        for _ in range(80):
            model.engine.step()
        assert model.engine.cache.touched_blocks == (2 if ahead else 1)
        generation.close()
