"""PyTorch files: tensors are found where they lie, and nothing that a file asks for is ever called."""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import pickle
import struct
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import directory_config, directory_tensors, write_directory
from torch_files import Storage, Tensor, permuted, save, save_old, write_zip

from colibri.conversion.convert import Options, convert
from colibri.conversion.source import open_source
from colibri.conversion.torch_file import read_file
from colibri.errors import ColibriError, FileError, FormatError, UnsupportedError
from colibri.weights.file_reader import FileReader
from colibri.weights.rows import fetched_by, read_rows
from colibri.weights.tensor_info import TensorInfo

RNG = np.random.default_rng(5)


def values(path: Path, name: str) -> np.ndarray[Any, Any]:
    info = read_file(path)[name]
    kind = {"F32": np.float32, "F16": np.float16}[info.type]
    data = path.read_bytes()[info.offset : info.offset + info.nbytes]
    return np.frombuffer(data, kind).reshape(info.shape)


def test_tensors_are_ranges_of_the_file(tmp_path: Path) -> None:
    first, half = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(5,)).astype(np.float16)
    save(tmp_path / "a.bin", collections.OrderedDict(first=first, half=half))
    np.testing.assert_array_equal(values(tmp_path / "a.bin", "first"), first)
    np.testing.assert_array_equal(values(tmp_path / "a.bin", "half"), half)


def test_views_share_a_storage(tmp_path: Path) -> None:
    storage = Storage(np.arange(12, dtype=np.float32))
    save(tmp_path / "a.bin", {"all": Tensor(storage, (3, 4)), "last": Tensor(storage, (4,), offset=8)})
    np.testing.assert_array_equal(values(tmp_path / "a.bin", "last"), [8, 9, 10, 11])


def test_training_states_are_walked(tmp_path: Path) -> None:
    weight = np.ones((2, 2), np.float32)
    state = {"module": {"layer": {"weight": weight}}, "args": argparse.Namespace(lr=1), "step": 7, "loss": None}
    save(tmp_path / "a.pt", state)
    assert list(read_file(tmp_path / "a.pt")) == ["module.layer.weight"]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_directory_of_bin_files_converts_as_one_of_safetensors(tmp_path: Path, shards: int, fused: bool) -> None:
    safe = write_directory(tmp_path / "safe", "mixtral", fused)
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "config.json").write_text((safe / "config.json").read_text())
    tensors = arrays("mixtral", fused)
    names = sorted(tensors)
    for shard in range(shards):
        part = {name: tensors[name] for name in names[shard::shards]}
        save(torch / f"pytorch_model-{shard + 1:05d}-of-{shards:05d}.bin", part)
    for source in (safe, torch):
        options = Options("q8_0", name="same")
        convert(open_source(source), tmp_path / f"{source.name}.gguf", options)
    assert (tmp_path / "safe.gguf").read_bytes() == (tmp_path / "torch.gguf").read_bytes()
    assert directory_config("mixtral")["model_type"] == "mixtral"


def arrays(family: str, fused: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    tensors = directory_tensors(family, fused)
    return {name: np.frombuffer(data, np.float32).reshape(shape) for name, (_, shape, data) in tensors.items()}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("write", [save, save_old])
def test_tensors_that_are_not_contiguous(tmp_path: Path, write: Callable[..., None], fused: bool) -> None:
    """Transposed matrices and views with gaps give the same file as contiguous ones."""
    safe = write_directory(tmp_path / "safe", "mixtral", fused)
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "config.json").write_text((safe / "config.json").read_text())
    stored: dict[str, Any] = {}
    for number, (name, array) in enumerate(arrays("mixtral", fused).items()):
        orders = list(itertools.permutations(range(array.ndim)))
        stored[name] = permuted(array, orders[number % len(orders)], step=1 + number % 3)
    write(torch / "pytorch_model.bin", stored)
    assert sum(tensor.strides is not None for tensor in read_file(torch / "pytorch_model.bin").values()) > 15
    for source in (safe, torch):
        convert(open_source(source), tmp_path / f"{source.name}.gguf", Options("f32", name="same"))
    assert (tmp_path / "safe.gguf").read_bytes() == (tmp_path / "torch.gguf").read_bytes()


