"""Writes ordinary GGUF v3 files, tensor by tensor, without holding a model in memory.

Source: the GGUF specification (ggml/docs/gguf.md); splits follow llama.cpp's `gguf-split`.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np

from colibri.errors import ArgumentError, FileError
from colibri.weights.block_types import BY_NAME, row_bytes

VALUE_CODES = {
    "uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "uint32": 4, "int32": 5, "float32": 6,
    "bool": 7, "string": 8, "array": 9, "uint64": 10, "int64": 11, "float64": 12,
}  # fmt: skip
_SCALARS = {
    "uint8": "<B", "int8": "<b", "uint16": "<H", "int16": "<h", "uint32": "<I", "int32": "<i", "float32": "<f",
    "bool": "<?", "uint64": "<Q", "int64": "<q", "float64": "<d",
}  # fmt: skip


class Value(NamedTuple):
    """A metadata value whose GGUF type is given; an array's `kind` is the type of its elements."""

    kind: str
    value: object


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written: shape in numpy order (slowest first), type by its GGUF name."""

    name: str
    type: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return math.prod(self.shape[:-1]) * row_bytes(self.type, self.shape[-1])


class GGUFWriter:
    """Writes `tensors` in their order to `path`, or to a split when `split_bytes` is given and exceeded.

    Use it as a context manager. Files appear under their names, complete and on disk, when the block ends without
    an exception; otherwise nothing is left behind, or, with `keep_partial`, unfinished files under names of their own
    that a later writer of the same plan goes on with (`skip`). Metadata is written as given: `str`, `bool`, `int`
    (uint32 where it fits), `float` (float32), lists and numpy arrays of them, or a `Value` that says the type.
    `general.alignment` is added. Raises ArgumentError for what cannot be written, FileError when the disk refuses.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, object],
        tensors: Sequence[TensorSpec],
        *,
        alignment: int = 4096,
        split_bytes: int | None = None,
        keep_partial: bool = False,
    ) -> None:
        if alignment < 8 or alignment & (alignment - 1):
            raise ArgumentError(f"alignment {alignment}: a power of two of at least 8 is expected")
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            raise ArgumentError(f"{path}: two tensors have the same name")
        self._alignment = alignment
        self._keep_partial = keep_partial
        self._metadata = {**metadata, "general.alignment": alignment}
        self._arguments = (Path(path), tensors, alignment, split_bytes, "" if keep_partial else f".{os.getpid()}")
        self._shards = _plan(self._metadata, *self._arguments)
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
            self._at += tensor.nbytes + -tensor.nbytes % self._alignment
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
        written = 0
        try:
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                written += view.nbytes
                if written > tensor.nbytes:
                    break
                file.write(view)
            if written != tensor.nbytes:
                raise ArgumentError(f"tensor {name}: {written} bytes given, {tensor.nbytes} expected")
            file.write(bytes(-written % self._alignment))
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
            for shard in self._shards:
                os.replace(shard.temporary, shard.path)
            directory = os.open(self._shards[0].path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
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
    stem = path.name.removesuffix(".gguf")
    shards = []
    for number, group in enumerate(groups):
        keys: dict[str, object] = dict(metadata) if number == 0 else {"general.alignment": alignment}
        keys["split.no"] = Value("uint16", number)
        keys["split.count"] = Value("uint16", len(groups))
        keys["split.tensors.count"] = Value("int32", len(tensors))
        name = f"{stem}-{number + 1:05d}-of-{len(groups):05d}.gguf"
        shards.append(_shard(path.with_name(name), keys, group, alignment, mark))
    return shards


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
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        try:
            parts += [_string(key), _encode(value)]
        except (struct.error, TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"metadata {key}: {value!r:.80} cannot be written: {error}") from error
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        if not 1 <= len(dims) <= 4 or min(dims) < 1:
            raise ArgumentError(f"tensor {tensor.name}: shape {tensor.shape} has no 1 to 4 dimensions of at least 1")
        parts += [_string(tensor.name), struct.pack(f"<I{len(dims)}Q", len(dims), *dims)]
        parts.append(struct.pack("<IQ", BY_NAME[tensor.type].code, offset))
        offset += tensor.nbytes + -tensor.nbytes % alignment
    header = b"".join(parts)
    header += bytes(-len(header) % alignment)
    return _Shard(path, tensors, header, len(header) + offset, mark)


def _string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _encode(value: object) -> bytes:
    kind, value = value if isinstance(value, Value) else (_kind(value), value)
    if isinstance(value, str | bytes):
        if kind != "string":
            raise TypeError(f"text is not a {kind}")
        return struct.pack("<I", VALUE_CODES["string"]) + _string(value)
    if isinstance(value, Sequence | np.ndarray):
        head = struct.pack("<IIQ", VALUE_CODES["array"], VALUE_CODES[kind], len(value))
        if kind == "string":
            return head + b"".join(map(_string, value))
        return head + np.asarray(value, np.dtype(kind).newbyteorder("<")).tobytes()
    return struct.pack("<I", VALUE_CODES[kind]) + struct.pack(_SCALARS[kind], value)


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.name
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if value < 0:
            return "int32" if value >= -(1 << 31) else "int64"
        return "uint32" if value < 1 << 32 else "uint64"
    if isinstance(value, float):
        return "float32"
    if isinstance(value, str | bytes):
        return "string"
    if isinstance(value, Sequence) and value:
        return "int32" if type(value[0]) is int else _kind(value[0])
    raise TypeError("its type is not one of GGUF's, or it is an empty list without a type")
