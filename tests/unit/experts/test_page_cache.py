"""Both ways of asking for the page cache's pages agree with what was done to the file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from colibri.experts import page_cache
from colibri.experts.page_cache import PageCache

PAGES = 64


@pytest.mark.parametrize("has_cachestat", [True, False])
def test_missing_pages(tmp_path: Path, has_cachestat: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_cachestat:
        monkeypatch.setattr(page_cache, "_CACHESTAT", 9999)
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGES * mmap.PAGESIZE - 100))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    cache = PageCache(descriptor, path.stat().st_size)
    assert cache.missing(0, PAGES * mmap.PAGESIZE) == 0
    assert cache.missing(5, 10) == 0
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    missing = cache.missing(0, PAGES * mmap.PAGESIZE)
    if missing == 0:
        pytest.skip("this filesystem keeps its pages")
    assert missing == PAGES
    assert cache.missing(mmap.PAGESIZE - 1, 2) == 2
    assert cache.missing(PAGES * mmap.PAGESIZE, 100) == 0
    os.close(descriptor)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    descriptor = os.open(tmp_path / "empty", os.O_RDONLY)
    assert PageCache(descriptor, 0).missing(0, 10) == 0
    os.close(descriptor)
