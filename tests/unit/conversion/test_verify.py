"""Verification names the expert that is damaged, by its checksum or by numbers that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import directory_tensors, write_directory, write_model, write_safetensors

from colibri import ops
from colibri.conversion.convert import Options, convert
from colibri.conversion.mixes import MIXES
from colibri.conversion.verify import verify
from colibri.errors import ColibriError, FileError
from colibri.models.registry import open_checkpoint
from colibri.weights.finite import bad_blocks


def converted(tmp_path: Path, quantization: str = "q8_0", **options: int) -> Path:
    source = open_checkpoint(write_directory(tmp_path / "hf", "mixtral"))
    return convert(source, tmp_path / "m.gguf", Options(quantization, **options)).files[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("quantization", MIXES)
def test_a_converted_file_is_whole(tmp_path: Path, quantization: str) -> None:
    seen: list[int] = []
    result = verify(open_checkpoint(converted(tmp_path, quantization)), lambda done, total: seen.append(done))
    assert result.damages == ()
    assert result.checked == result.parts == 3 + 2 * (7 + 3 * 4)
    assert seen[-1] == result.nbytes


@pytest.mark.parametrize("split", [None, 60_000])
def test_a_flipped_bit_names_the_expert(tmp_path: Path, split: int | None) -> None:
    path = converted(tmp_path, split_bytes=split)  # type: ignore[arg-type]
    part = open_checkpoint(path).tensors["blk.1.ffn_up_exps.weight"].expert(2)
    with part.file.open("r+b") as file:
        file.seek(part.offset + 40)
        byte = file.read(1)[0]
        file.seek(part.offset + 40)
        file.write(bytes([byte ^ 4]))
    (damage,) = verify(open_checkpoint(path)).damages
    assert damage.part == "blk.1.ffn_up_exps.weight[2]"
    assert "checksum" in damage.problem


def damaged(path: Path, at: int) -> bool:
    """Whether a change of one byte is noticed; the byte is put back."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
        file.flush()
        try:
            return bool(verify(open_checkpoint(path)).damages)
        except ColibriError:
            return True
        finally:
            file.seek(at)
            file.write(bytes([byte]))


def test_every_byte_of_the_header_and_the_gaps_counts(tmp_path: Path) -> None:
    path = converted(tmp_path)
    start = min(info.offset for info in open_checkpoint(path).tensors.values())
    size = path.stat().st_size
    places = [*range(0, start, 29), start - 1, size - 1]
    assert verify(open_checkpoint(path)).header
    assert [at for at in places if not damaged(path, at)] == []
    data = path.read_bytes()
    for key in (b"colibri.header_checksum", b"colibri.checksum_algorithm", b"colibri.checksums", b"general.name"):
        assert damaged(path, data.index(key) + 3), key
    assert verify(open_checkpoint(path)).damages == ()


def test_every_part_of_a_split_has_a_checksum_of_its_header(tmp_path: Path) -> None:
    first = converted(tmp_path, split_bytes=60_000)  # type: ignore[arg-type]
    last = sorted(tmp_path.glob("m-*.gguf"))[-1]
    assert damaged(last, last.read_bytes().index(b"split.tensors.count") + 40)
    with last.open("ab") as file:
        file.write(b"more")
    (damage,) = verify(open_checkpoint(first)).damages
    assert (damage.file, damage.problem) == (str(last), "4 bytes behind the last tensor")


def test_a_file_without_checksums_is_checked_for_numbers(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    whole = verify(open_checkpoint(tmp_path / "m.gguf"))
    assert (whole.checked, whole.damages) == (0, ())
    info = open_checkpoint(tmp_path / "m.gguf").tensors["blk.0.attn_q.weight"]
    with info.file.open("r+b") as file:
        file.seek(info.offset + 4 * (64 * 3 + 7))
        file.write(np.float32(np.nan).tobytes())
    (damage,) = verify(open_checkpoint(tmp_path / "m.gguf")).damages
    assert damage.problem == "a NaN or an infinity at row 3, column 7"


def test_directories_are_read_too(tmp_path: Path) -> None:
    source = write_directory(tmp_path / "hf", "olmoe")
    assert verify(open_checkpoint(source)).damages == ()
    tensors = directory_tensors("olmoe")
    kind, shape, data = tensors["model.norm.weight"]
    bad = np.frombuffer(data, np.float32).copy()
    bad[5] = np.inf
    write_safetensors(source / "model.safetensors", tensors | {"model.norm.weight": (kind, shape, bad.tobytes())})
    assert [damage.part for damage in verify(open_checkpoint(source)).damages] == ["output_norm.weight"]


def test_a_truncated_file_is_a_typed_error(tmp_path: Path) -> None:
    path = converted(tmp_path)
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-70_000])
    with pytest.raises(FileError, match=r"m\.gguf"):
        verify(checkpoint)


@pytest.mark.parametrize(("type_name", "place", "value"), [
    ("Q8_0", 0, 0x7C00), ("Q4_0", 0, 0xFC00), ("Q4_K", 0, 0x7E00), ("Q4_K", 2, 0x7C01), ("Q5_K", 2, 0xFFFF),
    ("Q6_K", 208, 0x7C00), ("F16", 0, 0x7C00), ("BF16", 0, 0x7F80),
])  # fmt: skip
def test_scales_that_are_not_finite(type_name: str, place: int, value: int) -> None:
    rows = np.random.default_rng(1).normal(size=(2, 512)).astype(np.float32)
    data = ops.quantize(type_name, rows)
    assert bad_blocks(type_name, data).size == 0
    width = ops.BLOCK_TYPES[type_name].bytes
    data.reshape(-1, width)[1, place : place + 2] = np.array([value], "<u2").view(np.uint8)
    assert bad_blocks(type_name, data).tolist() == [1]


def test_mxfp4_scale_byte_of_all_ones() -> None:
    data = ops.quantize("MXFP4", np.ones((1, 64), np.float32))
    data.reshape(-1, 17)[1, 0] = 0xFF
    assert bad_blocks("MXFP4", data).tolist() == [1]