def test_values_that_are_there_once_for_all_rows(tmp_path: Path) -> None:
    row = np.arange(3, dtype=np.float32)
    save_old(tmp_path / "a.bin", {"w": Tensor(Storage(row), (4, 3), stride=(0, 1)), "v": Tensor(Storage(row), (3, 4),
             stride=(1, 0)), "n": Tensor(Storage(row[:1]), (2, 2), stride=(0, 0))})  # fmt: skip
    found = read_file(tmp_path / "a.bin")
    reader = FileReader()
    for name, expected in (("w", np.tile(row, (4, 1))), ("v", np.tile(row, (4, 1)).T), ("n", np.zeros((2, 2)))):
        (rows, k), tensor = found[name].shape, found[name]
        info = TensorInfo(name, "F32", (rows, k), tensor.file, tensor.offset, tensor.nbytes, strides=tensor.strides)
        values = read_rows(info, 0, rows, fetched_by(reader), k).view(np.float32)
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(read_rows(info, 1, 1, fetched_by(reader), k).view(np.float32), expected[1:2])


def test_files_of_before_pytorch_1_6(tmp_path: Path) -> None:
    first, half = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(5,)).astype(np.float16)
    path = tmp_path / "a.bin"
    save_old(path, collections.OrderedDict(first=first, half=half))
    np.testing.assert_array_equal(values(path, "first"), first)
    np.testing.assert_array_equal(values(path, "half"), half)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(FileError, match="truncated"):
        read_file(path)
    path.write_bytes(whole.replace((12).to_bytes(8, "little"), (1 << 60).to_bytes(8, "little")))
    with pytest.raises(FormatError, match=f"has {1 << 60} values, 12 are expected"):
        read_file(path)
    save_old(path, {"w": first}, little_endian=False)
    with pytest.raises(UnsupportedError, match="big-endian"):
        read_file(path)
    save_old(path, {"w": first}, keys=["0", "0"])
    with pytest.raises(FormatError, match="list of storages"):
        read_file(path)
    save_old(path, {"w": Tensor(Storage(first), (13,))})
    with pytest.raises(FormatError, match="past the end"):
        read_file(path)


