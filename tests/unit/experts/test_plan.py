"""The budget is divided from real bytes, kept, and refused with the number that would do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from expert_files import CHOSEN, EXPERTS, LAYERS
from hypothesis import given
from hypothesis import strategies as st

from colibri.errors import MemoryBudgetError
from colibri.experts.machine import MachineMemory, detect_memory, resident_bytes
from colibri.experts.plan import MIB, Needs, default_budget, divide, make_plan, slots_bytes
from colibri.experts.store import ExpertStore

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


def fake_system(root: Path, available: int = 8 << 20, total: int = 16 << 20, groups: str = "0::/app\n") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")
    (root / "proc/self/statm").write_text("1000 500 100 1 0 300 0\n")
    (root / "proc/self/cgroup").write_text(groups)
    return root


def group(root: Path, where: str, **files: str) -> None:
    folder = root / "sys/fs/cgroup" / where
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_no_group(tmp_path: Path) -> None:
    assert detect_memory(fake_system(tmp_path)) == MachineMemory(8 << 30, 16 << 30, 500 * 4096)


def test_group_version_2(tmp_path: Path) -> None:
    root = fake_system(tmp_path)
    group(root, "app", memory__max=str(3 << 30), memory__current=str(2 << 30), memory__stat=f"inactive_file {1 << 30}")
    group(root, "", memory__max="max", memory__current="5")
    assert detect_memory(root).available == 2 << 30
    group(root, "", memory__max=str(1 << 30), memory__current="0")
    assert detect_memory(root).available == 1 << 30


def test_group_version_1(tmp_path: Path) -> None:
    root = fake_system(tmp_path, groups="9:cpu:/x\n4:memory:/app\n0::/\n")
    group(root, "memory/app", memory__limit_in_bytes=str(2 << 30), memory__usage_in_bytes=str(1 << 30))
    group(root, "memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="1")
    assert detect_memory(root).available == 1 << 30


@pytest.mark.parametrize(("available", "total"), [(0, 16), (16, 0), (17, 16)])
def test_nonsense_is_an_error(tmp_path: Path, available: int, total: int) -> None:
    with pytest.raises(MemoryBudgetError, match="--ram"):
        detect_memory(fake_system(tmp_path, available, total))


def test_a_group_without_limit_or_memory_is_an_error(tmp_path: Path) -> None:
    root = fake_system(tmp_path)
    group(root, "app", memory__max="0", memory__current="0")
    with pytest.raises(MemoryBudgetError, match="--ram"):
        detect_memory(root)


def test_this_machine() -> None:
    memory = detect_memory()
    assert 0 < memory.available <= memory.total
    assert resident_bytes() > MIB
