"""What lets an interrupted conversion go on: which tensors of its unfinished output are whole."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from colibri.errors import ArgumentError, FileError

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def journal_of(destination: Path) -> Path:
    """Where the journal of this output is while it is unfinished."""
    return destination.with_name(f"{destination.name}.journal")


class Journal:
    """The checksums of the tensors that are whole in an unfinished output, one line a tensor; a lock on it, too."""

    def __init__(self, destination: Path, fingerprint: str, begun: Callable[[int], Sequence[Path]]) -> None:
        """fingerprint: of what is converted, and how. begun: the files that the first so many tensors are in."""
        self._begun = begun
        self._path = journal_of(destination)
        self._fingerprint = fingerprint
        self._file: IO[str] | None = None

    @contextmanager
    def locked(self) -> Iterator[list[list[int]]]:
        """The checksums of an interrupted conversion of the same plan, or none; the output is this process's alone."""
        try:
            self._file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise FileError(f"{self._path}: cannot be written: {error.strerror}") from error
        with self._file:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FileError(f"{self._path}: another conversion is writing this file; wait for it") from None
            yield self._entries(self._file)

    def _entries(self, file: IO[str]) -> list[list[int]]:
        file.seek(0)
        try:
            first = file.readline(66).removesuffix("\n")
        except UnicodeDecodeError:
            first = "?"
        if first and not _FINGERPRINT.fullmatch(first):
            raise ArgumentError(f"{self._path}: is no journal of a conversion and is not replaced; move it away")
        file.seek(0)
        lines = file.read().split("\n")[:-1]  # the last line is cut off or empty
        if not lines or lines[0] != self._fingerprint:
            file.truncate(0)
            file.write(f"{self._fingerprint}\n")
            file.flush()
            return []
        entries = []
        for line in lines[1:]:
            try:
                entries.append([int(checksum) for checksum in json.loads(line)])
            except ValueError:
                break
        if not all(file.exists() for file in self._begun(len(entries))):  # the last one was renamed, but this stayed
            entries = []
        file.truncate(sum(len(line) + 1 for line in lines[: len(entries) + 1]))
        return entries

    def add(self, checksums: Sequence[int]) -> None:
        """One more tensor is whole and on the disk."""
        assert self._file is not None
        self._file.write(json.dumps(list(checksums)) + "\n")
        self._file.flush()

    def remove(self) -> None:
        """The conversion is complete."""
        self._path.unlink(missing_ok=True)
