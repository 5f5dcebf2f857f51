"""Reads the headers of safetensors files, single or sharded, with every field checked. No tensor data is read.

The type of a tensor is what the file calls it, also where no weight may have it (see `supported`).

Source: the format's description in the safetensors repository (8 bytes of header length, a JSON header, the data).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from colibri.errors import FileError, FormatError, UnsupportedError
from colibri.weights.file_kind import HEAD_BYTES, refuse_others
from colibri.weights.file_reader import opened, read_exactly
from colibri.weights.json_file import parse_object, read_object
from colibri.weights.tensor_info import TensorInfo

MAX_HEADER_BYTES: Final = 32 << 20  # 200,000 tensors; real shards stay below 4 MB
MAX_DIMENSIONS: Final = 16
INDEX_NAME: Final = "model.safetensors.index.json"
_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "C64": 64,
}  # fmt: skip
_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors", re.DOTALL)


def read_directory(directory: Path) -> dict[str, TensorInfo]:
    """All tensors of a directory: model.safetensors, or the shards that the index names, or the shards found.

    Raises FileError naming a missing shard, FormatError when two shards hold a tensor and no index decides.
    """
    single, index = directory / "model.safetensors", directory / INDEX_NAME
    if single.exists():
        return read_file(single)
    if index.exists():
        return read_indexed(index, read_file)
    shards = sorted(directory.glob("model*.safetensors"))
    if not shards:
        raise FileError(f"{directory}: holds no model*.safetensors file{_hint(directory)}")
    _check_complete(directory, shards)
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, tensor in read_file(shard).items():
            if name in tensors:
                raise FormatError(
                    f"{shard}: tensor {name} is also in {tensors[name].file.name}, and there is no {INDEX_NAME} to "
                    "decide; remove one of the files"
                )
            tensors[name] = tensor
    return tensors


def _hint(directory: Path) -> str:
    """What is there instead."""
    inside = sorted(file.name for file in directory.glob("*.gguf"))
    if inside:
        return f"; give one of the files {', '.join(inside[:5])}"
    if any(directory.glob("adapter_model.*")):
        return "; it holds a LoRA adapter, which is a change to a model: merge it into the model first"
    return "; PyTorch's .bin files are run after `colibri convert`" if any(directory.glob("*.bin")) else ""


def _check_complete(directory: Path, shards: list[Path]) -> None:
    names = {shard.name for shard in shards}
    for shard in shards:
        match = _SHARD_NAME.fullmatch(shard.name)
        for number in range(1, int(match[3]) + 1 if match else 1):
            expected = f"{match[1]}-{number:05d}-of-{match[3]}.safetensors" if match else ""
            if expected not in names:
                raise FileError(f"{directory}: the shard {expected} is missing")


def read_indexed(index: Path, read: Callable[[Path], dict[str, TensorInfo]]) -> dict[str, TensorInfo]:
    """The tensors that an index names, each from the shard that it names, as `read` finds them there."""
    weight_map = read_object(index, MAX_HEADER_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{index}: weight_map is missing or is not an object with entries")
    shards: dict[str, dict[str, TensorInfo]] = {}
    tensors: dict[str, TensorInfo] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard or "\0" in shard or Path(shard).name != shard:
            raise FormatError(
                f"{index}: weight_map of {name} is {shard!r:.200}; the name of a file beside it is expected"
            )
        if shard not in shards:
            file = index.with_name(shard)
            if not file.exists():
                raise FileError(f"{index.parent}: the shard {shard} is missing ({index.name} names it for {name})")
            shards[shard] = read(file)
        if name not in shards[shard]:
            raise FormatError(f"{index}: says that {shard} holds {name}, but it does not")
        tensors[name] = shards[shard][name]
    return tensors


def read_file(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file. Raises FileError when it is truncated, FormatError when it contradicts the format."""
    with opened(path) as (descriptor, size):
        refuse_others(path, read_exactly(path, descriptor, min(size, HEAD_BYTES), 0), "safetensors")
        length = int.from_bytes(read_exactly(path, descriptor, 8, 0), "little")
        if length > MAX_HEADER_BYTES:
            raise FormatError(f"{path}: the header length is {length}, at most {MAX_HEADER_BYTES} is expected")
        if 8 + length > size:
            raise FileError(f"{path}: the header takes {8 + length} bytes, but the file has {size}; it is truncated")
        data = read_exactly(path, descriptor, length, 8)
    header = parse_object(data, f"{path} (header)")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise FormatError(f"{path}: __metadata__ is not an object")
    tensors = {name: _tensor(path, name, entry, 8 + length, size) for name, entry in header.items()}
    _check_cover(path, tensors, 8 + length, size)
    return tensors


def _tensor(path: Path, name: str, entry: Any, start: int, size: int) -> TensorInfo:
    if not isinstance(entry, dict) or not entry.keys() >= {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{path}: tensor {name:.200}: an object with dtype, shape and data_offsets is expected")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise UnsupportedError(f"{path}: tensor {name:.200} has the unknown dtype {dtype!r:.80}")
    if not _counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise FormatError(f"{path}: tensor {name:.200}: shape is {shape!r:.80}, a list of sizes is expected")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{path}: tensor {name:.200}: data_offsets is {offsets!r:.80}, [begin, end] is expected")
    first, last = offsets
    if start + last > size:
        raise FileError(
            f"{path}: tensor {name:.200} ends at byte {start + last}, but the file has {size} bytes; it is truncated"
        )
    bits = math.prod(shape) * _BITS[dtype]
    if bits != 8 * (last - first):
        raise FormatError(
            f"{path}: tensor {name:.200}: {last - first} bytes of data, {bits // 8} expected for {dtype} {shape}"
        )
    return TensorInfo(name, dtype, tuple(shape), path, start + first, last - first)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def _check_cover(path: Path, tensors: Mapping[str, TensorInfo], start: int, size: int) -> None:
    """The format asks that tensors fill the data without holes and without overlap."""
    ordered = sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes))
    position, previous = start, "the header"
    for tensor in ordered:
        if tensor.offset != position:
            what = "overlap" if tensor.offset < position else "leave a hole"
            raise FormatError(
                f"{path}: the data of {previous:.200} and {tensor.name:.200} {what} at byte {tensor.offset}"
            )
        position, previous = tensor.offset + tensor.nbytes, tensor.name
    if position != size:
        raise FormatError(f"{path}: has {size - position} bytes after the last tensor")


def supported(tensor: TensorInfo) -> TensorInfo:
    """The tensor itself when its type is one that weights may have, otherwise UnsupportedError."""
    if tensor.type not in ("F32", "F16", "BF16") and tensor.encoding is None:
        raise UnsupportedError(
            f"{tensor.file}: tensor {tensor.name:.200} is {tensor.type}; F32, F16 and BF16 are read. "
            "Convert the checkpoint to one of them first"
        )
    return tensor
