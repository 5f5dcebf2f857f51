"""Asking the kernel which pages of a file are in memory, without touching them."""

from __future__ import annotations

import ctypes
import errno
import mmap

import numpy as np

_CACHESTAT = 451  # the same number on every architecture; Linux 6.5 and later
_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent"))


class PageCache:
    """The page cache's view of one open file of `size` bytes."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._mapping: mmap.mmap | None = None  # for kernels without cachestat, six times slower
        self._address = 0
        if size and self._cachestat(0, 1) is None:
            self._mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
            self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data

    def missing(self, offset: int, nbytes: int) -> int:
        """How many pages of a range would have to be read; a guess, it may change at once."""
        first = offset - offset % mmap.PAGESIZE
        length = min(offset + nbytes, self._size) - first
        if length <= 0:
            return 0
        pages = -(-length // mmap.PAGESIZE)
        if self._mapping is not None:
            return self._mincore(first, length, pages)
        cached = self._cachestat(first, length)
        return pages if cached is None else max(0, pages - cached)

    def _cachestat(self, offset: int, length: int) -> int | None:
        """Pages in memory; None where the kernel does not tell."""
        counts = _Counts()
        where = _Range(offset, length)
        status = _libc.syscall(_CACHESTAT, self._descriptor, ctypes.byref(where), ctypes.byref(counts), 0)
        if status != 0 and ctypes.get_errno() == errno.EPERM:
            return 0  # another user's file: read around the cache
        return int(counts.cached) if status == 0 else None

    def _mincore(self, first: int, length: int, pages: int) -> int:
        present = ctypes.create_string_buffer(pages)
        if _libc.mincore(ctypes.c_void_p(self._address + first), ctypes.c_size_t(length), present) != 0:
            return pages
        return present.raw.count(0)
