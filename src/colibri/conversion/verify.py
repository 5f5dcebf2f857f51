"""Checks every byte of a checkpoint: blocks whose scales are numbers, and the checksums written at conversion."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from colibri.conversion.plan import CHECKSUMS, is_merged_experts
from colibri.weights.block_types import BY_NAME
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf import read_gguf
from colibri.weights.tensor_info import TensorInfo

_PIECE: Final = 4 << 20
Bytes = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]


class Damage(NamedTuple):
    """Where and what: the part is a tensor's name, with the expert in brackets where it has several."""

    file: str
    part: str
    problem: str


@dataclass(frozen=True)
class Verification:
    """What was read and what was wrong with it; `checked` of `parts` had a checksum to compare with."""

    parts: int
    nbytes: int
    checked: int
    damages: tuple[Damage, ...]


def verify(checkpoint: Checkpoint, progress: Progress | None = None) -> Verification:
    """Read every tensor, expert by expert. Raises FileError when a file cannot be read."""
    parts = list(_parts(checkpoint))
    expected = checkpoint.metadata.integers(CHECKSUMS, np.empty(0, np.uint32)).tolist()
    known = len(expected) == len(parts)
    damages, done, total = [], 0, sum(part.nbytes for part in parts)
    with FileReader() as reader:
        for number, part in enumerate(parts):
            problem, value = _examine(part, reader)
            if known and expected[number] != value:
                problem = f"checksum {value:08x}, {expected[number]:08x} was written at conversion"
            if problem:
                damages.append(Damage(str(part.file), part.name, problem))
            done += part.nbytes
            if progress is not None:
                progress(done, total)
    if expected and not known:
        problem = f"{CHECKSUMS} holds {len(expected)} checksums, the file {len(parts)} tensors and experts"
        damages.insert(0, Damage(str(checkpoint.path), CHECKSUMS, problem))
    return Verification(len(parts), total, len(parts) if known else 0, tuple(damages))


def _parts(checkpoint: Checkpoint) -> Iterator[TensorInfo]:
    """Tensors in the order of the file, merged ones expert by expert."""
    stored = read_gguf(checkpoint.path).tensors if checkpoint.format == "gguf" else checkpoint.tensors
    for name, info in stored.items():
        if is_merged_experts(name):
            yield from (info.expert(expert) for expert in range(info.shape[0]))
        else:
            yield info


def _examine(part: TensorInfo, reader: FileReader) -> tuple[str, int]:
    """What is wrong with a part's numbers, if anything, and the CRC-32 of its bytes."""
    block = BY_NAME[part.type]
    step = _PIECE // block.bytes * block.bytes
    buffer = np.empty(min(step, part.nbytes), np.uint8)
    problem, value = "", 0
    for at in range(0, part.nbytes, step):
        piece = buffer[: min(step, part.nbytes - at)]
        reader.read_into(part.file, part.offset + at, piece)
        value = zlib.crc32(piece.data, value)
        bad = bad_blocks(part.type, piece)
        if bad.size and not problem:
            first = (at // block.bytes + int(bad[0])) * block.values
            row, column = divmod(first, part.shape[-1])
            problem = f"a NaN or an infinity at row {row}, column {column}" + (" on" if block.values > 1 else "")
    return problem, value


# Where a block of each format holds half floats; MXFP4's scale byte is NaN when all bits are set.
_HALVES: Final = {
    "F16": (0,), "Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2),
    "Q5_0": (0,), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip


def bad_blocks(type_name: str, data: Bytes) -> npt.NDArray[np.int64]:
    """Indices of the blocks with a scale (or value) that is not finite; none for formats that are not known here."""
    blocks = data.reshape(-1, BY_NAME[type_name].bytes)
    if type_name == "F32":
        bad = (blocks.view("<u4")[:, 0] & 0x7F800000) == 0x7F800000
    elif type_name == "BF16":
        bad = (blocks.view("<u2")[:, 0] & 0x7F80) == 0x7F80
    elif type_name == "MXFP4":
        bad = blocks[:, 0] == 0xFF
    else:
        bad = np.zeros(len(blocks), np.bool_)
        for at in _HALVES.get(type_name, ()):
            bad |= (blocks[:, at + 1] & 0x7C) == 0x7C
    return np.flatnonzero(bad)
