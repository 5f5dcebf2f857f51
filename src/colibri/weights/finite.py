"""Whether the numbers in the bytes of a tensor are finite, without dequantising them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from colibri.weights.block_types import BY_NAME
from colibri.weights.tensor_info import TensorInfo

Bytes = npt.NDArray[np.uint8]

# Where a block of each format holds half floats; MXFP4's scale byte is NaN when all bits are set.
_HALVES: Final = {
    "F16": (0,), "Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2),
    "Q5_0": (0,), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "IQ3_S": (0,), "IQ3_XXS": (0,), "IQ2_S": (0,), "IQ2_XS": (0,), "IQ2_XXS": (0,), "IQ1_S": (0,),
    "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip

# How many floats a block begins with.
_FLOATS: Final = {"INT4": 1, "INT5": 1, "INT8": 1, "FP4": 2}


def bad_blocks(type_name: str, data: Bytes) -> npt.NDArray[np.int64]:
    """Indices of the blocks with a scale (or value) that is not finite; none for formats that are not known here."""
    blocks = data.reshape(-1, BY_NAME[type_name].bytes)
    if type_name == "F32":
        bad = (blocks.view("<u4")[:, 0] & 0x7F800000) == 0x7F800000
    elif type_name == "BF16":
        bad = (blocks.view("<u2")[:, 0] & 0x7F80) == 0x7F80
    elif type_name == "F8_E4M3":
        scale = np.ascontiguousarray(blocks[:, 64:]).view("<u4")[:, 0]
        bad = ((scale & 0x7F800000) == 0x7F800000) | ((blocks[:, :64] & 0x7F) == 0x7F).any(axis=1)
    elif type_name in _FLOATS:
        scales = np.ascontiguousarray(blocks[:, : 4 * _FLOATS[type_name]]).view("<u4")
        bad = ((scales & 0x7F800000) == 0x7F800000).any(axis=1)
    elif type_name == "MXFP4":
        bad = blocks[:, 0] == 0xFF
    elif type_name == "IQ1_M":  # the half float is in the highest four bits of four numbers of 16
        bad = ((blocks[:, 55] & 0x70) == 0x70) & ((blocks[:, 53] & 0xC0) == 0xC0)
    else:
        bad = np.zeros(len(blocks), np.bool_)
        for at in _HALVES.get(type_name, ()):
            bad |= (blocks[:, at + 1] & 0x7C) == 0x7C
    return np.flatnonzero(bad)


def find_fault(info: TensorInfo, at: int, data: Bytes) -> str:
    """What is wrong with the numbers in `data`, whole blocks from byte `at` of the tensor on, and where; or nothing."""
    bad = bad_blocks(info.type, data)
    if not bad.size:
        return ""
    block = BY_NAME[info.type]
    row, column = divmod((at // block.bytes + int(bad[0])) * block.values, info.shape[-1])
    return f"a NaN or an infinity at row {row}, column {column}" + (" on" if block.values > 1 else "")
