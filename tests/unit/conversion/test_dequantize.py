"""Formats that are only read, against the gguf package's dequantisers."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import reference

from colibri.conversion.dequantize import READABLE, dequantize
from colibri.weights.block_types import BY_NAME

HALVES = {
    "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip


@pytest.mark.parametrize("type_name", sorted(HALVES))
def test_equal_to_the_gguf_package(type_name: str) -> None:
    random = np.random.default_rng(4)
    block = BY_NAME[type_name]
    blocks = random.integers(0, 256, (12 * 256 // block.values, block.bytes), dtype=np.uint8)
    for at in HALVES[type_name]:
        blocks[:, at : at + 2] = random.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    kind = gguf.GGMLQuantizationType[type_name]
    theirs = gguf.quants.dequantize(blocks.reshape(4, -1), kind)
    ours = dequantize(type_name, blocks, 4, 768)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs.reshape(4, 768))


def test_what_can_be_read() -> None:
    assert {*reference.FORMATS, *HALVES} <= READABLE
    assert "Q8_1" not in READABLE
    values = np.array([[1.5, -2.25]])
    np.testing.assert_array_equal(dequantize("F64", values.tobytes(), 1, 2), values)
    np.testing.assert_array_equal(dequantize("F32", values.astype(np.float32).tobytes(), 1, 2), values)
