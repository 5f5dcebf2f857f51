"""What the machine gives this process: processors and memory, from /proc and its control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import MemoryBudgetError

UNLIMITED = 1 << 60  # version 1 writes about 2^63 for no limit, version 2 writes "max"


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Bytes: what can still be taken, what is installed, what this process takes already."""

    available: int
    total: int
    resident: int


def detect_memory(root: Path = Path("/")) -> MachineMemory:
    """What is there now. Raises MemoryBudgetError when the system's figures make no sense."""
    info = _memory_info(root / "proc/meminfo")
    available, total = info.get("MemAvailable", 0), info.get("MemTotal", 0)
    if not 0 < available <= total:
        raise MemoryBudgetError(
            f"{root / 'proc/meminfo'}: found MemAvailable {available} and MemTotal {total} bytes, expected "
            "0 < MemAvailable <= MemTotal; mount the kernel's own /proc (mount -t proc proc /proc)"
        )
    for limit, used, reclaimable in _group_limits(root):
        if limit <= 0:
            raise MemoryBudgetError(f"the control group's memory limit is {limit}; raise it (memory.max)")
        if limit < UNLIMITED:
            available = min(available, max(0, limit - max(0, used - reclaimable)))
            total = min(total, limit)
    if available == 0:
        raise MemoryBudgetError("the control group has no memory left; raise its limit")
    return MachineMemory(available, total, resident_bytes(root))


def cpus(root: Path = Path("/")) -> int:
    """Processors this process may use: affinity and the control groups' quotas, at least 1."""
    try:
        affinity = len(os.sched_getaffinity(0))
    except OSError:  # a sandbox that does not tell; the thread pool then binds nothing either
        affinity = os.cpu_count() or 1
    quotas = [quota for group, version in _groups(root, "cpu") if (quota := _quota(group, version))]
    return max(1, min(affinity, *quotas)) if quotas else affinity


def _quota(group: Path, version: int) -> int:
    """Whole processors' worth of time, at least 1: a thread too many would stand still in mid-step; 0: no limit."""
    if version == 2:
        words = _text(group / "cpu.max").split()  # "max 100000" sets none
    else:
        words = [_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return 0
    return max(1, int(words[0]) // int(words[1]))


def resident_bytes(root: Path = Path("/")) -> int:
    """Bytes of physical memory that this process takes."""
    return int(_of_proc(root / "proc/self/statm").split()[1]) * os.sysconf("SC_PAGESIZE")


def peak_resident_bytes() -> int:
    """The most bytes that this process had in memory; the system notes them now and then, so now may be the most.

    Not getrusage's, which begins with the memory of the process that started this one.
    """
    noted = re.search(r"^VmHWM:\s*(\d+) kB", _text(Path("/proc/self/status")), re.MULTILINE)
    return max(resident_bytes(), int(noted[1]) << 10 if noted else 0)


def _memory_info(path: Path) -> dict[str, int]:
    return {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", _of_proc(path), re.MULTILINE)}


def _of_proc(path: Path) -> str:
    """What a file says without which the memory of this process is not known, whatever --ram says."""
    try:
        return path.read_text()
    except OSError as error:
        raise MemoryBudgetError(
            f"{path}: {error.strerror}, expected the kernel's own /proc; mount it (mount -t proc proc /proc)"
        ) from error


def _group_limits(root: Path) -> list[tuple[int, int, int]]:
    """(limit, used, reclaimable) of this process's control groups and all above them."""
    limits = []
    for group, version in _groups(root, "memory"):
        limit_name, used_name, cache_name = _MEMORY_FILES[version]
        if (limit := _number(group / limit_name)) is not None:
            used = _number(group / used_name) or 0
            limits.append((limit, used, _cache_bytes(group / "memory.stat", cache_name)))
    return limits


_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """The directories of this process's control groups and of all above them, and the version, 1 or 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        directory = mount / path.strip("/")
        for group in (directory, *directory.parents):
            yield group, 1 if controllers else 2
            if group == mount:
                break


def _number(path: Path) -> int | None:
    text = _text(path)
    return UNLIMITED if text == "max" else int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    """What a file of the system says, "" when it is not there."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cache_bytes(path: Path, name: str) -> int:
    """Page cache that the group gives back under pressure."""
    found = re.search(rf"^{name} (\d+)$", _text(path), re.MULTILINE)
    return int(found[1]) if found else 0
