"""Where the tensors are in the files that `torch.save` writes: zip files, and those from before PyTorch 1.6.

Tensors come back as ranges of the file (torch stores their bytes as they are, uncompressed), in the form that
safetensors headers give; views that are not contiguous, such as transposed matrices, with their strides.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from colibri.conversion.torch_pickle import GLOBALS, Globals, Record, Storage, Tensor, TrainerGlobals, Unpickler
from colibri.errors import ColibriError, FileError, FormatError, UnsupportedError
from colibri.weights.file_kind import HEAD_BYTES, refuse_others
from colibri.weights.file_reader import opened, read_exactly
from colibri.weights.safetensors import INDEX_NAME, read_directory, read_indexed
from colibri.weights.tensor_info import TensorInfo

MAX_PICKLE_BYTES: Final = 8 << 20  # the structure of a file with 40,000 tensors
MAX_DIRECTORY_BYTES: Final = 8 << 20  # that of 100,000 storages takes 7 MB
MAX_NAME: Final = 1024
MAX_STEP: Final = 16  # values from one to the next, in the direction in which they are closest
BIN_INDEX_NAME: Final = "pytorch_model.bin.index.json"
_OLD_MAGIC: Final = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")  # a pickle of the number that old files begin with
_PICKLES: Final = (b"\x80", b"c", b"(")  # how those of Python begin that are neither in a zip file nor torch's


def read_weights(directory: Path) -> dict[str, TensorInfo]:
    """All tensors of a directory: its safetensors files or, where there are none, its PyTorch .bin files."""
    safe = (directory / INDEX_NAME).exists() or any(directory.glob("model*.safetensors"))
    if safe or not any(directory.glob("*.bin")):
        return read_directory(directory)
    index = directory / BIN_INDEX_NAME
    if index.exists():
        return read_indexed(index, read_file)
    tensors: dict[str, TensorInfo] = {}
    for file in sorted(directory.glob("pytorch_model*.bin")):
        for name, tensor in read_file(file).items():
            if name in tensors:
                raise FormatError(f"{file}: tensor {name:.200} is also in {tensors[name].file.name}")
            tensors[name] = tensor
    if not tensors:
        raise FileError(f"{directory}: holds no model*.safetensors and no pytorch_model*.bin file")
    return tensors


def read_file(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a state dictionary; nested dictionaries give names with dots.

    Raises FileError (missing, truncated), FormatError (damaged) or UnsupportedError (other objects, odd strides).
    """
    content, places = _load(path, GLOBALS)
    return _placed(path, content, places)


def read_state(path: Path) -> tuple[dict[str, TensorInfo], Mapping[str, Any]]:
    """The tensors of the `module` in a training state of DeepSpeed, and Megatron's options that lie beside them.

    Objects of the trainer and its libraries become empty stand-ins. Raises what `read_file` does.
    """
    content, places = _load(path, TrainerGlobals(GLOBALS))
    options = content.get("args") if isinstance(content, dict) else None
    if not isinstance(options, Record):
        raise UnsupportedError(f"{path}: holds no `args`; states that Megatron-DeepSpeed saved are read")
    return _placed(path, content.get("module"), places), options


def _load(path: Path, known: Globals) -> tuple[Any, Mapping[str, int]]:
    """What a file holds, and the offset of each storage's first byte."""
    with opened(path) as (descriptor, size):
        try:
            start = read_exactly(path, descriptor, min(size, HEAD_BYTES), 0)
            refuse_others(path, start, "zip", "pickle")
            if start.startswith(_OLD_MAGIC):
                return _load_old(path, descriptor, size, known)
            if start.startswith(_PICKLES):
                _refuse_pickle(path, descriptor, size, known)
            with path.open("rb") as file:
                _check_directory(file)
                with zipfile.ZipFile(file) as archive:
                    return _load_zip(path, size, archive, known)
        except (ColibriError, OSError):
            raise
        except Exception as error:  # a damaged archive or pickle fails in many ways
            found = f"{type(error).__name__}: {error!s:.200}"
            raise FormatError(f"{path}: is damaged, or nothing that torch.save wrote: {found}") from error


# ---- zip files ----


def _check_directory(file: IO[bytes]) -> None:
    """The library makes objects of all entries before it can be asked how many there are."""
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end and end[zipfile._ECD_SIZE] > MAX_DIRECTORY_BYTES:  # type: ignore[attr-defined]
        raise ValueError(f"a directory of {end[zipfile._ECD_SIZE]} bytes")  # type: ignore[attr-defined]


def _load_zip(path: Path, size: int, archive: zipfile.ZipFile, known: Globals) -> tuple[Any, dict[str, int]]:
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) != len(archive.infolist()):
        raise ValueError("two entries have the same name")
    name = next((name for name in entries if name.endswith("/data.pkl")), None)
    if name is None:
        raise FormatError(f"{path}: holds no data.pkl; a file written by torch.save is expected")
    nbytes = entries[name].file_size
    if nbytes > MAX_PICKLE_BYTES or entries[name].compress_type != zipfile.ZIP_STORED:
        raise FormatError(f"{path}: data.pkl takes {nbytes} bytes, at most {MAX_PICKLE_BYTES} are read")
    unpickler = Unpickler(path, io.BytesIO(archive.read(name)), known)
    content = unpickler.load()
    folder = name.removesuffix("data.pkl")
    with path.open("rb") as file:
        starts = {
            key: _start(path, size, file, storage, entries.get(f"{folder}data/{key}"))
            for key, storage in unpickler.storages.items()
        }
    return content, starts


