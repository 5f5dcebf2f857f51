"""Values and scales of two tensors are read as one of the GGUF types."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from colibri import ops
from colibri.errors import FormatError
from colibri.experts.reading import ExpertReader
from colibri.weights.encodings import MXFP4
from colibri.weights.file_reader import FileReader
from colibri.weights.load import read_tiles
from colibri.weights.paired import ENCODINGS, with_scales
from colibri.weights.row_order import RowOrder
from colibri.weights.safetensors import read_file
from colibri.weights.tensor_info import TensorInfo

EXPERTS, ROWS, GROUPS = 3, 32, 2
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file of bytes."""
    header, data = {}, b""
    for name, array in tensors.items():
        header[name] = {"dtype": "U8", "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.size]}
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
    tensor = with_scales(read_file(tmp_path / "model.safetensors"), *ENCODINGS["mxfp4"])["w"]
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(EXPERTS, ROWS, GROUPS, 32)
    numbers = VALUES[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return tensor, numbers.reshape(EXPERTS, ROWS, GROUPS * 32)


def test_rows_are_blocks_of_gguf(stored: tuple[TensorInfo, np.ndarray]) -> None:
    tensor, numbers = stored
    rng = np.random.default_rng(5)
    blocks, scales = (rng.integers(0, 255, (4, size), dtype=np.uint8) for size in (GROUPS * 16, GROUPS))
    rows = MXFP4.join(blocks, scales)
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
                            scales=tensor.scales)  # fmt: skip
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
        ({"w_blocks": blocks}, "nothing as its scales"),
        ({"w_scales": scales}, "has no _blocks beside it"),
        ({"w_blocks": blocks, "w_scales": scales[:, :16]}, r"U8 \[2, 16, 2\] as its scales"),
        ({"w_blocks": blocks[..., :8], "w_scales": scales}, r"U8 \[2, 32, 2, 8\] with"),
    ):
        write(tmp_path / "model.safetensors", tensors)
        with pytest.raises(FormatError, match=message):
            with_scales(read_file(tmp_path / "model.safetensors"), *ENCODINGS["mxfp4"])
