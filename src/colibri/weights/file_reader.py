"""Explicit reads of ranges of files: the one way in which tensor bytes reach memory."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from colibri.errors import FileError

_READ_LIMIT = 1 << 30  # Linux reads at most 0x7ffff000 bytes a call


def truncated(path: Path, descriptor: int, nbytes: int, offset: int) -> FileError:
    """What a read of so many bytes that found the end of an open file says."""
    return FileError(
        f"{path}: ends at byte {os.fstat(descriptor).st_size}, but {nbytes} bytes at offset {offset} are needed; "
        "the file was truncated while in use"
    )


def open_regular(path: Path) -> int:
    """A descriptor of a regular file for reading; FileError when there is none (a pipe would be waited for)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError(f"{path}: is not a regular file")
    return descriptor


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, int]]:
    """The descriptor and the size of a regular file; errors of the system become FileError naming the file."""
    descriptor = open_regular(path)
    try:
        yield descriptor, os.fstat(descriptor).st_size
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def read_exactly(path: Path, descriptor: int, count: int, offset: int) -> bytes:
    """`count` bytes from `offset` on; FileError when the file ends before."""
    parts = []
    while count:
        part = os.pread(descriptor, min(count, _READ_LIMIT), offset)
        if not part:
            size = os.fstat(descriptor).st_size
            raise FileError(f"{path}: ends at byte {size}, {count} bytes from byte {offset} on are expected; truncated")
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return b"".join(parts)


class _OpenFile:
    """A descriptor and how many reads use it now."""

    __slots__ = ("descriptor", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0


class FileReader:
    """Reads byte ranges with pread; safe to share between threads, keeps at most `max_open` idle files open.

    A file that shrinks or is replaced by another while the reader lives raises FileError: a range is either read
    whole or not at all, never filled with zeros.
    """

    def __init__(self, max_open: int = 64) -> None:
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, _OpenFile] = OrderedDict()
        self._identity: dict[Path, tuple[int, int, int, int]] = {}

    def read_into(self, file: Path, offset: int, buffer: Any) -> None:
        """Fill `buffer` (writable, contiguous) with the bytes of `file` from `offset` on.

        Raises FileError, naming file and offset, when the file cannot be read or ends before the buffer is full.
        """
        view = memoryview(buffer).cast("B")
        with self._descriptor(file) as descriptor:
            done = 0
            while done < len(view):  # os.preadv itself goes on after a signal, but a read may be short
                part = view[done : done + _READ_LIMIT]
                try:
                    count = os.preadv(descriptor, [part], offset + done)
                except OSError as error:
                    raise FileError(
                        f"{file}: reading {len(view)} bytes at offset {offset}: {error.strerror}"
                    ) from error
                if count == 0:
                    raise truncated(file, descriptor, len(view), offset)
                done += count

    def close(self) -> None:
        """Close every idle file; a file in use is closed when its read ends. The reader can be used again."""
        with self._lock:
            self._trim(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        for entry in self._open.values():
            os.close(entry.descriptor)
        self._open.clear()

    @contextmanager
    def _descriptor(self, file: Path) -> Iterator[int]:
        with self._lock:
            entry = self._open.get(file)
            if entry is None:
                entry = self._open[file] = _OpenFile(self._open_checked(file))
            self._open.move_to_end(file)
            entry.users += 1
        try:
            yield entry.descriptor
        finally:
            with self._lock:
                entry.users -= 1
                self._trim(self._max_open)

    def _open_checked(self, file: Path) -> int:
        descriptor = open_regular(file)
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._identity.setdefault(file, identity) != identity:
            os.close(descriptor)
            raise FileError(f"{file}: is another file than the one opened first; it was replaced while in use")
        return descriptor

    def _trim(self, keep: int) -> None:
        idle = [file for file, entry in self._open.items() if entry.users == 0]
        for file in idle[: max(0, len(self._open) - keep)]:
            os.close(self._open.pop(file).descriptor)
