"""Explicit reads of ranges of files: the one way in which tensor bytes reach memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colibri.errors import ChangedFileError, FileError

_READ_LIMIT = 1 << 30  # Linux reads at most 0x7ffff000 bytes a call
Identity = tuple[int, int, int, int]  # device, inode, size, time of the last change


def truncated(path: Path, descriptor: int, nbytes: int, offset: int) -> ChangedFileError:
    """What a read of so many bytes that found the end of an open file says."""
    return ChangedFileError(
        f"{path}: ends at byte {os.fstat(descriptor).st_size}, but {nbytes} bytes at offset {offset} are needed; "
        "the file was truncated while in use"
    )


def identity_of(descriptor: int) -> Identity:
    """What differs when an open file, or another in its place, holds something else."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def changed(path: Path) -> ChangedFileError:
    """What a read says of a file that is not what it was."""
    return ChangedFileError(
        f"{path}: is not what was read first; it was changed or replaced while in use; load it again"
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


class FileReader:
    """Reads byte ranges with pread; safe to share between threads. No file stays open between two reads.

    A file that shrinks, changes or is replaced by another while the reader lives raises FileError: a range is either
    read whole or not at all, never filled with zeros.
    """

    def __init__(self) -> None:
        self._identity: dict[Path, Identity] = {}  # of the files that were read

    def read_into(self, file: Path, offset: int, buffer: Any) -> None:
        """Fill `buffer` (writable, contiguous) with the bytes of `file` from `offset` on.

        Raises FileError, naming file and offset, when the file cannot be read or ends before the buffer is full.
        """
        view = memoryview(buffer).cast("B")
        descriptor = open_regular(file)
        try:
            self._check_same(file, descriptor, offset, len(view))
            done = 0
            while done < len(view):  # os.preadv itself goes on after a signal, but a read may be short
                count = os.preadv(descriptor, [view[done : done + _READ_LIMIT]], offset + done)
                if count == 0:
                    raise truncated(file, descriptor, len(view), offset)
                done += count
        except OSError as error:
            raise FileError(f"{file}: reading {len(view)} bytes at offset {offset}: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def _check_same(self, file: Path, descriptor: int, offset: int, nbytes: int) -> None:
        identity = identity_of(descriptor)
        if offset + nbytes > identity[2]:
            raise truncated(file, descriptor, nbytes, offset)
        if self._identity.setdefault(file, identity) != identity:
            raise changed(file)