class Hostile:
    """A pickle of this calls a function of its choice."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, getattr, open, __import__, os.putenv, pickle.loads])
def test_globals_are_refused_by_name_and_not_called(tmp_path: Path, function: Any) -> None:
    mark = tmp_path / "mark"
    write_zip(tmp_path / "a.bin", pickle.dumps({"w": Hostile(function, f"touch {mark}")}, 2), [])
    with pytest.raises(UnsupportedError, match=r"asks for \w+\.\w+"):
        read_file(tmp_path / "a.bin")
    assert not mark.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_globals_of_a_plain_pickle_are_named_too(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "a.bin").write_bytes(pickle.dumps(Hostile(os.system, f"touch {mark}"), protocol))
    with pytest.raises(UnsupportedError, match=r"asks for \w+\.system"):
        read_file(tmp_path / "a.bin")
    assert not mark.exists()
    (tmp_path / "a.bin").write_bytes(pickle.dumps({"a": [1]}, protocol))
    with pytest.raises(FormatError, match=r"nothing that torch\.save wrote"):
        read_file(tmp_path / "a.bin")


def test_a_stack_global_built_from_strings_is_refused(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.bin", b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R.", [])
    with pytest.raises(UnsupportedError, match=r"os\.system"):
        read_file(tmp_path / "a.bin")


@pytest.mark.parametrize("data", [
    b"", b"\x80\x02", b".", b"\x80\x02}", b"\x80\x02K\x01.", b"\x80\x02]q\x00.", b"\xff" * 40,
    b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", b"\x80\x02U\x01aQ.", b"\x80\x02" + b"(" * 100_000 + b".",
    b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
])  # fmt: skip
def test_damaged_pickles_are_typed_errors(tmp_path: Path, data: bytes) -> None:
    write_zip(tmp_path / "a.bin", data, [])
    with pytest.raises(FormatError, match=r"a\.bin"):
        read_file(tmp_path / "a.bin")


@pytest.mark.parametrize("opcode", [b"]", b"}", b"(", b")\x85", b"N0", b"]\x94"])
def test_a_program_of_millions_of_steps_is_stopped(tmp_path: Path, opcode: bytes) -> None:
    write_zip(tmp_path / "a.bin", b"\x80\x02" + opcode * ((7 << 20) // len(opcode)) + b".", [])
    started = time.process_time()
    with pytest.raises(FormatError, match="reads"):
        read_file(tmp_path / "a.bin")
    assert time.process_time() - started < 4  # one is usual


def test_a_storage_that_lies_is_refused(tmp_path: Path) -> None:
    storage = Storage(np.zeros(4, np.float32))
    save(tmp_path / "past.bin", {"w": Tensor(storage, (5,))})
    with pytest.raises(FormatError, match="past the end"):
        read_file(tmp_path / "past.bin")
    wide = Storage(np.zeros(100, np.float32))
    save(tmp_path / "strided.bin", {"w": Tensor(wide, (2, 2), stride=(20, 40))})
    with pytest.raises(UnsupportedError, match="strides"):
        read_file(tmp_path / "strided.bin")
    save(tmp_path / "past.bin", {"w": Tensor(storage, (2, 2), stride=(1, 3))})
    with pytest.raises(FormatError, match="past the end"):
        read_file(tmp_path / "past.bin")
    save(tmp_path / "huge.bin", {"w": Tensor(storage, (1 << 40, 1 << 40))})
    with pytest.raises(FormatError):
        read_file(tmp_path / "huge.bin")
    save(tmp_path / "packed.bin", {"w": np.zeros(4000, np.float32)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError):
        read_file(tmp_path / "packed.bin")


def test_names_that_appear_twice(tmp_path: Path) -> None:
    twice = b"\x80\x02}(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00aK\x02u."
    assert pickle.loads(twice) == {"a": 2}
    write_zip(tmp_path / "a.bin", twice, [])
    with pytest.raises(FormatError, match="key 'a' twice"):
        read_file(tmp_path / "a.bin")
    save(tmp_path / "b.bin", {"w": np.zeros(2, np.float32)})
    with zipfile.ZipFile(tmp_path / "b.bin", "a") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("archive/data/0", bytes(8))
    with pytest.raises(FormatError, match="two entries have the same name"):
        read_file(tmp_path / "b.bin")


def test_a_directory_of_a_million_entries(tmp_path: Path) -> None:
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 0x21, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0)
    entries = b"".join(entry + b"%06x" % number for number in range(1_000_000))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(entries), 0, 0)
    (tmp_path / "a.bin").write_bytes(entries + end)
    started = time.process_time()
    with pytest.raises(FormatError, match="a directory of 52000000 bytes"):
        read_file(tmp_path / "a.bin")
    assert time.process_time() - started < 1


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        read_file(tmp_path / "missing.bin")
    (tmp_path / "tar.bin").write_bytes(b"pickle\0" * 80)
    with pytest.raises(FormatError, match=r"nothing that torch\.save wrote"):
        read_file(tmp_path / "tar.bin")
    with zipfile.ZipFile(tmp_path / "empty.bin", "w"):
        pass
    with pytest.raises(FormatError, match=r"data\.pkl"):
        read_file(tmp_path / "empty.bin")


@pytest.mark.parametrize("write", [save, save_old])
def test_mutations_give_typed_errors_only(tmp_path: Path, write: Callable[..., None]) -> None:
    write(tmp_path / "a.bin", {"w": RNG.normal(size=(3, 4)).astype(np.float32), "n": {"v": np.zeros(3, np.float16)}})
    whole = (tmp_path / "a.bin").read_bytes()
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(int(RNG.integers(1, 5))):
            data[int(RNG.integers(len(data)))] = int(RNG.integers(256))
        (tmp_path / "b.bin").write_bytes(data[: int(RNG.integers(1, len(data) + 1))] if RNG.random() < 0.2 else data)
        try:
            for info in read_file(tmp_path / "b.bin").values():
                assert info.offset + info.nbytes <= len(data)
        except ColibriError:
            pass
