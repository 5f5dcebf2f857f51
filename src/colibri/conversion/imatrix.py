"""Reads llama.cpp's importance matrices: how large the inputs of each matrix's columns were on a text.

Two formats: GGUF files with `NAME.in_sum2` and `NAME.counts` tensors, and the older .dat files (a count of entries,
then for each its name, the number of calls, and the sums). An expert that saw nothing gets even weights.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from colibri.conversion.checksums import is_merged_experts
from colibri.conversion.plan import Output
from colibri.errors import FileError, FormatError
from colibri.weights.file_kind import HEAD_BYTES, refuse_others
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf import read_gguf
from colibri.weights.tensor_info import TensorInfo

MAX_BYTES: Final = 1 << 30
FEW_TOKENS: Final = 32  # below this an expert's sums are mostly noise
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ImportanceMatrix:
    """weights: mean squared input of each column, (matrices, k) by tensor; counts: tokens seen, (matrices,).

    A tensor holds one matrix, or one for each expert or head.
    """

    path: Path
    weights: Mapping[str, Floats]
    counts: Mapping[str, Floats]

    def for_outputs(self, outputs: list[Output]) -> dict[str, Floats]:
        """The weights of the tensors that a conversion writes. FormatError when a shape is not the tensor's."""
        chosen = {}
        for output in outputs:
            name, shape = output.spec.name, output.spec.shape
            found = self.weights.get(name)
            if found is None or len(shape) < 2:
                continue
            matrices = shape[0] if len(shape) > 2 else 1  # of experts or heads
            expected = matrices, shape[-1]
            if len(found) == 1 and found.size == expected[0] * expected[1]:  # .dat files run the experts together
                found = found.reshape(expected)
            if found.shape != expected:
                raise FormatError(
                    f"{self.path}: {name} has weights of shape {found.shape}, {expected} is expected; "
                    "the file belongs to another model"
                )
            chosen[name] = found if matrices > 1 or is_merged_experts(name) else found[0]
        return chosen

    def rarely_seen(self) -> list[str]:
        """Experts that fewer than 32 tokens were routed to, as `blk.3.ffn_up_exps.weight[17]`."""
        return [
            f"{name}[{expert}]"
            for name, counts in sorted(self.counts.items())
            if is_merged_experts(name)
            for expert in np.flatnonzero(counts < FEW_TOKENS)
        ]


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Read an importance file of either format. Raises FileError or FormatError."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise FormatError(f"{path}: takes {size} bytes; an importance matrix takes at most {MAX_BYTES}")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        refuse_others(path, head, "gguf")
        sums = _read_gguf(path) if head.startswith(b"GGUF") else _read_dat(path)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    if not sums:
        raise FormatError(f"{path}: holds no importances")
    weights, counts = {}, {}
    for name, (total, seen) in sums.items():
        weights[name] = _means(path, name, total, seen)
        counts[name] = seen
    return ImportanceMatrix(path, weights, counts)


def _means(path: Path, name: str, total: Floats, seen: Floats) -> Floats:
    """Sums (experts, k) over counts (experts,), scaled to a mean of 1; ones where nothing was seen."""
    if not np.isfinite(total).all() or not np.isfinite(seen).all() or total.min() < 0:
        raise FormatError(f"{path}: {name:.200} holds sums of squares that are negative or not finite")
    means = np.divide(total, seen[:, None], out=np.zeros_like(total), where=seen[:, None] > 0)
    scale = means.mean(axis=1, keepdims=True)
    scaled = np.divide(means, scale, out=np.ones_like(means), where=scale > 0)
    return np.asarray(np.maximum(scaled, np.float32(1e-4)))  # a column that was never used still has some weight


def _read_gguf(path: Path) -> dict[str, tuple[Floats, Floats]]:
    tensors = read_gguf(path).tensors
    sums = {}
    reader = FileReader()
    for name, info in tensors.items():
        base = name.removesuffix(".in_sum2")
        if base == name:
            continue
        count = tensors.get(f"{base}.counts")
        if count is None or info.type != "F32" or count.type != "F32":
            raise FormatError(f"{path}: {base:.200} has no counts, or is not of type F32")
        total = _values(info, reader).reshape(-1, info.shape[-1])
        seen = _values(count, reader).reshape(-1)
        if len(seen) != len(total):
            raise FormatError(f"{path}: {base:.200} has {len(total)} sums and {len(seen)} counts")
        sums[base] = total, seen
    return sums


def _values(info: TensorInfo, reader: FileReader) -> Floats:
    values = np.empty(info.nbytes // 4, np.float32)
    reader.read_into(info.file, info.offset, values)
    return values


def _read_dat(path: Path) -> dict[str, tuple[Floats, Floats]]:
    """Sums in the older format are means times calls, those of all experts of a tensor in one row."""
    data = memoryview(path.read_bytes())
    at = 0

    def integer(low: int, high: int, what: str) -> int:
        nonlocal at
        if at + 4 > len(data):
            raise FormatError(f"{path}: ends within {what}; it is truncated or no importance matrix")
        (value,) = struct.unpack_from("<i", data, at)
        at += 4
        if not low <= value <= high:
            raise FormatError(f"{path}: {what} is {value}, {low} to {high} is expected; no importance matrix")
        return int(value)

    sums = {}
    for _ in range(integer(0, 1 << 20, "the number of entries")):
        length = integer(1, 1024, "the length of a name")
        name = bytes(data[at : at + length]).decode("utf-8", "replace")
        at += length
        calls = integer(0, (1 << 31) - 1, f"the calls of {name}")
        count = integer(1, len(data) // 4, f"the number of values of {name}")
        if at + 4 * count > len(data):
            raise FormatError(f"{path}: ends within {name}; it is truncated")
        values = np.frombuffer(data, "<f4", count, at).astype(np.float32)
        at += 4 * count
        sums[name] = values.reshape(1, -1), np.array([calls], np.float32)
    return sums
