"""How fast a folder's disk reads: a file is written there, read past the page cache, and removed."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

FILE_BYTES: Final = 256 << 20
PIECE: Final = 4 << 20  # about an expert
READERS: Final = 8


def measure_disk(folder: Path) -> float | None:
    """Bytes a second; None where the folder cannot be written or its disk cannot be read past the cache."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="colibri-disk-") as file:
            block = os.urandom(PIECE)
            for _ in range(FILE_BYTES // PIECE):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            descriptor = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
            try:
                return _rate(descriptor)
            finally:
                os.close(descriptor)
    except OSError:
        return None


def _rate(descriptor: int) -> float:
    with ThreadPoolExecutor(READERS) as pool, contextlib.ExitStack() as stack:
        buffers = [stack.enter_context(contextlib.closing(mmap.mmap(-1, PIECE))) for _ in range(READERS)]

        def read(reader: int) -> int:
            starts = range(reader * PIECE, FILE_BYTES, READERS * PIECE)
            return sum(os.preadv(descriptor, [buffers[reader]], start) for start in starts)

        start = time.perf_counter()
        done = sum(pool.map(read, range(READERS)))
        return done / (time.perf_counter() - start)