def _start(path: Path, size: int, file: IO[bytes], storage: Storage, entry: zipfile.ZipInfo | None) -> int:
    """The zip directory does not have it: the entry's own header is read."""
    what = f"{path}: the storage data/{storage.key:.80}"
    expected = storage.values * storage.type.width
    if entry is None:
        raise FormatError(f"{what} is missing")
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != expected:
        raise FormatError(f"{what} takes {entry.file_size} bytes, {expected} uncompressed ones are expected")
    file.seek(entry.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\3\4":
        raise FormatError(f"{what} has no header; the file is damaged")
    start = entry.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    if start + expected > size:
        raise FileError(f"{path}: ends before data/{storage.key:.80} does; it is truncated")
    return start


# ---- files of PyTorch before 1.6 ----


def _load_old(path: Path, descriptor: int, size: int, known: Globals) -> tuple[Any, dict[str, int]]:
    """Five pickles (a number, a version, the system, the content, the storages' keys), then each storage's values
    behind their number in 8 bytes."""
    stream = io.BytesIO(read_exactly(path, descriptor, min(size, MAX_PICKLE_BYTES), 0))
    unpicklers = [Unpickler(path, stream, known) for _ in range(5)]
    _, _, system, content, keys = (unpickler.load() for unpickler in unpicklers)
    storages = unpicklers[3].storages
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise UnsupportedError(f"{path}: was written on a big-endian machine")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(storages):
        raise FormatError(f"{path}: its list of storages is not that of the tensors")
    starts: dict[str, int] = {}
    position = stream.tell()
    for key in keys:
        storage = storages[key]
        values = int.from_bytes(read_exactly(path, descriptor, 8, position), "little")
        if values != storage.values:
            raise FormatError(f"{path}: the storage {key:.80} has {values} values, {storage.values} are expected")
        starts[key] = position + 8
        position += 8 + values * storage.type.width
    if position > size:
        raise FileError(f"{path}: takes {position} bytes, but the file has {size}; it is truncated")
    return content, starts


# ---- pickles of other programs ----


def _refuse_pickle(path: Path, descriptor: int, size: int, known: Globals) -> None:
    """Always raises: such a pickle holds no storages to read tensors from, but may ask for what runs code."""
    Unpickler(path, io.BytesIO(read_exactly(path, descriptor, min(size, MAX_PICKLE_BYTES), 0)), known).load()
    raise ValueError("a pickle of another program")


# ---- tensors ----


def _placed(path: Path, content: Any, starts: Mapping[str, int]) -> dict[str, TensorInfo]:
    return {name: _place(path, starts, name, tensor) for name, tensor in _flatten(path, content).items()}


def _flatten(path: Path, content: Any) -> dict[str, Tensor]:
    """Tensors by name; dictionaries inside dictionaries (as training states have) are walked, each one once."""
    if not isinstance(content, dict):
        raise FormatError(f"{path}: holds a {type(content).__name__}, a dictionary of tensors is expected")
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    open_: list[tuple[str, Any]] = [("", content)]
    while open_:
        prefix, value = open_.pop()
        if isinstance(value, Tensor):
            tensors[prefix] = value
        elif isinstance(value, dict) and id(value) not in seen:
            if len(prefix) > MAX_NAME:
                raise FormatError(f"{path}: dictionaries give a name of more than {MAX_NAME} characters")
            seen.add(id(value))
            joined = f"{prefix}." if prefix else ""
            open_ += [(f"{joined}{name}", inner) for name, inner in value.items() if isinstance(name, str)]
    return tensors


def _place(path: Path, starts: Mapping[str, int], name: str, tensor: Tensor) -> TensorInfo:
    dtype, width = tensor.storage.type
    count = math.prod(tensor.shape)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=True))
    if count and tensor.offset + last >= tensor.storage.values:
        raise FormatError(f"{path}: tensor {name:.200} goes past the end of its storage")
    start = starts[tensor.storage.key] + tensor.offset * width
    strides = None if not count or _contiguous(tensor.shape, tensor.stride) else tensor.stride
    matrix = zip(tensor.shape[-2:], tensor.stride[-2:], strict=True)
    if strides and min((stride for size, stride in matrix if size > 1), default=1) > MAX_STEP:
        raise UnsupportedError(
            f"{path}: tensor {name:.200} of shape {tensor.shape} is stored with strides {strides}; "
            "save it once as a contiguous tensor"
        )
    return TensorInfo(name, dtype, tensor.shape, path, start, count * width, strides=strides)


def _contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(shape[::-1], strides[::-1], strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
