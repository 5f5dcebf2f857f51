"""What memory this process may take, from /proc and its control group."""

from __future__ import annotations

import os
import re
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
            "0 < MemAvailable <= MemTotal; give the memory to use with --ram"
        )
    for limit, used, reclaimable in _group_limits(root):
        if limit <= 0:
            raise MemoryBudgetError(f"the control group's memory limit is {limit}; give the memory to use with --ram")
        if limit < UNLIMITED:
            available = min(available, max(0, limit - max(0, used - reclaimable)))
            total = min(total, limit)
    if available == 0:
        raise MemoryBudgetError("the control group has no memory left; raise its limit")
    return MachineMemory(available, total, resident_bytes(root))


def resident_bytes(root: Path = Path("/")) -> int:
    """Bytes of physical memory that this process takes."""
    pages = int((root / "proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def _memory_info(path: Path) -> dict[str, int]:
    try:
        text = path.read_text()
    except OSError as error:
        raise MemoryBudgetError(f"{path}: {error.strerror}; give the memory to use with --ram") from error
    return {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


def _group_limits(root: Path) -> list[tuple[int, int, int]]:
    """(limit, used, reclaimable) of this process's control groups and all above them, of both versions."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _walk(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            limits += _walk(root / "sys/fs/cgroup/memory", path, *names)
    return limits


def _walk(mount: Path, path: str, limit_name: str, used_name: str, cache_name: str) -> list[tuple[int, int, int]]:
    limits = []
    directory = mount / path.strip("/")
    for group in (directory, *directory.parents):
        if (limit := _number(group / limit_name)) is not None:
            used = _number(group / used_name) or 0
            limits.append((limit, used, _cache_bytes(group / "memory.stat", cache_name)))
        if group == mount:
            break
    return limits


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return UNLIMITED if text == "max" else int(text) if text.lstrip("-").isdigit() else None


def _cache_bytes(path: Path, name: str) -> int:
    """Page cache that the group gives back under pressure."""
    try:
        text = path.read_text()
    except OSError:
        return 0
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0
