"""Reads the zip files that `torch.save` writes, without torch and without running what is in them.

A pickle is a program. Here it may build dictionaries, lists and tensors, and nothing else: every other global is
refused by name, so that no code of the file is ever called. Tensors come back as ranges of the file (torch stores
their bytes as they are, uncompressed), in the form that safetensors headers give.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from colibri.errors import FileError, FormatError, UnsupportedError
from colibri.weights.safetensors import INDEX_NAME, SafeTensor, read_directory, read_indexed

MAX_PICKLE_BYTES: Final = 24 << 20  # the structure of a shard with 100,000 tensors takes 20 MB
MAX_NAME: Final = 1024
BIN_INDEX_NAME: Final = "pytorch_model.bin.index.json"
_STORAGES: Final = {
    "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2), "DoubleStorage": ("F64", 8),
    "LongStorage": ("I64", 8), "IntStorage": ("I32", 4), "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1), "BoolStorage": ("BOOL", 1),
}  # fmt: skip


class _StorageType(NamedTuple):
    dtype: str
    width: int


class _Storage(NamedTuple):
    type: _StorageType
    key: str
    values: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Record(dict[str, Any]):
    """Stands for the argparse namespaces of training states: only holds what it is given."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.update(state)


class _Dictionary(dict[str, Any]):
    """Stands for an OrderedDict; what is said of it beside its items is left out."""

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Modules keep the versions of their layouts there."""


class _StandIn:
    """Stands for an object of a training state that is of no interest: takes what it is built from, and is empty."""

    def __new__(cls, *_: Any, **__: Any) -> _StandIn:
        return super().__new__(cls)

    def ignore(self, *_: Any) -> None:
        """Take what the pickle would put into the object."""

    __setstate__ = __setitem__ = append = extend = ignore


def read_weights(directory: Path) -> dict[str, SafeTensor]:
    """All tensors of a directory: its safetensors files or, where there are none, its PyTorch .bin files."""
    safe = (directory / INDEX_NAME).exists() or any(directory.glob("model*.safetensors"))
    if safe or not any(directory.glob("*.bin")):
        return read_directory(directory)
    index = directory / BIN_INDEX_NAME
    if index.exists():
        return read_indexed(index, read_file)
    tensors: dict[str, SafeTensor] = {}
    for file in sorted(directory.glob("pytorch_model*.bin")):
        for name, tensor in read_file(file).items():
            if name in tensors:
                raise FormatError(f"{file}: tensor {name:.200} is also in {tensors[name].file.name}")
            tensors[name] = tensor
    if not tensors:
        raise FileError(f"{directory}: holds no model*.safetensors and no pytorch_model*.bin file")
    return tensors


def read_file(path: Path) -> dict[str, SafeTensor]:
    """The tensors of a state dictionary; nested dictionaries give names with dots.

    Raises FileError (missing, truncated), FormatError (damaged) or UnsupportedError (other objects, old format).
    """
    with _opened(path) as archive:
        return _placed(path, archive, _unpickle(path, archive, _GLOBALS))


def read_state(path: Path) -> tuple[dict[str, SafeTensor], Mapping[str, Any]]:
    """The tensors of the `module` in a training state of DeepSpeed, and Megatron's options that lie beside them.

    Objects of the trainer and its libraries become empty stand-ins. Raises what `read_file` does.
    """
    with _opened(path) as archive:
        content = _unpickle(path, archive, _TrainerGlobals(_GLOBALS))
        options = content.get("args") if isinstance(content, dict) else None
        if not isinstance(options, _Record):
            raise UnsupportedError(f"{path}: holds no `args`; states that Megatron-DeepSpeed saved are read")
        return _placed(path, archive, content.get("module")), options


def _placed(path: Path, archive: zipfile.ZipFile, content: Any) -> dict[str, SafeTensor]:
    places = _Places(path, archive)
    return {name: _place(places, name, tensor) for name, tensor in _flatten(path, content).items()}


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise ValueError("two entries have the same name")
        return archive
    except OSError as error:
        raise FileError(f"{path}: cannot be opened: {error.strerror}") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise FormatError(
            f"{path}: {error}; a file written by torch.save since PyTorch 1.6 is expected. "
            "Load and save an older one with torch once"
        ) from error


def _unpickle(path: Path, archive: zipfile.ZipFile, known: Mapping[str, Callable[..., Any]]) -> Any:
    entry = next((info for info in archive.infolist() if info.filename.endswith("/data.pkl")), None)
    if entry is None:
        raise FormatError(f"{path}: holds no data.pkl; a file written by torch.save is expected")
    if entry.file_size > MAX_PICKLE_BYTES or entry.compress_type != zipfile.ZIP_STORED:
        raise FormatError(f"{path}: data.pkl takes {entry.file_size} bytes, at most {MAX_PICKLE_BYTES} are read")
    try:
        return _Unpickler(path, archive.read(entry), known).load()
    except (FormatError, UnsupportedError):
        raise
    except (zipfile.BadZipFile, OSError) as error:
        raise FormatError(f"{path}: data.pkl cannot be read: {error}") from error
    except Exception as error:  # a damaged pickle fails in many ways
        raise FormatError(f"{path}: data.pkl is damaged: {type(error).__name__}: {error!s:.200}") from error


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler in Python: that in C makes room for a memo of four billion objects when it is told to.

    Keys must be plain, because hashing tuples of tuples may take for ever; opcodes that torch.save does not use and
    that hash, or make room before they read, are not known.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(pickle._Unpickler.dispatch)
    for opcode in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.BYTEARRAY8, pickle.DICT):
        del dispatch[opcode[0]]

    def load_setitem(self) -> None:
        """The value and the key are on the stack, the dictionary below them."""
        value, key = self.stack.pop(), self.stack.pop()
        self._set(self.stack[-1], key, value)

    def load_setitems(self) -> None:
        """Keys and values since the last mark."""
        items = self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._set(self.stack[-1], key, value)

    def _set(self, target: Any, key: Any, value: Any) -> None:
        if type(key) not in (str, int, float, bool, type(None)):
            raise ValueError(f"a dictionary with a {type(key).__name__} for a key")
        if isinstance(target, dict) and key in target:
            raise ValueError(f"a dictionary with the key {key!r:.80} twice")
        target[key] = value

    def load_build(self) -> None:
        """A state is given to our own objects only, never to a class or a function."""
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, _Record | _Dictionary | _StandIn):
            raise ValueError(f"a state for a {type(target).__name__}")
        target.__setstate__(state)

    dispatch[pickle.SETITEM[0]], dispatch[pickle.SETITEMS[0]] = load_setitem, load_setitems
    dispatch[pickle.BUILD[0]] = load_build

    def __init__(self, path: Path, data: bytes, known: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(io.BytesIO(data))
        self._path, self._known = path, known

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _StorageType(*_STORAGES[name])
        found = self._known.get(f"{module}.{name}")
        if found is None:
            raise UnsupportedError(
                f"{self._path}: asks for {module}.{name}; only tensors and plain containers are read, because "
                "anything else could run code of the file"
            )
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[1], _StorageType)):
            raise FormatError(f"{self._path}: a storage of an unknown kind")
        if not isinstance(pid[2], str) or not _count(pid[4]):
            raise FormatError(f"{self._path}: a storage without a key or a number of values")
        return _Storage(pid[1], pid[2], pid[4])


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage) or not _count(offset) or not _counts(size) or not _counts(stride):
        raise ValueError("a tensor without a storage, or with an impossible shape")
    if len(size) != len(stride):
        raise ValueError(f"a tensor of shape {size} with strides {stride}")
    return _Tensor(storage, offset, tuple(size), tuple(stride))


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def _size(values: Any) -> tuple[int, ...]:
    return tuple(values)


_GLOBALS: Final[Mapping[str, Callable[..., Any]]] = {
    "collections.OrderedDict": _Dictionary,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch.Size": _size,
    "argparse.Namespace": _Record,
}
_OF_TRAINERS = re.compile(
    r"(torch|numpy|megatron|deepspeed|apex)\..+|_codecs\.encode|collections\.defaultdict|builtins\.(set|dict|slice)"
)


class _TrainerGlobals(dict[str, Callable[..., Any]]):
    """The known globals, and a stand-in for whatever else belongs to a trainer or its libraries."""

    def get(self, key: str, default: Any = None) -> Any:
        """What is put in the place of a global; nothing of the library itself."""
        return self[key] if key in self else _StandIn if _OF_TRAINERS.fullmatch(key) else default


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _counts(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= 8 and all(map(_count, value))


def _flatten(path: Path, content: Any) -> dict[str, _Tensor]:
    """Tensors by name; dictionaries inside dictionaries (as training states have) are walked, each one once."""
    if not isinstance(content, dict):
        raise FormatError(f"{path}: holds a {type(content).__name__}, a dictionary of tensors is expected")
    tensors: dict[str, _Tensor] = {}
    seen: set[int] = set()
    open_: list[tuple[str, Any]] = [("", content)]
    while open_:
        prefix, value = open_.pop()
        if isinstance(value, _Tensor):
            tensors[prefix] = value
        elif isinstance(value, dict) and id(value) not in seen:
            if len(prefix) > MAX_NAME:
                raise FormatError(f"{path}: dictionaries give a name of more than {MAX_NAME} characters")
            seen.add(id(value))
            joined = f"{prefix}." if prefix else ""
            open_ += [(f"{joined}{name}", inner) for name, inner in value.items() if isinstance(name, str)]
    return tensors


class _Places:
    """Where the storages lie in the file."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        self._size = path.stat().st_size
        self._found: dict[str, int] = {}

    def start(self, storage: _Storage) -> int:
        """The offset of a storage's first byte. The zip directory does not have it: the entry's own header is read."""
        if storage.key not in self._found:
            self._found[storage.key] = self._start(storage)
        return self._found[storage.key]

    def _start(self, storage: _Storage) -> int:
        entry = self._entries.get(f"data/{storage.key}")
        if entry is None:
            raise FormatError(f"{self.path}: the storage data/{storage.key} is missing")
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != storage.values * storage.type.width:
            raise FormatError(
                f"{self.path}: the storage data/{storage.key} takes {entry.file_size} bytes, "
                f"{storage.values * storage.type.width} uncompressed ones are expected"
            )
        with self.path.open("rb") as file:
            file.seek(entry.header_offset)
            header = file.read(30)
        if len(header) < 30 or header[:4] != b"PK\3\4":
            raise FormatError(f"{self.path}: the storage data/{storage.key} has no header; the file is damaged")
        name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        start = entry.header_offset + 30 + name + extra
        if start + entry.file_size > self._size:
            raise FileError(f"{self.path}: ends before data/{storage.key} does; it is truncated")
        return start


def _place(places: _Places, name: str, tensor: _Tensor) -> SafeTensor:
    dtype, width = tensor.storage.type
    expected = 1
    for size, stride in zip(tensor.shape[::-1], tensor.stride[::-1], strict=True):
        if size != 1 and stride != expected:
            raise UnsupportedError(
                f"{places.path}: tensor {name:.200} of shape {tensor.shape} is stored with strides {tensor.stride}; "
                "save it once as a contiguous tensor"
            )
        expected *= size
    count = math.prod(tensor.shape)
    if tensor.offset + count > tensor.storage.values:
        raise FormatError(f"{places.path}: tensor {name:.200} goes past the end of its storage")
    start = places.start(tensor.storage) + tensor.offset * width
    return SafeTensor(name, dtype, tensor.shape, places.path, start, count * width)
