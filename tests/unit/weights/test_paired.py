"""Values and scales of two tensors are read as one of the GGUF types."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from colibri import ops
from colibri.errors import FormatError, UnsupportedError
from colibri.experts.reading import ExpertReader
from colibri.weights.encodings import MXFP4
from colibri.weights.file_reader import FileReader
from colibri.weights.load import read_tiles
from colibri.weights.metadata import Metadata
from colibri.weights.paired import with_sides
from colibri.weights.row_order import RowOrder
from colibri.weights.safetensors import read_file
from colibri.weights.tensor_info import TensorInfo

CONFIG = Metadata(Path("config.json"), {"quantization_config": {"weight_block_size": [128, 128]}})
EXPERTS, ROWS, GROUPS = 3, 32, 2
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def write(path: Path, tensors: dict[str, np.ndarray], **types: str) -> None:
    """A safetensors file of bytes, or of what `types` calls them."""
    header, data = {}, b""
    for name, array in tensors.items():
        kind = types.get(name, {"float32": "F32", "float16": "F16"}.get(array.dtype.name, "U8"))
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def stored(tmp_path: Path) -> tuple[TensorInfo, np.ndarray]:
    """A tensor of experts, and its values (experts, rows, k) by the definition of the format."""
    rng = np.random.default_rng(4)
    blocks = rng.integers(0, 256, (EXPERTS, ROWS, GROUPS, 16), dtype=np.uint8)
    scales = rng.integers(110, 140, (EXPERTS, ROWS, GROUPS), dtype=np.uint8)
    write(tmp_path / "model.safetensors", {"w_blocks": blocks, "w_scales": scales})
    tensor = with_sides(read_file(tmp_path / "model.safetensors"), CONFIG)["w"]
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(EXPERTS, ROWS, GROUPS, 32)
    numbers = VALUES[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return tensor, numbers.reshape(EXPERTS, ROWS, GROUPS * 32)


def test_rows_are_blocks_of_gguf(stored: tuple[TensorInfo, np.ndarray]) -> None:
    tensor, numbers = stored
    rng = np.random.default_rng(5)
    blocks, scales = (rng.integers(0, 255, (4, size), dtype=np.uint8) for size in (GROUPS * 16, GROUPS))
    rows = MXFP4.join(np.arange(4), blocks, scales)
    assert rows.shape == (4, GROUPS * 17)
    assert tensor.shape == numbers.shape
    assert tensor.nbytes == EXPERTS * ROWS * GROUPS * 17
    dequantized = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.MXFP4)
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(4, GROUPS, 32)
    expected = VALUES[codes].astype(np.float64) * np.exp2(scales.astype(np.float64) - 127)[..., None]
    np.testing.assert_array_equal(dequantized, expected.reshape(4, -1).astype(np.float32))


@pytest.mark.parametrize("half", [None, 0, 1])
def test_experts_land_in_tiles(stored: tuple[TensorInfo, np.ndarray], half: int | None) -> None:
    """Whole, and with rows of gate and up that alternate, as gpt-oss has them; by both readers."""
    tensor, numbers = stored
    if half is not None:
        rows = tensor.shape[1] // 2
        tensor = TensorInfo("w", tensor.type, (EXPERTS, rows, tensor.shape[2]), tensor.file, tensor.offset,
                            tensor.nbytes // 2, order=RowOrder(2, (half,)), encoding=tensor.encoding,
                            sides=tensor.sides)  # fmt: skip
        numbers = numbers[:, half::2]
    reader = ExpertReader(1 << 20)
    for expert in range(EXPERTS):
        info = tensor.expert(expert)
        by_pieces, whole = (ops.tensor("MXFP4", info.shape, tiled=True) for _ in range(2))
        for piece in reader.pieces(info):
            reader.load_piece(by_pieces, info, *piece)
        read_tiles(info, whole, FileReader())
        for found in (by_pieces, whole):
            np.testing.assert_array_equal(ops.dequantize(found), numbers[expert])


def test_what_does_not_fit_together(tmp_path: Path) -> None:
    blocks, scales = np.zeros((2, 32, 2, 16), np.uint8), np.zeros((2, 32, 2), np.uint8)
    for tensors, message in (
        ({"w_blocks": blocks, "w_scales": scales[:, :16]}, r"U8 \[2, 16, 2\] as its scales"),
        ({"w_blocks": blocks[..., :8], "w_scales": scales}, r"U8 \[2, 32, 2, 8\] with"),
    ):
        write(tmp_path / "model.safetensors", tensors)
        with pytest.raises(FormatError, match=message):
            with_sides(read_file(tmp_path / "model.safetensors"), CONFIG)


E4M3 = np.array([(-1) ** (b >> 7) * (1 + b % 8 / 8 if b >> 3 & 15 else b % 8 / 4) * 2.0 ** ((b >> 3 & 15 or 0) - 7)
                 for b in range(256)], np.float32)  # fmt: skip


def eight_bits(*shape: int) -> np.ndarray:
    """Any bytes that stand for numbers."""
    codes = np.random.default_rng(6).integers(0, 255, shape, dtype=np.uint8)
    return np.where(codes & 127 == 127, 0, codes).astype(np.uint8)


def loaded(info: TensorInfo) -> np.ndarray:
    """The numbers of a matrix, read by both readers."""
    by_pieces, whole = (ops.tensor(info.type, info.shape, tiled=True) for _ in range(2))
    reader = ExpertReader(1 << 20)
    for piece in reader.pieces(info):
        reader.load_piece(by_pieces, info, *piece)
    read_tiles(info, whole, FileReader())
    np.testing.assert_array_equal(ops.dequantize(by_pieces), ops.dequantize(whole))
    return ops.dequantize(whole)


@pytest.mark.parametrize("order", [None, RowOrder(300, tuple(range(299, -1, -3)))])
@pytest.mark.parametrize("scales", [(3, 2), (300, 1), (1,), (300,), ()])
def test_fp8(tmp_path: Path, scales: tuple[int, ...], order: RowOrder | None) -> None:
    """A scale for each block of 128 x 128, the last of 44 x 64, for each row or for all; rows in order and not."""
    rows, k = 300, 192
    codes = eight_bits(rows, k)
    numbers = np.random.default_rng(7).uniform(0.001, 0.1, scales).astype(np.float32)
    name = "w_scale_inv" if scales == (3, 2) else "w_scale"
    write(tmp_path / "model.safetensors", {"w": codes, name: numbers, "w.input_scale": numbers}, w="F8_E4M3")
    found = with_sides(read_file(tmp_path / "model.safetensors"), CONFIG)
    assert list(found) == ["w"]
    of_rows = numbers.reshape(-1, numbers.shape[-1] if len(scales) > 1 else 1)
    each = np.repeat(np.repeat(of_rows, 128 if scales == (3, 2) else -(-rows // len(of_rows)), 0), 128, 1)[:rows, :k]
    expected = E4M3[codes] * (each if each.shape[1] == k else each[:, :1])
    info = found["w"] if order is None else found["w"].of_rows(100, order)
    np.testing.assert_array_equal(loaded(info), expected if order is None else expected[order.rows,])


def test_fp8_of_experts(tmp_path: Path) -> None:
    """Merged, with gate above up; 192 rows of each expert are a block and a half."""
    codes = eight_bits(EXPERTS, 192, 128)
    scales = np.random.default_rng(7).uniform(0.001, 0.1, (EXPERTS, 2, 1)).astype(np.float32)
    write(tmp_path / "model.safetensors", {"w": codes, "w_scale_inv": scales}, w="F8_E4M3")
    whole = with_sides(read_file(tmp_path / "model.safetensors"), CONFIG)["w"]
    expected = E4M3[codes] * np.repeat(scales, 128, 1)[:, :192]
    for first, half in zip((0, 96), whole.halves("gate", "up"), strict=True):
        for expert in range(EXPERTS):
            np.testing.assert_array_equal(loaded(half.expert(expert)), expected[expert, first : first + 96])


def test_fp8_that_does_not_fit(tmp_path: Path) -> None:
    file, scales = tmp_path / "model.safetensors", np.ones((3, 2), np.float32)
    for codes, error, message in (
        (eight_bits(300, 96), UnsupportedError, "a scale for each 48 values"),
        (eight_bits(500, 256), FormatError, r"F32 \[3, 2\] as its scales; one for each 128 rows and 128 values"),
    ):
        write(file, {"w": codes, "w_scale_inv": scales}, w="F8_E4M3")
        with pytest.raises(error, match=message):
            with_sides(read_file(file), CONFIG)
    write(file, {"w": eight_bits(300, 256), "w_scale": scales}, w="F8_E5M2")
    with pytest.raises(UnsupportedError, match="F8_E5M2 with _scale beside it; read are"):
        with_sides(read_file(file), CONFIG)
    codes = eight_bits(300, 256)
    codes[17, 200] = 127
    write(file, {"w": codes, "w_scale_inv": scales}, w="F8_E4M3")
    info = with_sides(read_file(file), CONFIG)["w"]
    assert np.isnan(loaded(info)[17, 192:]).all() and np.isfinite(loaded(info)[16]).all()
