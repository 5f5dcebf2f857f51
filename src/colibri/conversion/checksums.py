"""The checksums that a conversion writes: which range of bytes each one is of, and comparing them.

There is one for each tensor, or for each expert of a merged one, in the order of the file, and one for the header.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from colibri.errors import FormatError
from colibri.weights.file_reader import FileReader, opened, read_exactly
from colibri.weights.gguf import GGUFFile, read_gguf, read_one_file
from colibri.weights.gguf_writer import ALGORITHM, CHECKSUMS, HEADER_ALGORITHM, HEADER_CHECKSUM, header_is_whole
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo

PIECE: Final = 8 << 20
SourceChecksums = Mapping[tuple[Path, int, int], int]  # by file, offset and number of bytes
_MERGED_EXPERTS = re.compile(r"blk\.\d+\.ffn_(?:gate|up|down|gate_up)_exps\.(?:weight|bias)")


def is_merged_experts(name: str) -> bool:
    """Whether a tensor holds all experts of a layer, expert by expert."""
    return _MERGED_EXPERTS.fullmatch(name) is not None


def summed_parts(tensors: Mapping[str, TensorInfo]) -> Iterator[TensorInfo]:
    """Tensors in the order of the file, merged ones expert by expert: what has a checksum of its own."""
    for name, info in tensors.items():
        if is_merged_experts(name) and len(info.shape) > 1:
            yield from (info.expert(expert) for expert in range(info.shape[0]))
        else:
            yield info


def written_checksums(metadata: Metadata, count: int) -> list[int]:
    """The checksums of a file with `count` parts; [] where it has none. FormatError for another number of them."""
    checksums = metadata.integers(CHECKSUMS, np.empty(0, np.uint32)).tolist()
    if checksums and len(checksums) != count:
        raise metadata.error(CHECKSUMS, f"an array of {len(checksums)}", f"one for each of {count} tensors and experts")
    return checksums


def source_checksums(path: Path) -> SourceChecksums:
    """What the parts of a GGUF file must sum up to; {} for a file without checksums.

    Raises FormatError when a header is not as it was written.
    """
    file = read_gguf(path)
    for shard in file.files:
        if not whole_header(read_one_file(shard)):
            raise FormatError(
                f"{shard}: its metadata is not what {HEADER_CHECKSUM} was written for. Fetch or convert the file "
                "again; if it was edited on purpose, take the keys colibri.* out"
            )
    parts = list(summed_parts(file.tensors))
    checksums = written_checksums(file.metadata, len(parts))
    return {(part.file, part.offset, part.nbytes): value for part, value in zip(parts, checksums, strict=False)}


def whole_header(file: GGUFFile) -> bool:
    """Whether the header of one file is as it was written, as far as it has a checksum to tell."""
    if file.metadata.get(ALGORITHM) != HEADER_ALGORITHM and HEADER_CHECKSUM not in file.metadata:
        return True
    with opened(file.path) as (descriptor, size):
        return header_is_whole(read_exactly(file.path, descriptor, min(file.data_start, size), 0))


def checksum(info: TensorInfo, reader: FileReader) -> int:
    """CRC-32 of a tensor's bytes."""
    value, buffer = 0, np.empty(min(PIECE, info.nbytes), np.uint8)
    for at in range(0, info.nbytes, PIECE):
        piece = buffer[: min(PIECE, info.nbytes - at)]
        reader.read_into(info.file, info.offset + at, piece)
        value = zlib.crc32(piece.data, value)
    return value
