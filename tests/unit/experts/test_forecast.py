"""What is expected of a plan: bounded by the slower of memory and disk, and measured rates that are there."""

from __future__ import annotations

import pytest
from expert_files import CHOSEN, EXPERTS

from colibri.cache.kv import KeyValueCache
from colibri.experts.plan import MIB, Needs, make_plan, slots_bytes
from colibri.experts.store import ExpertStore
from colibri.observe.forecast import forecast, measure_reading
from colibri.spec import KeyValues

NEEDS = Needs(process=60 * MIB, dense=5 * MIB, cache=1 * MIB, workspace=2 * MIB, staging=2 * MIB)


def test_forecast(store: ExpertStore) -> None:
    floor = make_plan(store, CHOSEN, NEEDS, 1 << 30).floor
    plan = make_plan(store, CHOSEN, NEEDS, floor)
    slow = forecast(plan, 1e6, 40e9, 1e8, 0.25)
    fast = forecast(plan, 1e6, 40e9, 1e12, 0.25)
    assert (slow.limit, fast.limit) == ("disk", "memory")
    assert slow.disk_bytes == 0.75 * plan.token_bytes
    assert slow.tokens_per_s < 1e8 / slow.disk_bytes
    assert fast.tokens_per_s == pytest.approx(0.8 * 40e9 / 1e6, rel=0.01)
    assert forecast(plan, 1e6, 40e9, 1e8, 1.0).disk_bytes == 0


def test_slots_give_way_to_the_cache(store: ExpertStore) -> None:
    floor = make_plan(store, CHOSEN, NEEDS, 1 << 30).floor
    plan = make_plan(store, CHOSEN, NEEDS, floor + MIB // 8)
    assert plan.limits_beside(NEEDS.cache) == plan.limits
    for used in range(0, NEEDS.cache, MIB // 8):
        limits = plan.limits_beside(used)
        assert slots_bytes(limits) - plan.expert_bytes <= NEEDS.cache - used + MIB // 8
        assert all(limits[layout] >= plan.limits[layout] for layout in limits)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("misses", [1, CHOSEN, EXPERTS])
def test_reading_is_measured(store: ExpertStore, misses: int, cached: bool) -> None:
    for seconds in (0.05, 0.0):  # a machine so busy that the time is over at once
        assert 1e4 < measure_reading(store, misses, seconds, cached=cached) < 1e12


@pytest.mark.parametrize("blocks", [1, 7, 40])
def test_the_cache_tells_before_it_grows(blocks: int) -> None:
    cache = KeyValueCache([KeyValues(heads=4, key_dim=64, value_dim=64)] * 3, blocks)
    heard: list[int] = []
    cache.on_growth = heard.append
    assert cache.touched_bytes == 0
    tables = [cache.take(256) for _ in range(blocks)]
    assert len(heard) == blocks
    assert heard == sorted(heard)
    assert heard[-1] >= cache.nbytes
    for table in tables:
        cache.give_back(table)
    cache.take(256 * blocks)
    assert len(heard) == blocks
    each = cache.nbytes // blocks
    assert all(used >= each * number for number, used in enumerate(heard, 1))
