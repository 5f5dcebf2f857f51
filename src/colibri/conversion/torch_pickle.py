"""Unpickles what `torch.save` pickles, without torch and without running what is in it.

A pickle is a program. Here it may build dictionaries, lists and tensors, and nothing else: every other global is
refused by name, so that no code of the file is ever called.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NamedTuple

from colibri.errors import FormatError, UnsupportedError

MAX_READS: Final = 2 << 20  # a tensor takes about 50
_STORAGES: Final = {
    "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2), "DoubleStorage": ("F64", 8),
    "LongStorage": ("I64", 8), "IntStorage": ("I32", 4), "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1), "BoolStorage": ("BOOL", 1),
}  # fmt: skip

Globals = Mapping[str, Callable[..., Any]]  # what stands for a global that a pickle asks for


class StorageType(NamedTuple):
    """Type and bytes of the values in a storage."""

    dtype: str
    width: int


class Storage(NamedTuple):
    """So many values, that tensors are views of."""

    type: StorageType
    key: str
    values: int


class Tensor(NamedTuple):
    """Offset and strides are in values."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Record(dict[str, Any]):
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


class _Counted:
    """A stream that ends when it was read too often: every operation of a pickle takes one read or more."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._read, self.readline, self._left = stream.read, stream.readline, MAX_READS

    def read(self, count: int) -> bytes:
        """As of a file."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {MAX_READS} reads")
        return self._read(count)


class Unpickler(pickle._Unpickler):
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
        if not isinstance(target, Record | _Dictionary | _StandIn):
            raise ValueError(f"a state for a {type(target).__name__}")
        target.__setstate__(state)

    dispatch[pickle.SETITEM[0]], dispatch[pickle.SETITEMS[0]] = load_setitem, load_setitems
    dispatch[pickle.BUILD[0]] = load_build

    def __init__(self, path: Path, stream: IO[bytes], known: Globals) -> None:
        super().__init__(_Counted(stream))
        self._path, self._known = path, known
        self.storages: dict[str, Storage] = {}  # those that the pickle speaks of, by key

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return StorageType(*_STORAGES[name])
        found = self._known.get(f"{module}.{name}")
        if found is None:
            raise UnsupportedError(
                f"{self._path}: asks for {module}.{name}; only tensors and plain containers are read, because "
                "anything else could run code of the file"
            )
        return found

    def persistent_load(self, pid: Any) -> Storage:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[1], StorageType)):
            raise FormatError(f"{self._path}: a storage of an unknown kind")
        if not isinstance(pid[2], str) or not _count(pid[4]):
            raise FormatError(f"{self._path}: a storage without a key or a number of values")
        storage = Storage(pid[1], pid[2], pid[4])
        if any(pid[5:]) or self.storages.setdefault(pid[2], storage) != storage:
            raise FormatError(f"{self._path}: the storage {pid[2]!r:.80} is a view of another, or of two kinds")
        return storage


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
    if not isinstance(storage, Storage) or not _count(offset) or not _counts(size) or not _counts(stride):
        raise ValueError("a tensor without a storage, or with an impossible shape")
    if len(size) != len(stride):
        raise ValueError(f"a tensor of shape {size} with strides {stride}")
    return Tensor(storage, offset, tuple(size), tuple(stride))


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def _size(values: Any) -> tuple[int, ...]:
    return tuple(values)


GLOBALS: Final[Globals] = {
    "collections.OrderedDict": _Dictionary,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch.Size": _size,
    "argparse.Namespace": Record,
}
_OF_TRAINERS = re.compile(
    r"(torch|numpy|megatron|deepspeed|apex)\..+|_codecs\.encode|collections\.defaultdict|builtins\.(set|dict|slice)"
)


class TrainerGlobals(dict[str, Callable[..., Any]]):
    """The known globals, and a stand-in for whatever else belongs to a trainer or its libraries."""

    def get(self, key: str, default: Any = None) -> Any:
        """What is put in the place of a global; nothing of the library itself."""
        return self[key] if key in self else _StandIn if _OF_TRAINERS.fullmatch(key) else default


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _counts(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= 8 and all(map(_count, value))
