"""Expert bytes from file to tiles: explicit reads into a small staging buffer, tiled from there.

Pages that the page cache already holds are copied from it; the rest is read around it (O_DIRECT), which costs a
fifth of the processor time and leaves the cache alone.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.errors import FileError
from colibri.experts.page_cache import PageCache
from colibri.experts.store import ExpertStore
from colibri.weights.file_reader import FileReader, changed, identity_of, open_regular, truncated
from colibri.weights.rows import fetched_by, read_rows
from colibri.weights.tensor_info import TensorInfo

ALIGNMENT = 4096  # of address, offset and length of an O_DIRECT read; every block device here accepts it
PIECE = 1 << 20  # large enough for the disk's rate with few reads in flight, small enough to be shared by threads
STRIPE = 16  # rows of a tile
HUGE_PAGE = 2 << 20

log = logging.getLogger("colibri")
PositionedRead = Callable[[int, memoryview, int], int]


def _read(descriptor: int, view: memoryview, offset: int) -> int:
    return os.preadv(descriptor, [view], offset)


class ExpertFile:
    """One open file: a buffered and a direct descriptor and what the page cache has of it."""

    def __init__(self, path: Path, direct: bool = True) -> None:
        self.path = path
        self.buffered = self.direct_descriptor = -1
        self.buffered = open_regular(path)
        self.identity = identity_of(self.buffered)
        self.direct = direct and self._open_direct()
        self._cache = PageCache(self.buffered, self.identity[2])

    def _open_direct(self) -> bool:
        """The same file, also when the path leads to another by now."""
        try:
            self.direct_descriptor = os.open(f"/proc/self/fd/{self.buffered}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            self.refuse_direct(error)
            return False
        return True

    def refuse_direct(self, error: OSError) -> None:
        """Go on with buffered reads, and say so."""
        log.warning("%s: the filesystem refuses O_DIRECT (%s); experts are read through the page cache",
                    self.path, error.strerror)  # fmt: skip
        self.direct = False

    def check_unchanged(self) -> None:
        """Raise FileError when the file was written to since it was opened."""
        if identity_of(self.buffered) != self.identity:
            raise changed(self.path)

    def cached(self, offset: int, nbytes: int) -> bool:
        """Whether the page cache holds the range, a page or two aside. Only decides how it is read."""
        return self._cache.missing(offset, nbytes) <= nbytes // mmap.PAGESIZE // 64

    def __del__(self) -> None:  # by the last reader, also when the path was forgotten meanwhile
        for descriptor in (self.buffered, self.direct_descriptor):
            if descriptor >= 0:
                os.close(descriptor)


class ExpertReader:
    """Reads tensors into tiles, from any number of threads; each thread owns a staging buffer.

    `read` is the positioned read, exchanged by tests that inject faults. Raises FileError naming file and offset.
    """

    def __init__(self, staging_bytes: int, direct: bool = True, read: PositionedRead = _read) -> None:
        self._direct = direct
        self._read = read
        self._staging_bytes = staging_bytes
        self._files: dict[Path, ExpertFile] = {}
        self._lock = threading.Lock()
        self._local = threading.local()
        self.assume_uncached = False  # to measure and test direct reads

    def pieces(self, info: TensorInfo) -> Iterator[tuple[int, int]]:
        """(first row, rows) of the pieces in which a matrix is read; any thread may read any of them."""
        rows = info.shape[0]
        if info.encoding is not None and not info.encoding.bytes:  # a matrix whose rows are not stored one by one
            yield 0, rows
            return
        step = -(-rows // -(-info.nbytes // PIECE) // STRIPE) * STRIPE  # equal pieces: the last is not a small one
        for first in range(0, rows, step):
            yield first, min(step, rows - first)

    def load_piece(self, tensor: ops.Tensor, info: TensorInfo, first: int, count: int) -> None:
        """Read `count` rows from `first` on and tile them into their place."""
        fetch = self._stored if info.strides is None else fetched_by(FileReader())  # whose ranges overlap
        read = read_rows(info, first, count, fetch)
        for file in {info.file, *(side.file for side in info.sides)}:
            self.open(file).check_unchanged()
        ops.tile(tensor, read.reshape(-1).data, first, count)

    def _stored(self, path: Path, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a file, in the thread's buffer where they fit."""
        file = self.open(path)
        direct = file.direct and (self.assume_uncached or not file.cached(offset, nbytes))
        staging = self._staging()
        if nbytes + 2 * ALIGNMENT > len(staging):
            staging = memoryview(ops.Memory(nbytes + 2 * ALIGNMENT))
        return np.frombuffer(self._fetch(file, staging, offset, nbytes, direct), np.uint8)

    def close(self) -> None:
        """Close all files, each when the last read of it ends."""
        with self._lock:
            self._files.clear()

    def open(self, path: Path) -> ExpertFile:
        """The file that is read for this path: what is there at the first call, also when another takes its place."""
        file = self._files.get(path)
        if file is None:
            with self._lock:
                file = self._files.get(path)
                if file is None:
                    file = self._files[path] = ExpertFile(path, self._direct)
        return file

    def renew(self) -> None:
        """In the child of a fork: buffers and lock are not those of threads that are gone."""
        self._lock = threading.Lock()
        self._local = threading.local()

    def use(self, file: ExpertFile) -> None:
        """Read this open file from now on whenever its path is asked for."""
        with self._lock:
            self._files[file.path] = file

    def _staging(self) -> memoryview:
        view: memoryview | None = getattr(self._local, "view", None)
        if view is None:
            view = self._local.view = memoryview(ops.Memory(self._staging_bytes))
        return view

    def _fetch(self, file: ExpertFile, staging: memoryview, offset: int, nbytes: int, direct: bool) -> memoryview:
        if direct and file.direct:
            first = offset - offset % ALIGNMENT
            skip = offset - first
            length = -(-(skip + nbytes) // ALIGNMENT) * ALIGNMENT
            self._fill(file, file.direct_descriptor, staging[:length], first, skip + nbytes)
            return staging[skip : skip + nbytes]
        self._fill(file, file.buffered, staging[:nbytes], offset, nbytes)
        return staging[:nbytes]

    def _fill(self, file: ExpertFile, descriptor: int, view: memoryview, offset: int, needed: int) -> None:
        """Read until `needed` bytes are there; `view` may be longer (direct reads end on a block)."""
        done = 0
        while done < needed:
            try:
                count = self._read(descriptor, view[done:], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.EINVAL and descriptor == file.direct_descriptor:
                    file.refuse_direct(error)
                    descriptor = file.buffered
                    continue
                raise FileError(
                    f"{file.path}: reading {needed - done} bytes at offset {offset + done} failed: {error.strerror}; "
                    "check the disk"
                ) from error
            if count <= 0:
                raise truncated(file.path, descriptor, needed - done, offset + done)
            done += count
            if descriptor == file.direct_descriptor and done % ALIGNMENT:
                descriptor = file.buffered  # a direct read must start on a block; the file's end does not


def staging_bytes(store: ExpertStore) -> int:
    """Bytes of the buffer into which one thread reads a piece of this model's experts.

    Huge pages unless it is small: on pages of 4 KiB a read has hundreds of segments and takes twice as long.
    """
    parts = [part for layer in store.moe_layers() for part in store.like(layer).parts]
    piece = max(_stored_bytes(part) for part in parts) + 2 * ALIGNMENT
    return piece if piece < HUGE_PAGE // 4 else -(-piece // HUGE_PAGE) * HUGE_PAGE


def _stored_bytes(part: TensorInfo) -> int:
    """What is read of the file for one piece at most."""
    wanted = min(part.nbytes, PIECE) + STRIPE * part.row_bytes
    if part.order is None:
        return wanted
    units = -(-wanted // (part.row_bytes * len(part.order.rows))) + 1
    return units * part.order.unit * part.row_bytes
