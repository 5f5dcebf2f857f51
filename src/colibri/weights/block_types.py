"""The block types of the GGUF format: what a tensor's rows are made of.

This is the file format's table, not the list of what the engine computes with (that is `ops.BLOCK_TYPES`): a file with
other types can still be listed, checked and refused by name.
Source: ggml's type table as published with the GGUF specification.
"""

from __future__ import annotations

from typing import NamedTuple


class BlockFormat(NamedTuple):
    """`values` consecutive values of a row are stored in `bytes` bytes."""

    name: str
    code: int
    values: int
    bytes: int


_TABLE = (
    BlockFormat("F32", 0, 1, 4),
    BlockFormat("F16", 1, 1, 2),
    BlockFormat("Q4_0", 2, 32, 18),
    BlockFormat("Q4_1", 3, 32, 20),
    BlockFormat("Q5_0", 6, 32, 22),
    BlockFormat("Q5_1", 7, 32, 24),
    BlockFormat("Q8_0", 8, 32, 34),
    BlockFormat("Q8_1", 9, 32, 40),
    BlockFormat("Q2_K", 10, 256, 84),
    BlockFormat("Q3_K", 11, 256, 110),
    BlockFormat("Q4_K", 12, 256, 144),
    BlockFormat("Q5_K", 13, 256, 176),
    BlockFormat("Q6_K", 14, 256, 210),
    BlockFormat("Q8_K", 15, 256, 292),
    BlockFormat("IQ2_XXS", 16, 256, 66),
    BlockFormat("IQ2_XS", 17, 256, 74),
    BlockFormat("IQ3_XXS", 18, 256, 98),
    BlockFormat("IQ1_S", 19, 256, 50),
    BlockFormat("IQ4_NL", 20, 32, 18),
    BlockFormat("IQ3_S", 21, 256, 110),
    BlockFormat("IQ2_S", 22, 256, 82),
    BlockFormat("IQ4_XS", 23, 256, 136),
    BlockFormat("I8", 24, 1, 1),
    BlockFormat("I16", 25, 1, 2),
    BlockFormat("I32", 26, 1, 4),
    BlockFormat("I64", 27, 1, 8),
    BlockFormat("F64", 28, 1, 8),
    BlockFormat("IQ1_M", 29, 256, 56),
    BlockFormat("BF16", 30, 1, 2),
    BlockFormat("TQ1_0", 34, 256, 54),
    BlockFormat("TQ2_0", 35, 256, 66),
    BlockFormat("MXFP4", 39, 32, 17),
    BlockFormat("NVFP4", 40, 64, 36),
    BlockFormat("Q1_0", 41, 128, 18),
)

# What is made of the formats of directories (weights/encodings.py), with floats as scales. No file of GGUF has them.
NOT_GGUF = (
    BlockFormat("F8_E4M3", -1, 64, 68),
    BlockFormat("INT4", -1, 32, 20),
    BlockFormat("INT5", -1, 32, 24),
    BlockFormat("INT8", -1, 32, 36),
    BlockFormat("FP4", -1, 32, 24),
)

BY_CODE = {block.code: block for block in _TABLE}
BY_NAME = {block.name: block for block in (*_TABLE, *NOT_GGUF)}


def row_bytes(type_name: str, k: int) -> int:
    """Bytes of one row of k values; k must be a multiple of the block."""
    block = BY_NAME[type_name]
    if k % block.values:
        raise ValueError(f"a row of {k} values is not a multiple of {type_name}'s block of {block.values}")
    return k // block.values * block.bytes
