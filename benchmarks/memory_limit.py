"""Running a process under a real memory limit: a control group of either version, which counts its page cache, too."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
VERSIONS = ((MOUNT / "memory", "memory.limit_in_bytes", "memory.oom_control"), (MOUNT, "memory.max", "memory.events"))


@dataclass(frozen=True)
class Group:
    """A control group with a limit."""

    path: Path
    events: str

    def enter(self) -> None:
        """Put the calling process into it: what Popen's preexec_fn wants."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def kills(self) -> int:
        """Processes that the kernel killed for memory."""
        found = re.search(r"^oom_kill (\d+)$", (self.path / self.events).read_text(), re.MULTILINE)
        return int(found[1]) if found else 0


LOCK = """
import ctypes, mmap, sys
memory = mmap.mmap(-1, max(1, int(sys.argv[1])), mmap.MAP_PRIVATE)
library = ctypes.CDLL(None, use_errno=True)
if library.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory))), ctypes.c_size_t(len(memory))):
    sys.exit(f"mlock: error {ctypes.get_errno()}")
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked(nbytes: int, group: Group) -> Iterator[None]:
    """A process in the group that holds so many bytes of its memory for itself."""
    command = [sys.executable, "-c", LOCK, str(nbytes)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, preexec_fn=group.enter) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"locked\n":
            raise OSError(f"{nbytes} bytes could not be locked")
        yield
        process.communicate()


@contextlib.contextmanager
def limited(nbytes: int) -> Iterator[Group]:
    """A control group that may take so many bytes. Raises OSError where none can be made; root can."""
    with contextlib.suppress(OSError):
        (MOUNT / "cgroup.subtree_control").write_text("+memory")
    for folder, limit, events in VERSIONS:
        group = Group(folder / f"colibri-{os.getpid()}", events)
        try:
            group.path.mkdir()
        except OSError:
            continue
        try:
            if (group.path / limit).exists():
                (group.path / limit).write_text(str(nbytes))
                yield group
                return
        finally:
            group.path.rmdir()
    raise OSError("no control group with a memory limit can be made here; run as root")
