"""Tiles: plain rows come back exactly as the gguf package reads them, from whole tensors and from parts."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import reference
from kernel_weights import FORMATS, OF_GGUF, extreme_weight, instruction_sets, plain, random_weight, tiled

from colibri import ops

# Tiles that take more bytes than the file: see the formats' headers.
WIDER = {
    "Q3_K": 1.02, "TQ2_0": 1.04, "TQ1_0": 1.27, "IQ1_S": 1.45, "IQ1_M": 1.43, "IQ2_XXS": 1.58, "IQ2_XS": 1.46,
    "IQ2_S": 1.32, "IQ3_XXS": 1.39, "IQ3_S": 1.24,
}  # fmt: skip


def shape_for(name: str, rows: int) -> tuple[int, int]:
    values = ops.BLOCK_TYPES[name].values
    return rows, 37 if values == 1 else 3 * values


@pytest.mark.parametrize("name", OF_GGUF)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_dequantised_tiles_equal_gguf(name: str, rows: int) -> None:
    weight = random_weight(name, *shape_for(name, rows))
    rows_of_bytes = np.frombuffer(weight.data, np.uint8).reshape(rows, -1)
    expected = gguf.quants.dequantize(rows_of_bytes, gguf.GGMLQuantizationType[name])
    for _ in instruction_sets():
        found = ops.dequantize(tiled(weight))
        assert found.tobytes() == np.asarray(expected, np.float32).tobytes()
    assert reference.dequantize(*weight).tobytes() == found.tobytes()


@pytest.mark.parametrize("name", [name for name in OF_GGUF if ops.BLOCK_TYPES[name].values > 1])
@pytest.mark.parametrize("seed", range(4))
def test_extreme_blocks_equal_gguf(name: str, seed: int) -> None:
    weight = extreme_weight(name, 32, 12 * ops.BLOCK_TYPES[name].values, seed)
    rows_of_bytes = np.frombuffer(weight.data, np.uint8).reshape(32, -1)
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(rows_of_bytes, gguf.GGMLQuantizationType[name])
    for _ in instruction_sets():
        np.testing.assert_array_equal(ops.dequantize(tiled(weight)), expected)


@pytest.mark.parametrize("scale", [1, 2.0**-149, 2.0**-120, 0.3, -7e35])
def test_every_byte_of_e4m3(scale: float) -> None:
    """1.mantissa * 2^(exponent - 7), or 0.mantissa * 2^-6; and a NaN makes all of a block NaN."""
    sign, exponent, mantissa = np.arange(256) >> 7, np.arange(256) >> 3 & 15, np.arange(256) & 7
    values = np.where(exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa / 8 * 2.0**-6)
    expected = (np.where(sign, -values, values).astype(np.float32) * np.float32(scale)).reshape(4, 64)
    blocks = np.zeros((4, 68), np.uint8)
    blocks[:, :64] = np.arange(256).reshape(4, 64)
    blocks[:, 64:] = np.full((4, 1), scale, np.float32).view(np.uint8)
    expected[[1, 3]] = np.nan
    for _ in instruction_sets():
        found = ops.dequantize(tiled(reference.Weight("F8_E4M3", blocks.tobytes(), (4, 64))))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_can_be_tiled_in_parts(name: str) -> None:
    weight = random_weight(name, *shape_for(name, 53))
    whole, parts = tiled(weight), ops.tensor(name, weight.shape, tiled=True)
    row = len(weight.data) // 53
    ops.tile(parts, weight.data[32 * row :], first_row=32)
    ops.tile(parts, weight.data[: 32 * row], first_row=0, rows=32)
    assert ops.dequantize(parts).tobytes() == ops.dequantize(whole).tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_tiles_are_about_as_large_as_plain_rows(name: str) -> None:
    plain_bytes = 64 * 4096 // ops.BLOCK_TYPES[name].values * ops.BLOCK_TYPES[name].bytes
    assert plain_bytes <= ops.tiled_bytes(name, 64, 4096) <= WIDER.get(name, 1.01) * plain_bytes
    assert ops.tiled_bytes(name, 33, 256) == ops.tiled_bytes(name, 48, 256)


@pytest.mark.parametrize("exponent", [0, 1, 2, 127, 254, 255])
def test_every_mxfp4_exponent(exponent: int) -> None:
    block = bytes([exponent]) + bytes(range(0, 256, 16))
    weight = reference.Weight("MXFP4", block * 16, (16, 32))
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(np.frombuffer(block, np.uint8), gguf.GGMLQuantizationType.MXFP4)
    for _ in instruction_sets():
        assert ops.dequantize(tiled(weight))[7].tobytes() == expected.astype(np.float32).tobytes()


def test_embedding_rows_come_from_tiles() -> None:
    weight = random_weight("Q6_K", 21, 512)
    out = ops.tensor("F32", (3, 512))
    ops.embed(out, tiled(weight), plain(np.array([20, 0, 17], np.int32)))
    assert out.numpy().tobytes() == reference.embed(weight, np.array([20, 0, 17], np.int32)).tobytes()
