"""Writes the zip files of torch.save without torch, well formed or hostile."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


class FloatStorage:
    """Named like torch's class."""


class HalfStorage:
    """Named like torch's class."""


def _rebuild_tensor_v2(*arguments: Any) -> Any:
    """Named like torch's function."""


@contextmanager
def _torch_names() -> Iterator[None]:
    """Makes pickles say torch.FloatStorage and torch._utils._rebuild_tensor_v2."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.FloatStorage, torch.HalfStorage, torch._utils = FloatStorage, HalfStorage, utils  # type: ignore[attr-defined]
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2  # type: ignore[attr-defined]
    for kind in (FloatStorage, HalfStorage):
        kind.__module__, kind.__qualname__ = "torch", kind.__name__
    _rebuild_tensor_v2.__module__ = "torch._utils"
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules |= {"torch": torch, "torch._utils": utils}
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class Storage:
    """The values of one or more tensors."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values.reshape(-1)


class Tensor:
    """A view of a storage."""

    def __init__(
        self, storage: Storage, shape: tuple[int, ...], offset: int = 0, stride: tuple[int, ...] | None = None
    ) -> None:
        self.storage, self.shape, self.offset = storage, shape, offset
        steps = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
        self.stride = tuple(steps) if stride is None else stride

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_tensor_v2, (self.storage, self.offset, self.shape, self.stride, False, {})


def save(path: Path, content: Any, prefix: str = "archive", compression: int = zipfile.ZIP_STORED) -> None:
    """Write `content` as torch.save would; numpy arrays become tensors."""
    data, storages = _pickled(content)
    write_zip(path, data, [storage.values.tobytes() for storage in storages], prefix, compression)


def save_old(path: Path, content: Any, *, little_endian: bool = True, keys: list[str] | None = None) -> None:
    """Write `content` as torch.save did before PyTorch 1.6."""
    data, storages = _pickled(content, None)
    system = {"protocol_version": 1001, "little_endian": little_endian, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    parts = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, system)]
    parts += [data, pickle.dumps([str(number) for number in range(len(storages))] if keys is None else keys, 2)]
    for storage in storages:
        parts += [storage.values.size.to_bytes(8, "little"), storage.values.tobytes()]
    path.write_bytes(b"".join(parts))


def _pickled(content: Any, *more: Any) -> tuple[bytes, list[Storage]]:
    """The pickle and the storages that it speaks of, each with `more` at its end."""
    storages: list[Storage] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if not isinstance(obj, Storage):
                return None
            if obj not in storages:
                storages.append(obj)
            kind = HalfStorage if obj.values.dtype == np.float16 else FloatStorage
            return "storage", kind, str(storages.index(obj)), "cpu", obj.values.size, *more

    with _torch_names():
        stream = io.BytesIO()
        Pickler(stream, 2).dump(as_tensors(content))
    return stream.getvalue(), storages


def permuted(array: np.ndarray[Any, Any], order: tuple[int, ...], step: int = 1) -> Tensor:
    """The same values, stored with the dimensions in another order and `step` values apart."""
    stored = np.zeros((*(array.shape[axis] for axis in order), step), array.dtype)
    stored[..., 0] = array.transpose(order)
    strides = [0] * array.ndim
    for place, axis in enumerate(order):
        strides[axis] = int(np.prod(stored.shape[place + 1 :]))
    return Tensor(Storage(stored), array.shape, stride=tuple(strides))


def as_tensors(content: Any) -> Any:
    """Arrays, also inside dictionaries, as tensors."""
    if isinstance(content, np.ndarray):
        return Tensor(Storage(content), content.shape)
    if isinstance(content, Mapping):
        return {name: as_tensors(value) for name, value in content.items()}
    return content


def write_zip(
    path: Path, data: bytes, storages: list[bytes], prefix: str = "archive", compression: int = zipfile.ZIP_STORED
) -> None:
    """The container alone."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{prefix}/data.pkl", data)
        archive.writestr(f"{prefix}/byteorder", b"little")
        for number, storage in enumerate(storages):
            archive.writestr(f"{prefix}/data/{number}", storage)
