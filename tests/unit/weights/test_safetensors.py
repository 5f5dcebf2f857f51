"""safetensors headers: what the format asks for is checked, and what is wrong is named."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import write_safetensors

from colibri.errors import ColibriError, FileError, FormatError, UnsupportedError
from colibri.weights.safetensors import INDEX_NAME, read_directory, read_file, supported


def raw(header: Any, data: int = 0, length: int | None = None) -> bytes:
    """A file with this header (bytes as they are, otherwise as JSON) and `data` zeros."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def entry(shape: list[Any], first: Any, last: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


WRONG: list[tuple[str, bytes, type[ColibriError], str]] = [
    ("empty", b"", FormatError, "is empty"),
    ("short", b"1234", FileError, "truncated"),
    ("length 2^63", raw({}, length=1 << 63), FormatError, "header length"),
    ("length past the end", raw({}, length=1000), FileError, "truncated"),
    ("not JSON", raw(b"{"), FormatError, "not valid JSON"),
    ("not UTF-8", raw(b'{"\xff": 1}'), FormatError, "not valid JSON"),
    ("a list", raw([]), FormatError, "list"),
    ("deep", raw(b'{"a":' + b"[" * 100_000), FormatError, "not valid JSON"),
    ("long number", raw(b'{"a":' + b"1" * 10_000 + b"}"), FormatError, "not valid JSON"),
    ("name twice", raw(b'{"a": {}, "a": {}}'), FormatError, "'a' appears twice"),
    ("field twice", raw(b'{"a": {"dtype": "F32", "dtype": "F32"}}'), FormatError, "'dtype' appears twice"),
    ("metadata", raw({"__metadata__": 3}), FormatError, "__metadata__"),
    ("entry", raw({"a": 3}), FormatError, "tensor a"),
    ("field missing", raw({"a": {"dtype": "F32", "shape": []}}), FormatError, "tensor a"),
    ("dtype", raw({"a": entry([1], 0, 4, "F31")}, 4), UnsupportedError, "tensor a has the unknown dtype 'F31'"),
    ("dtype number", raw({"a": entry([1], 0, 4, 4)}, 4), UnsupportedError, "tensor a"),
    ("shape text", raw({"a": entry(["1"], 0, 4)}, 4), FormatError, "tensor a: shape"),
    ("shape bool", raw({"a": entry([True], 0, 4)}, 4), FormatError, "tensor a: shape"),
    ("shape float", raw({"a": entry([1.0], 0, 4)}, 4), FormatError, "tensor a: shape"),
    ("shape negative", raw({"a": entry([-1], 0, 4)}, 4), FormatError, "tensor a: shape"),
    ("shape huge", raw({"a": entry([1 << 70], 0, 4)}, 4), FormatError, "tensor a: shape"),
    ("shape wraps", raw({"a": entry([1 << 33, 1 << 33], 0, 0)}), FormatError, "tensor a: 0 bytes"),
    ("shape long", raw({"a": entry([1] * 20, 0, 4)}, 4), FormatError, "tensor a: shape"),
    ("offsets", raw({"a": entry([1], 4, 0)}, 4), FormatError, "tensor a: data_offsets"),
    ("offset text", raw({"a": entry([1], "0", 4)}, 4), FormatError, "tensor a: data_offsets"),
    ("past the end", raw({"a": entry([4], 0, 16)}, 15), FileError, "tensor a ends"),
    ("offset huge", raw({"a": entry([1], 1 << 61, (1 << 61) + 4)}, 4), FileError, "tensor a ends"),
    ("size", raw({"a": entry([2], 0, 4)}, 4), FormatError, "4 bytes of data, 8 expected"),
    ("overlap", raw({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, 8), FormatError, "a and b overlap"),
    ("hole", raw({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, 12), FormatError, "a and b leave a hole"),
    ("tail", raw({"a": entry([1], 0, 4)}, 8), FormatError, "4 bytes after"),
]


@pytest.mark.parametrize(("data", "kind", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_hostile_files_are_refused(tmp_path: Path, data: bytes, kind: type[ColibriError], message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    started = time.process_time()
    with pytest.raises(kind, match=message) as caught:
        read_file(path)
    assert time.process_time() - started < 1
    assert str(path) in str(caught.value)


def test_offsets_are_absolute(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(
        path, {"a": ("F16", (2, 2), b"abcdefgh"), "empty": ("F32", (0, 3), b""), "s": ("BF16", (), b"xy")}
    )
    tensors = read_file(path)
    data = path.read_bytes()
    found = {name: data[t.offset : t.offset + t.nbytes] for name, t in tensors.items()}
    assert found == {"a": b"abcdefgh", "empty": b"", "s": b"xy"}
    assert (tensors["a"].shape, tensors["a"].type) == ((2, 2), "F16")


def test_other_dtypes_are_refused_when_used(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": ("F8_E4M3", (4,), bytes(4))})
    with pytest.raises(UnsupportedError, match="a is F8_E4M3"):
        supported(read_file(path)["a"])


def shard(directory: Path, name: str, *tensors: str) -> Path:
    write_safetensors(directory / name, {tensor: ("F32", (1,), name[:4].encode()) for tensor in tensors})
    return directory / name


def test_the_index_decides(tmp_path: Path) -> None:
    first, second = shard(tmp_path, "one.safetensors", "a", "b"), shard(tmp_path, "two.safetensors", "a", "c")
    weight_map = {"a": second.name, "b": first.name, "c": second.name}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    assert {name: tensor.file.name for name, tensor in read_directory(tmp_path).items()} == weight_map


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    first = shard(tmp_path, "one.safetensors", "a")
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": first.name, "b": "two.safetensors"}}))
    with pytest.raises(FileError, match=r"two\.safetensors is missing"):
        read_directory(tmp_path)


@pytest.mark.parametrize("name", ["../one.safetensors", "/etc/passwd", "", ".", 3, None, "a\0b"])
def test_the_index_names_files_beside_it_only(tmp_path: Path, name: Any) -> None:
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ColibriError, match=r"weight_map of a|is missing|is not a regular"):
        read_directory(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{"])
def test_a_wrong_index(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX_NAME).write_text(content)
    with pytest.raises(FormatError, match=INDEX_NAME):
        read_directory(tmp_path)


def test_a_tensor_that_its_shard_lacks(tmp_path: Path) -> None:
    shard(tmp_path, "one.safetensors", "a")
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"b": "one.safetensors"}}))
    with pytest.raises(FormatError, match="holds b"):
        read_directory(tmp_path)


def test_shards_without_an_index(tmp_path: Path) -> None:
    shard(tmp_path, "model-00001-of-00002.safetensors", "a")
    with pytest.raises(FileError, match=r"model-00002-of-00002\.safetensors is missing"):
        read_directory(tmp_path)
    shard(tmp_path, "model-00002-of-00002.safetensors", "b")
    assert set(read_directory(tmp_path)) == {"a", "b"}
    shard(tmp_path, "model-00002-of-00002.safetensors", "a", "b")
    with pytest.raises(FormatError, match="tensor a is also in model-00001-of-00002"):
        read_directory(tmp_path)


def test_a_directory_without_safetensors(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no model"):
        read_directory(tmp_path)
