"""The budget is divided from real bytes, kept, and refused with the number that would do."""

from __future__ import annotations

import re

import pytest
from expert_files import CHOSEN, EXPERTS, LAYERS
from hypothesis import given, strategies as st

from colibri.errors import MemoryBudgetError
from colibri.experts.plan import MIB, Needs, default_budget, divide, make_plan, slots_bytes
from colibri.experts.store import ExpertStore
from colibri.machine import MachineMemory

NEEDS = Needs(process=60 * MIB, dense=5 * MIB, cache=3 * MIB, workspace=2 * MIB, staging=2 * MIB)


def test_everything_fits(store: ExpertStore) -> None:
    plan = make_plan(store, CHOSEN, NEEDS, 1 << 30)
    assert plan.fits
    assert sum(plan.limits.values()) == LAYERS * EXPERTS
    assert plan.expert_bytes == slots_bytes(store.layout_counts())
    assert not plan.notes


def test_below_the_floor(store: ExpertStore) -> None:
    with pytest.raises(MemoryBudgetError) as refusal:
        make_plan(store, CHOSEN, NEEDS, 50 * MIB)
    enough = re.search(r"use --ram (\d+)M", str(refusal.value))
    assert enough is not None
    plan = make_plan(store, CHOSEN, NEEDS, int(enough[1]) * MIB)
    assert all(limit >= CHOSEN for limit in plan.limits.values())


def test_below_the_floor_of_what_was_found(store: ExpertStore) -> None:
    """What can be had is said; --ram is advised only where it could help."""
    machine = MachineMemory(available=300 * MIB, total=1 << 30, resident=20 * MIB)
    budget = default_budget(machine)
    with pytest.raises(MemoryBudgetError) as refusal:
        make_plan(store, CHOSEN, NEEDS, budget, machine=machine)
    assert "320.0 MiB are available here, of which 64.0 MiB may be taken" in str(refusal.value)
    assert re.search(r"; use --ram \d+M or more to take a part of what is left", str(refusal.value))
    machine = MachineMemory(available=30 * MIB, total=1 << 30, resident=20 * MIB)
    with pytest.raises(MemoryBudgetError, match=r"50.0 MiB are available here, of which 20.0 MiB may be") as refusal:
        make_plan(store, CHOSEN, NEEDS, default_budget(machine), machine=machine)
    assert "--ram" not in str(refusal.value)


def test_below_the_floor_beside_another_process(store: ExpertStore) -> None:
    """The number counts the other process: with it, this one has enough."""
    with pytest.raises(MemoryBudgetError, match=r"--ram 150.0 MiB is below .* 100.0 MiB the web server") as refusal:
        make_plan(store, CHOSEN, NEEDS, 50 * MIB, beside=100 * MIB)
    assert str(refusal.value).endswith("or more, or fewer --sequences, a smaller --context or --kv-type q8_0")
    enough = re.search(r"use --ram (\d+)M", str(refusal.value))
    assert enough is not None
    make_plan(store, CHOSEN, NEEDS, (int(enough[1]) - 100) * MIB, beside=100 * MIB)


LAYOUTS = {
    (("Q4_K", 256 * a, 256), ("Q4_K", 256 * a, 256), (kind, 256, 256 * a)): 64 * a
    for a, kind in ((1, "Q4_K"), (2, "Q6_K"), (3, "Q8_0"))
}


@given(share=st.floats(0.0, 1.2), least=st.integers(1, 16))
def test_dividing_keeps_the_budget(share: float, least: int) -> None:
    minimum = dict.fromkeys(LAYOUTS, least)
    room = max(slots_bytes(minimum), int(share * slots_bytes(LAYOUTS)))
    slots = divide(room, LAYOUTS, minimum)
    assert slots_bytes(slots) <= room
    for layout, count in slots.items():
        assert least <= count <= LAYOUTS[layout]
    wasted = room - slots_bytes(slots)
    for layout, count in slots.items():
        assert count == LAYOUTS[layout] or wasted < slots_bytes({layout: 1})


def test_less_than_a_token_is_said(store: ExpertStore) -> None:
    floor = make_plan(store, CHOSEN, NEEDS, 1 << 30).floor
    plan = make_plan(store, CHOSEN, NEEDS, floor)
    assert any("less than the experts of one token" in note for note in plan.notes)
    assert 0 < plan.resident_share < 1


def test_default_budget() -> None:
    machine = MachineMemory(available=8 << 30, total=16 << 30, resident=100 * MIB)
    assert default_budget(machine) == (8 << 30) * 15 // 16 + 100 * MIB
    assert default_budget(MachineMemory(300 * MIB, 1 << 30, 0)) == 44 * MIB
