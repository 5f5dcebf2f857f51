"""Reads GGUF files: every count, length, shape and offset is checked before it is used.

Only the header is read, with explicit reads (a mapping of a file that shrinks would end the process). Arrays of
strings stay packed and are decoded on demand, so a vocabulary of 250,000 tokens costs a few tens of milliseconds.
Source: the GGUF specification (ggml/docs/gguf.md), versions 2 and 3, little endian.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from colibri.errors import FileError, FormatError, UnsupportedError
from colibri.weights.block_types import BY_CODE
from colibri.weights.file_kind import HEAD_BYTES, cut_hint, refuse_others
from colibri.weights.file_reader import opened, read_exactly
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo

# Far above any known model (a vocabulary of 260,000 tokens with merges takes 16 MB, and twice that again where the
# whole tokenizer.json is in the file, too); they bound time and memory.
MAX_HEADER_BYTES: Final = 128 << 20
MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 16
MAX_STRINGS: Final = 1 << 22
MAX_ARRAYS: Final = 1 << 14
MAX_STRING_BYTES: Final = 64 << 20
MAX_NAME_BYTES: Final = 1024
MAX_SHARDS: Final = 4096

STRING, ARRAY = 8, 9
SCALARS: Final = {
    0: ("uint8", "<B"), 1: ("int8", "<b"), 2: ("uint16", "<H"), 3: ("int16", "<h"), 4: ("uint32", "<I"),
    5: ("int32", "<i"), 6: ("float32", "<f"), 7: ("bool", "<B"), 10: ("uint64", "<Q"), 11: ("int64", "<q"),
    12: ("float64", "<d"),
}  # fmt: skip
_LENGTH = struct.Struct("<Q")
_Entry = tuple[str, str, tuple[int, ...], int, int]  # name, type, shape, offset behind the header, bytes
_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class StringArray(Sequence[str]):
    """An array of strings as it lies in the file; decoded when asked for.

    Tokens may be any bytes: what is not UTF-8 comes back as surrogate escapes (`text.encode("utf-8",
    "surrogateescape")` gives the bytes again); `raw(i)` gives the bytes.
    """

    def __init__(self, data: bytes, bounds: np.ndarray[Any, np.dtype[np.uint32]]) -> None:
        self._data = data  # strings with their 8-byte lengths in front
        self._bounds = bounds  # (n + 1,) where each string's length field starts

    def raw(self, index: int) -> bytes:
        """The bytes of one string."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self._data[int(self._bounds[index]) + 8 : int(self._bounds[index + 1])]

    def tobytes(self) -> bytes:
        """The whole array as it lies in the file: every string with its length in front."""
        return self._data

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        data, bounds = self._data, self._bounds.tolist()
        for start, end in itertools.pairwise(bounds):
            yield data[start + 8 : end].decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class GGUFFile:
    """The header of a GGUF file, or of all files of a split: nothing of the tensors' data is read.

    metadata: plain Python values; arrays are numpy arrays or StringArray, nested arrays are lists.
    kinds: the GGUF type of each value ("uint32", "string", "array[string]"), to write it again as it was.
    data_start: where the header of `path` ends and the tensors' data begins.
    """

    path: Path
    files: tuple[Path, ...]
    version: int
    alignment: int
    metadata: Metadata
    kinds: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]
    data_start: int


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of `path` and, when it is part of a split, of all files of the split.

    Raises FileError (missing, truncated), FormatError (contradicts the format) or UnsupportedError (big endian,
    version, block type), each naming the file and the field.
    """
    path = Path(path)
    part = read_one_file(path)
    count = part.metadata.integer("split.count", 1, high=MAX_SHARDS)
    return part if count <= 1 else _join(path, count)


def read_one_file(path: Path) -> GGUFFile:
    """The header of this file alone, whatever its name and whether or not it is part of a split."""
    with opened(path) as (descriptor, size):
        return _Header(path, descriptor, size).parse()


def _join(path: Path, count: int) -> GGUFFile:
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise FormatError(
            f"{path}: split.count is {count}, so the file's name should end in -00001-of-{count:05d}.gguf; "
            "give the files of a split their own names back"
        )
    files = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise FileError(f"{path}: {len(missing)} of {count} files of the split are missing: {', '.join(missing[:5])}")
    parts = [read_one_file(file) for file in files]
    tensors: dict[str, TensorInfo] = {}
    for number, part in enumerate(parts):
        if part.metadata.get("split.count") != count or part.metadata.get("split.no") != number:
            raise FormatError(
                f"{part.path}: split.no {part.metadata.get('split.no')} of split.count "
                f"{part.metadata.get('split.count')} found, {number} of {count} expected"
            )
        for name, info in part.tensors.items():
            if name in tensors:
                raise FormatError(f"{part.path}: tensor {name} is also in {tensors[name].file}")
            tensors[name] = info
    total = parts[0].metadata.integer("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise FormatError(f"{path}: split.tensors.count is {total}, but the {count} files hold {len(tensors)} tensors")
    first = parts[0]
    return replace(first, files=tuple(files), tensors=tensors)


class _Header:
    """A cursor over the first bytes of a file, read as far as needed."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
        self._data = bytearray()
        self._at = 0
        self._strings_left = MAX_STRINGS
        self._arrays_left = MAX_ARRAYS

    def parse(self) -> GGUFFile:
        magic = bytes(self._take(min(4, self.size), "magic"))
        if magic != b"GGUF":
            refuse_others(self.path, bytes(self._data[:HEAD_BYTES]))
            raise FormatError(
                f"{self.path}: starts with {magic!r}, not with b'GGUF'; this is not a GGUF file{cut_hint(self.path)}"
            )
        version = self._uint32("version")
        if version & 0xFFFF == 0 and version:
            raise UnsupportedError(f"{self.path}: is a big-endian GGUF file; only little-endian files are read")
        if version not in (2, 3):
            raise UnsupportedError(f"{self.path}: GGUF version {version}; versions 2 and 3 are read")
        tensor_count = self._count("tensor count", MAX_TENSORS, 33)
        key_count = self._count("metadata count", MAX_KEYS, 13)
        metadata: dict[str, Any] = {}
        kinds: dict[str, str] = {}
        for number in range(key_count):
            key = self._name(f"metadata key {number}")
            if key in metadata:
                raise FormatError(f"{self.path}: metadata key {key} appears twice")
            metadata[key], kinds[key] = self._value(key)
        alignment = self._alignment(metadata, kinds)
        entries = [self._tensor(number) for number in range(tensor_count)]
        start = self._at + -self._at % alignment
        tensors = self._tensors(entries, start, alignment)
        known = Metadata(self.path, metadata)
        return GGUFFile(self.path, (self.path,), version, alignment, known, kinds, tensors, start)

    # --- bytes ---

    def _take(self, count: int, what: str) -> memoryview:
        """The next `count` bytes; `count` is checked against the file before anything is read."""
        end = self._at + count
        if end > self.size:
            raise FileError(
                f"{self.path}: {what} takes {count} bytes at offset {self._at}, but the file has {self.size} bytes; "
                f"it is truncated or damaged{cut_hint(self.path)}"
            )
        if end > len(self._data):
            self._load(end, what)
        self._at = end
        return memoryview(self._data)[end - count : end]

    def _load(self, end: int, what: str) -> None:
        if end > MAX_HEADER_BYTES:
            raise FormatError(f"{self.path}: the header ({what}) goes on past {MAX_HEADER_BYTES} bytes; it is damaged")
        goal = min(self.size, max(end, 2 * len(self._data), 1 << 20), MAX_HEADER_BYTES)
        data = bytearray(self._data)  # a fresh one: views of the old one may be alive
        data += read_exactly(self.path, self._descriptor, goal - len(data), len(data))
        self._data = data

    def _uint32(self, what: str) -> int:
        return int.from_bytes(self._take(4, what), "little")

    def _uint64(self, what: str) -> int:
        return int.from_bytes(self._take(8, what), "little")

    def _count(self, what: str, limit: int, smallest: int) -> int:
        """A number of items of at least `smallest` bytes each, which must fit into what is left of the file."""
        count = self._uint64(what)
        if count > limit or count * smallest > self.size - self._at:
            raise FormatError(
                f"{self.path}: {what} is {count}, which at {smallest} or more bytes each does not fit into the "
                f"{self.size - self._at} bytes that follow, or is above the limit of {limit}"
            )
        return count

    def _string(self, what: str, limit: int = MAX_STRING_BYTES) -> bytes:
        return bytes(self._take(self._count(f"length of {what}", limit, 1), what))

    def _name(self, what: str) -> str:
        raw = self._string(what, MAX_NAME_BYTES)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{self.path}: {what} is not UTF-8: {raw[:80]!r}") from error
        if not name:
            raise FormatError(f"{self.path}: {what} is empty")
        return name

    # --- metadata ---

    def _value(self, key: str) -> tuple[Any, str]:
        code = self._uint32(f"type of {key}")
        if code == STRING:
            return self._string(key).decode("utf-8", "surrogateescape"), "string"
        if code == ARRAY:
            return self._array(key, 0)
        if code not in SCALARS:
            raise FormatError(f"{self.path}: metadata {key} has the unknown value type {code}")
        kind, layout = SCALARS[code]
        value = struct.unpack(layout, self._take(struct.calcsize(layout), key))[0]
        if kind == "bool":
            if value > 1:
                raise FormatError(f"{self.path}: metadata {key} is a bool with value {value}; 0 or 1 is expected")
            value = bool(value)
        return value, kind

    def _array(self, key: str, depth: int) -> tuple[Any, str]:
        code = self._uint32(f"element type of {key}")
        if code == STRING:
            return self._strings(key), "array[string]"
        if code == ARRAY:
            if depth == 3:
                raise FormatError(f"{self.path}: metadata {key} nests arrays more than 4 deep")
            count = self._count(f"length of {key}", self._arrays_left, 12)
            self._arrays_left -= count
            rows = [self._array(key, depth + 1)[0] for _ in range(count)]
            return rows, "array[array]"
        if code not in SCALARS:
            raise FormatError(f"{self.path}: metadata {key} is an array of the unknown type {code}")
        kind, layout = SCALARS[code]
        width = struct.calcsize(layout)
        count = self._count(f"length of {key}", MAX_HEADER_BYTES, width)
        raw = bytes(self._take(count * width, key))
        if kind == "bool":
            flags = np.frombuffer(raw, np.uint8)
            if flags.size and flags.max() > 1:
                raise FormatError(f"{self.path}: metadata {key} holds a bool that is neither 0 nor 1")
            return flags.astype(np.bool_), "array[bool]"
        return np.frombuffer(raw, np.dtype(kind).newbyteorder("<")), f"array[{kind}]"

    def _strings(self, key: str) -> StringArray:
        """Walk over the lengths. Most of the time of opening a file is spent here, so bounds are left to `unpack`."""
        count = self._count(f"length of {key}", self._strings_left, 8)
        self._strings_left -= count
        start = position = self._at
        starts: list[int] = []
        append, unpack = starts.append, _LENGTH.unpack_from
        while len(starts) < count:
            data = self._data
            try:
                for _ in range(count - len(starts)):
                    (length,) = unpack(data, position)
                    append(position)
                    position += 8 + length
            except (struct.error, IndexError, OverflowError):
                self._at = position
                self._take(8, f"string {len(starts)} of {key}")  # reads on, or refuses
        self._at = start
        raw = bytes(self._take(position - start, key))
        starts.append(position)
        return StringArray(raw, (np.array(starts, np.int64) - start).astype(np.uint32))

    def _alignment(self, metadata: Mapping[str, Any], kinds: Mapping[str, str]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if kinds.get("general.alignment", "uint32") != "uint32":
            raise FormatError(
                f"{self.path}: general.alignment is of type {kinds['general.alignment']}, uint32 is expected"
            )
        if alignment == 0 or alignment & (alignment - 1):
            raise FormatError(f"{self.path}: general.alignment is {alignment}, a power of two is expected")
        return int(alignment)

    # --- tensors ---

    def _tensors(self, entries: Sequence[_Entry], start: int, alignment: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, kind, shape, offset, nbytes in entries:
            if name in tensors:
                raise FormatError(f"{self.path}: tensor {name} appears twice")
            if offset % alignment:
                raise FormatError(
                    f"{self.path}: tensor {name} has offset {offset}, a multiple of general.alignment {alignment} is "
                    "expected"
                )
            if start + offset + nbytes > self.size:
                raise FileError(
                    f"{self.path}: tensor {name} takes {nbytes} bytes at {start + offset}, but the file has "
                    f"{self.size} bytes; it is truncated or damaged{cut_hint(self.path)}"
                )
            tensors[name] = TensorInfo(name, kind, shape, self.path, start + offset, nbytes)
        self._check_overlap(tensors)
        return tensors

    def _tensor(self, number: int) -> _Entry:
        name = self._name(f"name of tensor {number}")
        n_dims = self._uint32(f"n_dims of {name}")
        if not 1 <= n_dims <= 4:
            raise FormatError(f"{self.path}: tensor {name} has {n_dims} dimensions, 1 to 4 are expected")
        *dims, code, offset = struct.unpack(f"<{n_dims}QIQ", self._take(8 * n_dims + 12, f"tensor {name}"))
        block = BY_CODE.get(code)
        if block is None:
            raise UnsupportedError(f"{self.path}: tensor {name} has the unknown block type {code}")
        if min(dims) < 1 or math.prod(dims) >= 1 << 63:
            raise FormatError(f"{self.path}: tensor {name} has the impossible dimensions {dims}")
        if dims[0] % block.values:
            raise FormatError(
                f"{self.path}: tensor {name} has rows of {dims[0]} values, a multiple of {block.name}'s block of "
                f"{block.values} is expected"
            )
        return name, block.name, tuple(dims[::-1]), offset, math.prod(dims) // block.values * block.bytes

    def _check_overlap(self, tensors: Mapping[str, TensorInfo]) -> None:
        ordered = sorted(tensors.values(), key=lambda info: info.offset)
        for before, after in itertools.pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise FormatError(f"{self.path}: the data of tensors {before.name} and {after.name} overlap")
