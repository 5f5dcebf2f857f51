"""Fetches a file into the cache of huggingface_hub: goes on where it broke off, and checks size and checksum.

The library fetches a broken-off file from its beginning again, which is why this is done here. Its layout is kept, so
that its own programs find the files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

from colibri.errors import ColibriError, FileError, FormatError
from colibri.hub import remote
from colibri.hub.remote import RemoteFile, Repository, endpoint, passes, stream, told, transport_errors

_PIECE: Final = 1 << 20
_ETAG: Final = re.compile(r"[\w.-]{1,128}", re.ASCII)
Count = Callable[[int], None]  # bytes of this file that are there


def fetch(repository: Repository, file: RemoteFile, storage: Path, count: Count) -> Path:
    """The file in the repository's snapshot, fetched where it is not there. Raises FileError, FormatError."""
    pointer = storage / "snapshots" / repository.commit / file.name
    if pointer.is_file() and pointer.stat().st_size == file.size:
        count(file.size)
        return pointer
    blob = storage / "blobs" / _etag(repository, file)
    try:
        if not blob.is_file() or blob.stat().st_size != file.size:
            blob.parent.mkdir(parents=True, exist_ok=True)
            _Partial(repository, file, blob, count).fetch()
        count(file.size)
        _point(pointer, blob)
    except OSError as error:
        what = "no space is left" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        where = error.filename or blob.parent
        raise FileError(f"{where}: {what}; HF_HOME names another folder, and the same command goes on") from error
    return pointer


def point_main(repository: Repository, storage: Path) -> None:
    """Note which commit the main branch was at."""
    reference = storage / "refs" / "main"
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(repository.commit, encoding="ascii")


def _etag(repository: Repository, file: RemoteFile) -> str:
    """What the hub calls this content, which is the blob's name."""
    from huggingface_hub import get_hf_file_metadata

    with told(repository.repo):
        about = get_hf_file_metadata(repository.url(file.name), timeout=30, endpoint=endpoint())
    if about.etag is None or not _ETAG.fullmatch(about.etag):
        raise FormatError(f"{repository.repo}: {file.name}: the hub's ETag is {about.etag!r:.80}, a hash is expected")
    if about.size is not None and about.size != file.size:
        raise FormatError(
            f"{repository.repo}: {file.name}: the hub says {file.size} bytes in its list and {about.size} of the file; "
            "try again later"
        )
    return about.etag


def _point(pointer: Path, blob: Path) -> None:
    """A link as the library makes it; where the system has none, the file itself."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        os.replace(blob, pointer)


class _Partial:
    """A file under way, beside its blob; what is there of it is kept when this ends in an error."""

    def __init__(self, repository: Repository, file: RemoteFile, blob: Path, count: Count) -> None:
        self._repository = repository
        self._remote = file
        self._blob = blob
        self._path = blob.with_name(f"{blob.name}.incomplete")
        self._count = count
        self._done = 0

    def fetch(self) -> None:
        """Until all is there, and is what was promised."""
        with self._path.open("ab+") as output:
            try:
                fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FileError(f"{self._path}: another process is fetching this file; wait for it") from None
            self._digest = _digest(self._blob.name, self._remote)
            self._take_over(output)
            self._until_whole(output)
            output.flush()
            os.fsync(output.fileno())
            self._check()
            os.replace(self._path, self._blob)

    def _take_over(self, output: BinaryIO) -> None:
        """Sum up what an interrupted run has left."""
        if os.fstat(output.fileno()).st_size > self._remote.size:
            output.truncate(0)
        output.seek(0)
        while piece := output.read(_PIECE):
            self._add(piece)

    def _add(self, piece: bytes) -> None:
        self._digest[0].update(piece)
        self._done += len(piece)
        self._count(self._done)

    def _until_whole(self, output: BinaryIO) -> None:
        tries, wait = remote.TRIES, remote.WAIT_S
        while self._done < self._remote.size:
            before = self._done
            fault = "the connection ended"
            try:
                self._ask(output)
            except ColibriError:
                raise
            except transport_errors() as error:
                if not passes(error):
                    with told(self._repository.repo):
                        raise
                fault = str(error) or type(error).__name__
            if self._done > before:
                tries, wait = remote.TRIES, remote.WAIT_S
            elif self._done < self._remote.size:
                tries -= 1
                if not tries:
                    output.flush()
                    raise FileError(
                        f"{self._repository.repo}: {self._remote.name} broke off at byte {self._done} of "
                        f"{self._remote.size} ({fault:.200}); the same command goes on there"
                    )
                time.sleep(wait)
                wait *= 2

    def _ask(self, output: BinaryIO) -> None:
        """One request for what is missing."""
        headers = {"Range": f"bytes={self._done}-"} if self._done else {}
        with stream(self._repository.url(self._remote.name), headers) as response:
            start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if self._done and (response.status_code != 206 or start is None or int(start[1]) != self._done):
                self._begin_anew(output)  # a server that knows no ranges sends all of it
                if response.status_code == 206:
                    return
            for piece in response.iter_bytes():  # as they come: of larger ones a part would be lost
                if self._done + len(piece) > self._remote.size:
                    self._drop(f"is longer than the {self._remote.size} bytes that the hub names")
                output.write(piece)
                self._add(piece)

    def _begin_anew(self, output: BinaryIO) -> None:
        output.truncate(0)
        self._digest = _digest(self._blob.name, self._remote)
        self._done = 0

    def _check(self) -> None:
        digest, expected = self._digest
        if expected is not None and digest.hexdigest() != expected:
            self._drop(f"has the checksum {digest.hexdigest()[:16]}..., {expected[:16]}... is expected")

    def _drop(self, what: str) -> None:
        """What is wrong is not gone on with."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        raise FormatError(
            f"{self._repository.repo}: {self._remote.name} {what}; what was fetched is removed: try again, and test "
            "the network and the disk if this returns"
        )


def _digest(etag: str, file: RemoteFile) -> tuple[Any, str | None]:
    """A hash to feed, and what it must give: SHA-256 of large files, git's own of small ones."""
    expected = file.sha256 or etag
    if re.fullmatch(r"[0-9a-f]{64}", expected):
        return hashlib.sha256(), expected
    if re.fullmatch(r"[0-9a-f]{40}", expected):
        return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False), expected
    return hashlib.sha256(), None
