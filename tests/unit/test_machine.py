"""What the machine gives a process, read from made-up /proc and control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from colibri.errors import MemoryBudgetError
from colibri.machine import MachineMemory, cpus, detect_memory, peak_resident_bytes, resident_bytes


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
    with pytest.raises(MemoryBudgetError, match="mount -t proc"):
        detect_memory(fake_system(tmp_path, available, total))


@pytest.mark.parametrize("name", ["proc/meminfo", "proc/self/statm"])
def test_a_system_without_proc_is_an_error_that_says_what_to_do(tmp_path: Path, name: str) -> None:
    root = fake_system(tmp_path)
    (root / name).unlink()
    with pytest.raises(MemoryBudgetError, match=rf"{name}: No such file or directory, expected .*; mount it"):
        detect_memory(root)


def test_a_refused_affinity_leaves_all_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> set[int]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    assert cpus(tmp_path) == os.cpu_count()


def test_a_group_without_limit_or_memory_is_an_error(tmp_path: Path) -> None:
    root = fake_system(tmp_path)
    group(root, "app", memory__max="0", memory__current="0")
    with pytest.raises(MemoryBudgetError, match="raise it"):
        detect_memory(root)


def test_this_machine() -> None:
    memory = detect_memory()
    assert 0 < memory.available <= memory.total
    assert 1 << 20 < resident_bytes() <= peak_resident_bytes()
    assert 1 <= cpus() <= (os.cpu_count() or 1)


AFFINITY = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("own", "parent", "expected"),
    [
        ("max 100000", "max 100000", AFFINITY),
        ("100000 100000", "max 100000", 1),
        ("50000 100000", "max 100000", 1),  # less than a processor is still one thread
        ("190000 100000", "max 100000", 1),
        ("max 100000", "150000 100000", 1),
        ("100000000 100000", "max 100000", AFFINITY),
        ("nonsense", "", AFFINITY),
        ("100000 0", "", AFFINITY),
    ],
)
def test_processors_of_a_group_version_2(tmp_path: Path, own: str, parent: str, expected: int) -> None:
    root = fake_system(tmp_path)
    group(root, "app", cpu__max=own)
    group(root, "", cpu__max=parent)
    assert cpus(root) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", AFFINITY), ("100000", 1), ("", AFFINITY)])
def test_processors_of_a_group_version_1(tmp_path: Path, quota: str, expected: int) -> None:
    root = fake_system(tmp_path, groups="9:cpu,cpuacct:/x\n4:memory:/app\n")
    group(root, "cpu/x", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert cpus(root) == expected


def test_processors_without_groups(tmp_path: Path) -> None:
    assert cpus(tmp_path) == AFFINITY
