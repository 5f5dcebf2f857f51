"""Checks every byte of a checkpoint: blocks whose scales are numbers, and the checksums written at conversion."""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from colibri.conversion.checksums import PIECE, summed_parts, whole_header, written_checksums
from colibri.errors import FormatError
from colibri.weights.block_types import BY_NAME
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.file_reader import FileReader
from colibri.weights.finite import find_fault
from colibri.weights.gguf import GGUFFile, read_gguf, read_one_file
from colibri.weights.gguf_writer import HEADER_CHECKSUM
from colibri.weights.metadata import Metadata
from colibri.weights.rows import fetched_by, read_rows
from colibri.weights.tensor_info import TensorInfo

Bytes = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]


class Damage(NamedTuple):
    """Where and what: the part is a tensor's name, with the expert in brackets where it has several."""

    file: str
    part: str
    problem: str


@dataclass(frozen=True)
class Verification:
    """What was read and what was wrong with it; `checked` of `parts` had a checksum to compare with.

    header: whether the metadata has a checksum.
    """

    parts: int
    nbytes: int
    checked: int
    header: bool
    damages: tuple[Damage, ...]


def verify(checkpoint: Checkpoint, progress: Progress | None = None) -> Verification:
    """Read every tensor, expert by expert. Raises FileError when a file cannot be read."""
    if checkpoint.format == "gguf":
        return verify_gguf(read_gguf(checkpoint.path), progress)
    return _verify(checkpoint.metadata, checkpoint.tensors, [], progress)


def verify_gguf(file: GGUFFile, progress: Progress | None = None) -> Verification:
    """The same for any GGUF file or split, a model or not: its headers, its tensors, and what lies between them."""
    damages = [damage for shard in file.files for damage in _outside_tensors(read_one_file(shard))]
    return _verify(file.metadata, file.tensors, damages, progress)


def _verify(
    metadata: Metadata, tensors: Mapping[str, TensorInfo], damages: list[Damage], progress: Progress | None
) -> Verification:
    parts = list(summed_parts(tensors))
    try:
        expected = written_checksums(metadata, len(parts))
    except FormatError as error:
        damages.append(Damage(str(metadata.source), "metadata", str(error)))
        expected = []
    done, total = 0, sum(part.nbytes for part in parts)
    reader = FileReader()
    for part, written in itertools.zip_longest(parts, expected):
        problem, value = _examine(part, reader)
        if written is not None and written != value:
            problem = f"checksum {value:08x}, {written:08x} was written at conversion"
        if problem:
            damages.append(Damage(str(part.file), part.name, problem))
        done += part.nbytes
        if progress is not None:
            progress(done, total)
    return Verification(len(parts), total, len(expected), HEADER_CHECKSUM in metadata, tuple(damages))


def _outside_tensors(file: GGUFFile) -> Iterator[Damage]:
    """Faults of one file's header and of the gaps, which are zeros; nothing follows the last tensor's."""
    path, position = str(file.path), file.data_start
    if not whole_header(file):
        yield Damage(path, "metadata", f"is not what {HEADER_CHECKSUM} was written for")
    reader = FileReader()
    for info in sorted(file.tensors.values(), key=lambda info: info.offset):
        if not _zeros(file.path, position, info.offset, reader):
            yield Damage(path, f"the gap before {info.name}", "bytes that are not zero")
        position = info.offset + info.nbytes
    size, end = os.stat(file.path).st_size, position + -position % file.alignment
    if not _zeros(file.path, position, min(end, size), reader):
        yield Damage(path, "the gap behind the last tensor", "bytes that are not zero")
    if size > end:
        yield Damage(path, "the end", f"{size - end} bytes behind the last tensor")


def _zeros(file: Path, start: int, end: int, reader: FileReader) -> bool:
    buffer = np.empty(min(PIECE, max(0, end - start)), np.uint8)
    for at in range(start, end, PIECE):
        piece = buffer[: min(PIECE, end - at)]
        reader.read_into(file, at, piece)
        if piece.any():
            return False
    return True


def _examine(part: TensorInfo, reader: FileReader) -> tuple[str, int]:
    """What is wrong with a part's numbers, if anything, and the CRC-32 of its bytes."""
    problem, value = "", 0
    for at, piece in _stored(part, reader) if part.plain else _read(part, reader):
        value = zlib.crc32(piece.data, value)
        problem = problem or find_fault(part, at, piece)
    return problem, value


def _stored(part: TensorInfo, reader: FileReader) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """The bytes from each place on, as they are in the file."""
    block = BY_NAME[part.type]
    step = PIECE // block.bytes * block.bytes
    buffer = np.empty(min(step, part.nbytes), np.uint8)
    for at in range(0, part.nbytes, step):
        piece = buffer[: min(step, part.nbytes - at)]
        reader.read_into(part.file, part.offset + at, piece)
        yield at, piece


def _read(part: TensorInfo, reader: FileReader) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """The bytes that are made of what is stored in another order or in several tensors, as they are loaded."""
    rows, k = (part.shape[0], 1) if len(part.shape) == 1 else (math.prod(part.shape[:-1]), part.shape[-1])
    width = part.nbytes // rows
    step = max(1, PIECE // width) if part.encoding is None or part.encoding.bytes else rows
    for first in range(0, rows, step):
        piece = read_rows(part, first, min(step, rows - first), fetched_by(reader), k)
        yield first * width, np.ascontiguousarray(piece).reshape(-1)
