"""GGUF files are read as the reference reader reads them, and hostile ones are refused by name."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest
from checkpoint_files import gguf, key, model_metadata, string, tensor, write_model

from colibri.errors import ColibriError, FileError, FormatError, UnsupportedError
from colibri.ops import BLOCK_TYPES
from colibri.weights.block_types import BY_NAME
from colibri.weights.gguf import StringArray, read_gguf

UINT32, INT32, STRING, ARRAY, UINT8 = 4, 5, 8, 9, 0
HUGE = (1 << 63) - 1


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    return u32(kind) + u64(count) + data


def nested(depth: int) -> bytes:
    return array(INT32, 0) if depth == 0 else array(ARRAY, 1, nested(depth - 1))


F32_TENSOR = tensor("a", [8], 0, 0)


def test_block_types_agree_with_the_reference_and_with_the_engine() -> None:
    for kind, (values, nbytes) in reference.GGML_QUANT_SIZES.items():
        assert BY_NAME[kind.name] == (kind.name, kind.value, values, nbytes)
    for name, block in BLOCK_TYPES.items():
        assert BY_NAME[name] == (name, block.code, block.values, block.bytes)


def test_reads_what_the_reference_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = reference.GGUFWriter(path, "olmoe")
    writer.add_uint32("a.uint32", 7)
    writer.add_int32("a.int32", -7)
    writer.add_uint64("a.uint64", 1 << 40)
    writer.add_float32("a.float32", 0.5)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "añb")
    writer.add_array("a.strings", ["x", "", "long" * 50])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 1.5])
    values = np.arange(6 * 32, dtype=np.float32).reshape(2, 3, 32)
    writer.add_tensor("t", values)
    writer.add_tensor("q", np.zeros((4, 34 * 2), np.uint8), raw_dtype=reference.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = read_gguf(path)
    metadata = file.metadata
    scalars = [metadata[f"a.{name}"] for name in ("uint32", "int32", "uint64", "float32", "float64", "bool", "string")]
    assert scalars == [7, -7, 1 << 40, 0.5, 0.1, True, "añb"]
    assert list(metadata.strings("a.strings")) == ["x", "", "long" * 50]
    assert metadata["a.ints"].tolist() == [1, -2, 3]
    assert metadata["a.floats"].tolist() == [0.5, 1.5]
    assert file.kinds["a.int32"] == "int32"
    assert file.kinds["a.strings"] == "array[string]"
    assert (file.tensors["q"].type, file.tensors["q"].shape, file.tensors["q"].nbytes) == ("Q8_0", (4, 64), 272)
    info = file.tensors["t"]
    assert info.shape == (2, 3, 32)
    data = path.read_bytes()[info.offset : info.offset + info.nbytes]
    assert np.array_equal(np.frombuffer(data, np.float32).reshape(2, 3, 32), values)


def test_offsets_agree_with_the_reference_reader(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf", alignment=4096)
    ours = read_gguf(tmp_path / "a.gguf").tensors
    theirs = reference.GGUFReader(tmp_path / "a.gguf").tensors
    found = [(info.name, tuple(info.shape[::-1]), info.offset, info.nbytes) for info in ours.values()]
    assert found == [(t.name, tuple(t.shape.tolist()), t.data_offset, t.n_bytes) for t in theirs]


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([key("k", UINT32, u32(3))], [F32_TENSOR], 32, version=2))
    assert read_gguf(path).metadata["k"] == 3


def test_tokens_may_be_any_bytes(tmp_path: Path) -> None:
    raw = [b"plain", b"\xff\xfe", "é".encode(), b""]
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([key("t", ARRAY, array(STRING, 4, b"".join(map(string, raw))))], [F32_TENSOR], 32))
    tokens = read_gguf(path).metadata["t"]
    assert isinstance(tokens, StringArray)
    assert [tokens.raw(index) for index in range(4)] == raw
    assert [token.encode("utf-8", "surrogateescape") for token in tokens] == raw
    assert tokens[-2] == "é"
    assert tokens[1:3] == [tokens[1], "é"]
    with pytest.raises(IndexError):
        tokens[4]


def test_nested_arrays_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    rows = array(INT32, 2, struct.pack("<2i", 1, 2)) + array(STRING, 1, string("x"))
    path.write_bytes(gguf([key("t", ARRAY, array(ARRAY, 2, rows))], [F32_TENSOR], 32))
    first, second = read_gguf(path).metadata["t"]
    assert first.tolist() == [1, 2]
    assert list(second) == ["x"]


WRONG: list[tuple[str, bytes, type[ColibriError], str]] = [
    ("empty", b"", FormatError, "is empty"),
    ("other magic", gguf(magic=b"GGML"), FormatError, "GGML"),
    ("header cut", gguf()[:12], FileError, "truncated"),
    ("big endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedError, "big-endian"),
    ("version 1", gguf(version=1), UnsupportedError, "version 1"),
    ("version 4", gguf(version=4), UnsupportedError, "version 4"),
    ("tensor count", gguf(n_tensors=HUGE), FormatError, "tensor count"),
    ("tensor count a little above", gguf(n_tensors=2), FormatError, "tensor count"),
    ("key count", gguf(n_keys=HUGE), FormatError, "metadata count"),
    ("key count wraps", gguf(n_keys=(1 << 64) - 1), FormatError, "metadata count"),
    ("key length", gguf([u64(HUGE)], n_keys=1, data=64), FormatError, "metadata key 0"),
    ("key not utf-8", gguf([key(b"\xff\xfe", UINT32, u32(1))]), FormatError, "UTF-8"),
    ("key empty", gguf([key("", UINT32, u32(1))]), FormatError, "empty"),
    ("key twice", gguf([key("k", UINT32, u32(1))] * 2), FormatError, "k appears twice"),
    ("value type", gguf([key("k", 13, u32(1))]), FormatError, "k has the unknown value type 13"),
    ("string length", gguf([key("k", STRING, u64(HUGE))]), FormatError, "length of k"),
    ("string length wraps", gguf([key("k", STRING, u64((1 << 64) - 8))]), FormatError, "length of k"),
    ("array length", gguf([key("k", ARRAY, array(UINT32, HUGE))]), FormatError, "length of k"),
    ("array length wraps", gguf([key("k", ARRAY, array(UINT32, (1 << 62) + 1))]), FormatError, "length of k"),
    ("string array length", gguf([key("k", ARRAY, array(STRING, HUGE))]), FormatError, "length of k"),
    ("string in array", gguf([key("k", ARRAY, array(STRING, 1, u64(HUGE)))], data=64), FileError, "k takes"),
    ("array type", gguf([key("k", ARRAY, array(99, 1))]), FormatError, "unknown type 99"),
    ("deep arrays", gguf([key("k", ARRAY, nested(500))]), FormatError, "more than 4 deep"),
    ("bool of 2", gguf([key("k", 7, b"\x02")], data=32), FormatError, "k is a bool"),
    ("array with a bool of 2", gguf([key("k", ARRAY, array(7, 2, b"\x01\x02"))]), FormatError, "k holds a bool"),
    ("alignment 0", gguf([key("general.alignment", UINT32, u32(0))]), FormatError, "general.alignment is 0"),
    ("alignment 3", gguf([key("general.alignment", UINT32, u32(3))]), FormatError, "general.alignment is 3"),
    ("alignment text", gguf([key("general.alignment", STRING, string("32"))]), FormatError, "general.alignment is of"),
    ("alignment int32", gguf([key("general.alignment", INT32, u32(32))]), FormatError, "general.alignment is of"),
    ("no dimensions", gguf(tensors=[tensor("a", [], 0, 0)], data=64), FormatError, "a has 0 dimensions"),
    ("5 dimensions", gguf(tensors=[tensor("a", [1] * 5, 0, 0)], data=64), FormatError, "a has 5 dimensions"),
    ("a million dimensions", gguf(tensors=[tensor("a", [8], 0, 0, 10**6)], data=64), FormatError, "1000000 dim"),
    ("most dimensions", gguf(tensors=[tensor("a", [8], 0, 0, 0xFFFFFFFF)], data=64), FormatError, "4294967295 dim"),
    ("dimension 0", gguf(tensors=[tensor("a", [8, 0], 0, 0)], data=64), FormatError, "a has the impossible"),
    ("dimension 2^42+1", gguf(tensors=[tensor("a", [(1 << 42) + 1], 0, 0)], data=64), FileError, "tensor a takes"),
    ("product wraps", gguf(tensors=[tensor("a", [1 << 32, 1 << 32], 0, 0)], data=64), FormatError, "a has the imp"),
    ("product wraps to 8", gguf(tensors=[tensor("a", [8, (1 << 61) + 1], 0, 0)], data=64), FormatError, "a has the"),
    ("past the end", gguf(tensors=[tensor("a", [8], 0, 32)], data=32), FileError, "tensor a takes"),
    ("offset wraps", gguf(tensors=[tensor("a", [8], 0, (1 << 64) - 32)], data=64), FileError, "tensor a takes"),
    ("offset misaligned", gguf(tensors=[tensor("a", [8], 0, 4)], data=64), FormatError, "tensor a has offset 4"),
    (
        "block type",
        gguf(tensors=[tensor("a", [256], 77, 0)], data=999),
        UnsupportedError,
        "a has the unknown block type 77",
    ),
    ("part of a block", gguf(tensors=[tensor("a", [40], 8, 0)], data=999), FormatError, "a has rows of 40"),
    ("tensor twice", gguf(tensors=[F32_TENSOR, F32_TENSOR], data=64), FormatError, "a appears twice"),
    (
        "overlap",
        gguf(tensors=[tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)], data=96),
        FormatError,
        "a and b overlap",
    ),
    ("tensor name", gguf(tensors=[u64(HUGE) + bytes(40)]), FormatError, "name of tensor 0"),
]


@pytest.mark.parametrize(("data", "kind", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_hostile_files_are_refused(tmp_path: Path, data: bytes, kind: type[ColibriError], message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(kind, match=message) as caught:
        read_gguf(path)
    assert time.process_time() - started < 1
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert str(path) in str(caught.value)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    write_model(tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 4000, 7), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ColibriError):
            read_gguf(path)


def test_a_header_larger_than_the_first_read(tmp_path: Path) -> None:
    tokens = [f"token-{number}" * 5 for number in range(60_000)]
    write_model(tmp_path / "a.gguf", model_metadata() | {"tokenizer.ggml.tokens": tokens})
    assert list(read_gguf(tmp_path / "a.gguf").metadata["tokenizer.ggml.tokens"]) == tokens


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "none.gguf", tmp_path, tmp_path / "pipe.gguf"):
        with pytest.raises(FileError, match=str(path)):
            read_gguf(path)


# --- splits ---


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    files = write_model(tmp_path / "m.gguf", split_bytes=60_000)
    assert len(files) > 2
    return files


def test_any_file_of_a_split_opens_all(split: list[Path], tmp_path: Path) -> None:
    write_model(tmp_path / "whole.gguf")
    whole = read_gguf(tmp_path / "whole.gguf")
    for file in split:
        joined = read_gguf(file)
        assert joined.files == tuple(split)
        assert list(joined.tensors) == list(whole.tensors)
        assert joined.metadata["general.architecture"] == "olmoe"
    for name, info in read_gguf(split[1]).tensors.items():
        like = whole.tensors[name]
        ours = info.file.read_bytes()[info.offset : info.offset + info.nbytes]
        assert ours == like.file.read_bytes()[like.offset : like.offset + like.nbytes]


def test_a_missing_file_of_a_split_is_named(split: list[Path]) -> None:
    split[1].unlink()
    for file in (split[0], split[2]):
        with pytest.raises(FileError, match=split[1].name):
            read_gguf(file)


def test_a_renamed_file_of_a_split(split: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"split\.count"):
        read_gguf(split[0].rename(tmp_path / "other.gguf"))


def test_swapped_files_of_a_split(split: list[Path], tmp_path: Path) -> None:
    aside = split[1].rename(tmp_path / "aside")
    split[2].rename(split[1])
    aside.rename(split[2])
    with pytest.raises(FormatError, match=r"split\.no 2"):
        read_gguf(split[0])


@pytest.mark.parametrize(
    ("count", "number", "total", "message"),
    [
        (u32(2), u32(0), u32(3), "split.tensors.count is 3"),
        (u32(2), u32(1), u32(2), "split.no"),
        (u32(1 << 31), u32(0), u32(2), "split.count"),
    ],
)
def test_contradicting_split_keys(tmp_path: Path, count: bytes, number: bytes, total: bytes, message: str) -> None:
    def shard(no: bytes, name: str) -> bytes:
        keys: list[Any] = [
            key("split.count", UINT32, count),
            key("split.no", UINT32, no),
            key("split.tensors.count", UINT32, total),
        ]
        return gguf(keys, [tensor(name, [8], 0, 0)], 32)

    (tmp_path / "m-00001-of-00002.gguf").write_bytes(shard(number, "a"))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(shard(u32(1), "b"))
    with pytest.raises(FormatError, match=message):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")


def test_a_tensor_in_two_files_of_a_split(tmp_path: Path) -> None:
    for number in range(2):
        keys = [key("split.count", UINT32, u32(2)), key("split.no", UINT32, u32(number))]
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(gguf(keys, [F32_TENSOR], 32))
    with pytest.raises(FormatError, match=r"tensor a is also in .*00001"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")
