"""Writes GGUF files that may be split and that an interrupted writer of the same plan can go on with.

Splits follow llama.cpp's `gguf-split`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from colibri.errors import ArgumentError, FileError
from colibri.weights.gguf_writer import ALIGNMENT, TensorSpec, Value, gguf_header, padded, put_in_place, write_tensor


def outputs_of(path: Path, suffix: str = "") -> list[Path]:
    """The files that writers of `path` have left: itself, and the parts of splits; with ".partial" unfinished ones."""
    part = rf"{re.escape(_stem(path))}-\d{{5}}-of-\d{{5}}\.gguf"
    names = re.compile(rf"({re.escape(path.name)}|{part}){re.escape(suffix)}")
    return sorted(file for file in path.parent.glob("*") if names.fullmatch(file.name))


class GGUFWriter:
    """Writes `tensors` in their order to `path`, or to a split when `split_bytes` is given and exceeded.

    Use it as a context manager. Files appear under their names, complete and on disk, when the block ends without
    an exception; otherwise nothing is left behind, or, with `keep_partial`, unfinished files under names of their own
    that a later writer of the same plan goes on with (`skip`). Metadata is written as `gguf_header` says.
    Raises ArgumentError for what cannot be written, FileError when the disk refuses.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, object],
        tensors: Sequence[TensorSpec],
        *,
        alignment: int = ALIGNMENT,
        split_bytes: int | None = None,
        keep_partial: bool = False,
    ) -> None:
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            raise ArgumentError(f"{path}: two tensors have the same name")
        self._alignment = alignment
        self._keep_partial = keep_partial
        self._metadata = metadata
        self._arguments = (Path(path), tensors, alignment, split_bytes, "" if keep_partial else f".{os.getpid()}")
        self._shards = _plan(metadata, *self._arguments)
        self._next = iter([(shard, tensor) for shard in self._shards for tensor in shard.tensors])
        self._file: BinaryIO | None = None
        self._current: _Shard | None = None
        self._at = 0

    @property
    def files(self) -> list[Path]:
        """The file, or the files of the split, in order."""
        return [shard.path for shard in self._shards]

    @property
    def nbytes(self) -> int:
        """Bytes of all files together."""
        return sum(shard.nbytes for shard in self._shards)

    @property
    def temporaries(self) -> list[Path]:
        """Where the files are while they are written."""
        return [shard.temporary for shard in self._shards]

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors together, without headers and gaps."""
        return sum(tensor.nbytes for shard in self._shards for tensor in shard.tensors)

    def begun(self, count: int) -> list[Path]:
        """The unfinished files that the first `count` tensors are in."""
        starts = itertools.accumulate((len(shard.tensors) for shard in self._shards), initial=0)
        return [shard.temporary for shard, start in zip(self._shards, starts, strict=False) if start < count]

    @property
    def headers(self) -> bytes:
        """All that precedes the tensors' data, to tell whether two plans are the same."""
        return b"".join(shard.header for shard in self._shards)

    def skip(self, count: int) -> None:
        """Take the first `count` tensors as written by an earlier writer of the same plan."""
        for _ in range(count):
            shard, tensor = next(self._next)
            if shard is not self._current:
                self._leave()
                self._file, self._current, self._at = None, shard, len(shard.header)
            self._at += padded(tensor.nbytes, self._alignment)
        if self._current is not None:
            try:
                self._file = self._current.temporary.open("r+b")
                self._file.truncate(self._at)
                self._file.seek(self._at)
            except OSError as error:
                raise FileError(f"{self._current.temporary}: cannot be gone on with: {error.strerror}") from error

    def sync(self) -> None:
        """Bring what was written so far to the disk."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def rewrite(self, metadata: Mapping[str, object]) -> None:
        """Replace values of the metadata by others of the same size, after the last tensor."""
        shards = _plan({**self._metadata, **metadata}, *self._arguments)
        for old, new in zip(self._shards, shards, strict=True):
            if len(old.header) != len(new.header) or old.nbytes != new.nbytes:
                raise ArgumentError(f"{old.path}: metadata of another size cannot replace what was written")
        self._leave()
        self._file = None
        for shard in shards:
            with shard.temporary.open("r+b") as file:
                file.write(shard.header)
                file.flush()
                os.fsync(file.fileno())

    def write(self, name: str, chunks: Iterable[Any]) -> None:
        """Write the next tensor, `name`, whose bytes are the concatenated chunks (contiguous buffers)."""
        shard, tensor = next(self._next, (None, None))
        if shard is None or tensor is None or tensor.name != name:
            raise ArgumentError(
                f"tensor {name} out of order: {tensor.name if tensor else 'no further one'} is expected"
            )
        file = self._enter(shard)
        try:
            write_tensor(file, tensor, chunks, self._alignment)
        except OSError as error:
            raise FileError(f"{shard.temporary}: writing failed: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            if self._file is not None:
                self._file.close()
            for shard in () if self._keep_partial else self._shards:
                shard.temporary.unlink(missing_ok=True)

    def _enter(self, shard: _Shard) -> BinaryIO:
        if self._file is None or self._current is not shard:
            self._leave()
            try:
                self._file = shard.temporary.open("wb")
                self._file.write(shard.header)
            except OSError as error:
                raise FileError(f"{shard.temporary}: cannot be written: {error.strerror}") from error
            self._current = shard
        return self._file

    def _leave(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            except OSError as error:
                raise FileError(f"{self._file.name}: writing failed: {error.strerror}") from error

    def _finish(self) -> None:
        shard, tensor = next(self._next, (None, None))
        if shard is not None and tensor is not None:
            raise ArgumentError(f"{shard.path}: tensor {tensor.name} was not written")
        for empty in (shard for shard in self._shards if not shard.tensors):
            self._enter(empty)
        self._leave()
        try:
            put_in_place({shard.temporary: shard.path for shard in self._shards})
        except OSError as error:
            raise FileError(f"{error.filename}: renaming the finished file failed: {error.strerror}") from error


@dataclass(frozen=True, slots=True, eq=False)
class _Shard:
    path: Path
    tensors: Sequence[TensorSpec]
    header: bytes
    nbytes: int
    mark: str  # tells writers of one path apart

    @property
    def temporary(self) -> Path:
        return self.path.with_name(f"{self.path.name}{self.mark}.partial")


def _plan(
    metadata: Mapping[str, object],
    path: Path,
    tensors: Sequence[TensorSpec],
    alignment: int,
    split_bytes: int | None,
    mark: str,
) -> list[_Shard]:
    groups = _groups(tensors, split_bytes)
    if len(groups) == 1:
        return [_shard(path, metadata, tensors, alignment, mark)]
    shards = []
    for number, group in enumerate(groups):
        keys: dict[str, object] = dict(metadata) if number == 0 else {}
        keys["split.no"] = Value("uint16", number)
        keys["split.count"] = Value("uint16", len(groups))
        keys["split.tensors.count"] = Value("int32", len(tensors))
        name = f"{_stem(path)}-{number + 1:05d}-of-{len(groups):05d}.gguf"
        shards.append(_shard(path.with_name(name), keys, group, alignment, mark))
    return shards


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gguf")


def _groups(tensors: Sequence[TensorSpec], split_bytes: int | None) -> list[list[TensorSpec]]:
    groups: list[list[TensorSpec]] = [[]]
    size = 0
    for tensor in tensors:
        if split_bytes is not None and groups[-1] and size + tensor.nbytes > split_bytes:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.nbytes
    return groups


def _shard(
    path: Path, metadata: Mapping[str, object], tensors: Sequence[TensorSpec], alignment: int, mark: str
) -> _Shard:
    header = gguf_header(metadata, tensors, alignment)
    data = sum(padded(tensor.nbytes, alignment) for tensor in tensors)
    return _Shard(path, tensors, header, len(header) + data, mark)
