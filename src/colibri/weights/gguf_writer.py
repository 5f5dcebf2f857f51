"""Writes ordinary GGUF v3 files, tensor by tensor, without holding them in memory.

Source: the GGUF specification (ggml/docs/gguf.md).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from colibri.errors import ArgumentError, FileError
from colibri.weights.block_types import BY_NAME, row_bytes
from colibri.weights.gguf import ARRAY, SCALARS, STRING

ALIGNMENT: Final = 4096
CHECKSUMS: Final = "colibri.checksums"
"""CRC-32 of each tensor, or of each expert of a merged one, in the order of the file."""
ALGORITHM: Final = "colibri.checksum_algorithm"
"""What was summed: crc32 in files whose header has no checksum."""
HEADER_ALGORITHM: Final = "crc32 of header and tensors"
HEADER_CHECKSUM: Final = "colibri.header_checksum"
"""CRC-32 of all that precedes the tensors' data, with these four bytes as zeros."""
VALUE_CODES: Final = {kind: code for code, (kind, _) in SCALARS.items()} | {"string": STRING, "array": ARRAY}
_LAYOUTS: Final = dict(SCALARS.values()) | {"bool": "<?"}
_UNFINISHED: Final = re.compile(r".+\.gguf\.([1-9]\d{0,6})\.partial")  # as write_gguf calls them


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


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Mapping[TensorSpec, Iterable[Any]]) -> None:
    """Write a file whose tensors are the concatenated chunks (contiguous buffers); it appears whole or not at all.

    Metadata is written as `gguf_header` says, with a checksum of each tensor. Raises ArgumentError for what cannot be
    written, FileError when the disk refuses.
    """
    checksums = np.zeros(len(tensors), np.uint32)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(gguf_header({**metadata, CHECKSUMS: checksums}, list(tensors)))
            for number, (spec, chunks) in enumerate(tensors.items()):
                checksums[number] = write_tensor(file, spec, chunks)
            file.seek(0)
            file.write(gguf_header({**metadata, CHECKSUMS: checksums}, list(tensors)))
            file.flush()
            os.fsync(file.fileno())
        put_in_place({temporary: path})
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what writers left in a folder that were killed; of those that still run nothing is touched."""
    for left in folder.glob("*.partial"):
        match = _UNFINISHED.fullmatch(left.name)
        if match is not None and not _lives(int(match[1])):
            with contextlib.suppress(OSError):  # a folder that cannot be written, or another was faster
                left.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # another user's
        return True
    except OSError:
        return False
    return True


def write_tensor(file: BinaryIO, spec: TensorSpec, chunks: Iterable[Any], alignment: int = ALIGNMENT) -> int:
    """Write the chunks and the gap behind them; their CRC-32. ArgumentError unless they are as many bytes as asked."""
    written = checksum = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        written += view.nbytes
        if written > spec.nbytes:
            break
        file.write(view)
        checksum = zlib.crc32(view, checksum)
    if written != spec.nbytes:
        raise ArgumentError(f"tensor {spec.name}: {written} bytes given, {spec.nbytes} expected")
    file.write(bytes(-written % alignment))
    return checksum


def put_in_place(files: Mapping[Path, Path]) -> None:
    """Give finished files of one folder their names, on the disk too."""
    for temporary, path in files.items():
        os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def gguf_header(metadata: Mapping[str, object], tensors: Sequence[TensorSpec], alignment: int = ALIGNMENT) -> bytes:
    """All that precedes the tensors' data, padded to the alignment.

    Metadata may be `str`, `bool`, `int` (uint32 where it fits), `float` (float32), lists and numpy arrays of them, or
    a `Value` that says the type; `general.alignment` and the header's checksum are added. Raises ArgumentError for
    what cannot be written.
    """
    if alignment < 8 or alignment & (alignment - 1):
        raise ArgumentError(f"alignment {alignment}: a power of two of at least 8 is expected")
    values = {**metadata, "general.alignment": alignment, ALGORITHM: HEADER_ALGORITHM, HEADER_CHECKSUM: 0}
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(values))]
    for key, value in values.items():
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
        offset += padded(tensor.nbytes, alignment)
    header = bytearray(b"".join(parts))
    header += bytes(-len(header) % alignment)
    at = _header_checksum_at(header)
    assert at is not None
    header[at : at + 4] = struct.pack("<I", zlib.crc32(header))
    return bytes(header)


def header_is_whole(header: bytes) -> bool:
    """Whether all that precedes the tensors' data is as `gguf_header` made it, by the checksum in it."""
    at = _header_checksum_at(header)
    if at is None:
        return False
    view = memoryview(header)
    found = zlib.crc32(view[at + 4 :], zlib.crc32(bytes(4), zlib.crc32(view[:at])))
    return found == int.from_bytes(header[at : at + 4], "little")


def _header_checksum_at(header: bytes | bytearray) -> int | None:
    key = _string(HEADER_CHECKSUM) + struct.pack("<I", VALUE_CODES["uint32"])
    at = header.rfind(key)  # it is the last of the keys
    return None if at < 0 or at + len(key) + 4 > len(header) else at + len(key)


def padded(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Bytes up to the next multiple of the alignment."""
    return nbytes + -nbytes % alignment


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
    return struct.pack("<I", VALUE_CODES[kind]) + struct.pack(_LAYOUTS[kind], value)


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
