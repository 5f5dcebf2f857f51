"""Tensors reach memory whole, in the engine's row order, or not at all."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import HEAD_DIM, HIDDEN, load_matrix, model_metadata, model_tensors, values_of, write_model

from colibri import ops
from colibri.errors import FileError, UnsupportedError
from colibri.models.registry import open_checkpoint
from colibri.weights import load
from colibri.weights.file_reader import FileReader
from colibri.weights.load import load_plain
from colibri.weights.row_order import adjacent_pairs
from colibri.weights.tensor_info import TensorInfo


def numbers(name: str, kind: str = "F32") -> np.ndarray[Any, Any]:
    spec = next(spec for spec in model_tensors(kind=kind) if spec.name == name)
    return load.to_float32(values_of(spec), kind).reshape(spec.shape)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("piece", [1, 2 << 20])
def test_matrices_are_tiled(tmp_path: Path, kind: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STAGING_BYTES", piece)
    write_model(tmp_path / "m.gguf", specs=model_tensors(kind=kind))
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    reader = FileReader()
    tensor = load_matrix(checkpoint.tensors["token_embd.weight"], reader)
    assert (tensor.type, tensor.tiled) == (kind, True)
    assert np.array_equal(ops.dequantize(tensor), numbers("token_embd.weight", kind))
    expert = load_matrix(checkpoint.experts(1)[2].by_name["down"], reader)
    assert np.array_equal(ops.dequantize(expert), numbers("blk.1.ffn_down_exps.weight", kind)[2])


def test_vectors_are_plain(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    tensor = load_plain(checkpoint.tensors["output_norm.weight"], FileReader())
    assert (tensor.type, tensor.tiled) == ("F32", False)
    assert np.array_equal(tensor.numpy(), numbers("output_norm.weight"))
    router = load_plain(checkpoint.tensors["blk.0.ffn_gate_inp.weight"], FileReader())
    assert np.array_equal(router.numpy(), numbers("blk.0.ffn_gate_inp.weight"))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_half_precision_vectors_become_f32(tmp_path: Path, kind: str) -> None:
    specs = [replace(spec, type=kind) if spec.name == "output_norm.weight" else spec for spec in model_tensors()]
    write_model(tmp_path / "m.gguf", specs=specs)
    tensor = load_plain(open_checkpoint(tmp_path / "m.gguf").tensors["output_norm.weight"], FileReader())
    expected = next(load.to_float32(values_of(spec), kind) for spec in specs if spec.name == "output_norm.weight")
    assert np.array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("piece", [1, 2 << 20])
def test_rows_of_llama_files_are_put_back(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STAGING_BYTES", piece)
    write_model(tmp_path / "m.gguf", model_metadata("llama"))
    info = open_checkpoint(tmp_path / "m.gguf").tensors["blk.1.attn_k.weight"]
    stored = numbers("blk.1.attn_k.weight")  # row 2 i + h of a head is row h HEAD_DIM / 2 + i of the model
    expected = stored.reshape(-1, HEAD_DIM // 2, 2, HIDDEN).swapaxes(1, 2).reshape(HIDDEN, HIDDEN)
    assert np.array_equal(ops.dequantize(load_matrix(info, FileReader())), expected)
    heads = expected.reshape(-1, 2, HEAD_DIM // 2, HIDDEN)  # the permutation of llama.cpp's converter
    assert np.array_equal(heads.swapaxes(1, 2).reshape(HIDDEN, HIDDEN), stored)
    bias = TensorInfo("b", "F32", (HIDDEN,), info.file, info.offset, 4 * HIDDEN, adjacent_pairs(HEAD_DIM))
    found = load_plain(bias, FileReader()).numpy()
    assert np.array_equal(found, stored[0].reshape(-1, HEAD_DIM // 2, 2).swapaxes(1, 2).ravel())


def test_vectors_of_blocks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))
    with pytest.raises(UnsupportedError, match="Q8_0"):
        load_plain(TensorInfo("t", "Q8_0", (32,), tmp_path / "a", 0, 34), FileReader())


# --- the reader ---


def test_a_file_cut_while_in_use_is_an_error(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    reader = FileReader()
    load_matrix(checkpoint.tensors["token_embd.weight"], reader)
    os.truncate(tmp_path / "m.gguf", 4321)  # before the tensor begins
    with pytest.raises(FileError, match=r"m\.gguf: ends at byte 4321, .*truncated while in use"):
        load_matrix(checkpoint.tensors["output.weight"], reader)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 4)
    original = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: original(fd, [buffers[0][:7]], offset))
    buffer = np.empty((10, 50), np.uint8)
    FileReader().read_into(tmp_path / "a", 100, buffer)
    assert buffer.tobytes() == (bytes(range(256)) * 4)[100:600]


def test_a_failing_read_names_file_and_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    (tmp_path / "a").write_bytes(bytes(100))
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(FileError, match="a: reading 10 bytes at offset 20: Input/output error"):
        FileReader().read_into(tmp_path / "a", 20, bytearray(10))


def test_a_replaced_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    reader = FileReader()
    reader.read_into(path, 0, bytearray(100))
    (tmp_path / "b").write_bytes(bytes(100))
    os.replace(tmp_path / "b", path)
    with pytest.raises(FileError, match=r"a: .*changed or replaced while in use"):
        reader.read_into(path, 0, bytearray(100))
    FileReader().read_into(path, 0, bytearray(100))


def test_no_file_stays_open_and_threads_share_the_reader(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(12)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 1000)
    before = len(os.listdir("/proc/self/fd"))
    reader = FileReader()
    wrong: list[int] = []

    def work() -> None:
        for turn in range(200):
            number = turn * 7 % len(files)
            buffer = bytearray(500)
            reader.read_into(files[number], 250, buffer)
            if buffer != bytes([number]) * 500:
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(FileError, match="none"):
        reader.read_into(tmp_path / "none", 0, bytearray(1))
