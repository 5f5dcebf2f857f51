"""What we write, the reference reader reads; nothing half-written is ever left under a file's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest
from checkpoint_files import model_metadata, model_tensors, values_of, write_model

from colibri.conversion.gguf_writer import GGUFWriter
from colibri.errors import ArgumentError, FileError
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import VALUE_CODES, TensorSpec, Value

ALL_KINDS: dict[str, Any] = {
    "uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000, "uint32": 4_000_000_000, "int32": -2_000_000_000,
    "float32": 0.25, "bool": True, "string": "ünï", "uint64": 1 << 63, "int64": -(1 << 62), "float64": 0.1,
}  # fmt: skip


def test_every_value_type_comes_back_with_its_type(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {f"one.{kind}": Value(kind, value) for kind, value in ALL_KINDS.items()}
    metadata |= {f"many.{kind}": Value(kind, [value, value]) for kind, value in ALL_KINDS.items()}
    metadata |= {f"none.{kind}": Value(kind, []) for kind in ALL_KINDS}
    path = tmp_path / "a.gguf"
    with GGUFWriter(path, metadata, []):
        pass
    file = read_gguf(path)
    theirs = reference.GGUFReader(path).fields
    for kind, value in ALL_KINDS.items():
        assert file.metadata[f"one.{kind}"] == value
        assert list(file.metadata[f"many.{kind}"]) == [value, value]
        assert len(file.metadata[f"none.{kind}"]) == 0
        assert (file.kinds[f"one.{kind}"], file.kinds[f"many.{kind}"]) == (kind, f"array[{kind}]")
        assert theirs[f"one.{kind}"].contents() == value
        assert theirs[f"many.{kind}"].contents() == [value, value]
    assert set(ALL_KINDS) | {"array"} == set(VALUE_CODES)


def test_types_of_plain_python_values(tmp_path: Path) -> None:
    values = {"a": 1, "b": -1, "c": 1 << 40, "d": 0.5, "e": "x", "f": False, "g": [1, 2], "h": ["x"], "i": [0.5]}
    path = tmp_path / "a.gguf"
    with GGUFWriter(path, values | {"j": np.ones(3, np.uint16)}, []):
        pass
    kinds = read_gguf(path).kinds
    expected = "uint32 int32 uint64 float32 string bool array[int32] array[string] array[float32] array[uint16]"
    assert " ".join(list(kinds.values())[: len(values) + 1]) == expected


def test_what_was_read_can_be_written_again(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf", model_metadata() | {"bytes": Value("string", [b"\xff", "x"])})
    first = read_gguf(tmp_path / "a.gguf")
    again = {
        key: Value(first.kinds[key].removeprefix("array[").removesuffix("]"), value)
        for key, value in first.metadata.items()
    }
    write_model(tmp_path / "b.gguf", again)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_the_reference_reads_tensors(tmp_path: Path) -> None:
    specs = model_tensors()
    write_model(tmp_path / "a.gguf", specs=specs, alignment=4096)
    theirs = {tensor.name: tensor for tensor in reference.GGUFReader(tmp_path / "a.gguf").tensors}
    assert list(theirs) == [spec.name for spec in specs]
    for spec in specs:
        assert theirs[spec.name].data.tobytes() == values_of(spec).tobytes()
        assert theirs[spec.name].data_offset % 4096 == 0


def test_split_files_stay_below_the_size(tmp_path: Path) -> None:
    files = write_model(tmp_path / "m.gguf", split_bytes=60_000)
    assert [file.name for file in files] == [f"m-{n:05d}-of-{len(files):05d}.gguf" for n in range(1, len(files) + 1)]
    assert sorted(tmp_path.iterdir()) == files
    assert all(file.stat().st_size < 70_000 for file in files)


def test_nbytes_is_the_size(tmp_path: Path) -> None:
    spec = TensorSpec("a", "Q8_0", (3, 64))
    with GGUFWriter(tmp_path / "a.gguf", {"k": 1}, [spec], alignment=64) as writer:
        writer.write("a", [values_of(spec)[:10], values_of(spec)[10:]])
    assert (tmp_path / "a.gguf").stat().st_size == writer.nbytes


@pytest.mark.parametrize("fault", ["short", "long", "missing", "order", "exception"])
def test_nothing_is_left_after_a_fault(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"before")
    specs = [TensorSpec("a", "F32", (8,)), TensorSpec("b", "F32", (8,))]
    data = np.zeros(8, np.float32)

    def write() -> None:
        with GGUFWriter(path, {}, specs) as writer:
            if fault == "order":
                writer.write("b", [data])
            writer.write("a", [data[:4]] if fault == "short" else [data, data] if fault == "long" else [data])
            if fault == "exception":
                raise ArgumentError("on purpose")

    with pytest.raises(ArgumentError):
        write()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("metadata", "specs", "alignment"),
    [
        ({}, [TensorSpec("a", "F32", (8,))] * 2, 32),
        ({}, [TensorSpec("a", "F32", (1, 1, 1, 1, 1))], 32),
        ({}, [TensorSpec("a", "F32", (0, 8))], 32),
        ({}, [], 33),
        ({}, [], 0),
        ({"k": None}, [], 32),
        ({"k": []}, [], 32),
        ({"k": Value("uint8", 256)}, [], 32),
        ({"k": Value("uint8", [256])}, [], 32),
        ({"k": Value("uint8", "text")}, [], 32),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(
    tmp_path: Path, metadata: dict[str, Any], specs: list[TensorSpec], alignment: int
) -> None:
    with pytest.raises(ArgumentError):
        GGUFWriter(tmp_path / "a.gguf", metadata, specs, alignment=alignment)
    assert not list(tmp_path.iterdir())


def test_an_impossible_place_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="none"):
        write_model(tmp_path / "none" / "a.gguf")
