"""Number formats of Hugging Face directories that hold values and their scales in several tensors, as blocks.

A tensor of such a format has the type that its rows are made into as they are read; nothing of a value changes.
Source: OCP Microscaling Formats specification 1.0; OCP 8-bit floating point specification 1.0; transformers' and ggml's
order of the nibbles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How rows of `type` are stored.

    values: of which each group of so many takes `bytes` bytes in the file, without what stands beside it.
    join: (rows, bytes of values) and for each of the sides (rows, its bytes) -> rows of the type.
    """

    type: str
    values: int
    bytes: int
    join: Callable[..., Bytes]


def _mxfp4(values: Bytes, scales: Bytes) -> Bytes:
    """Byte j of 16 holds values 2j and 2j + 1; in a block of GGUF it holds j and j + 16, behind the scale."""
    groups = values.reshape(*scales.shape, 16)
    codes = np.stack([groups & 15, groups >> 4], axis=-1).reshape(*scales.shape, 2, 16)
    blocks = np.concatenate([scales[..., None], codes[..., 0, :] | codes[..., 1, :] << 4], axis=-1)
    return blocks.reshape(len(values), -1)


MXFP4: Final = Encoding("MXFP4", 32, 16, _mxfp4)


@cache
def fp8(scale_type: str, values_a_scale: int) -> Encoding:
    """Bytes of e4m3 with a scale of this type for each so many values of a row, a multiple of 64."""

    def join(values: Bytes, scales: Bytes) -> Bytes:
        blocks = np.empty((len(values), values.shape[1] // 64, 68), np.uint8)
        blocks[..., :64] = values.reshape(len(values), -1, 64)
        of_blocks = np.repeat(numbers(scale_type, scales), values_a_scale // 64, axis=1)[:, : blocks.shape[1]]
        blocks[..., 64:] = np.ascontiguousarray(of_blocks, "<f4").view(np.uint8).reshape(*blocks.shape[:2], 4)
        return blocks.reshape(len(values), -1)

    return Encoding("F8_E4M3", 64, 64, join)


_POWERS: Final = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))


def numbers(type_name: str, data: Bytes) -> Floats:
    """(rows, bytes) of one of the types that scales have -> (rows, numbers)."""
    return NUMBERS[type_name](np.ascontiguousarray(data))


NUMBERS: Final[Mapping[str, Callable[[Bytes], Floats]]] = {
    "F32": lambda data: data.view("<f4").astype(np.float32, copy=False),
    "F16": lambda data: data.view("<f2").astype(np.float32),
    "BF16": lambda data: (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32),
    "F8_E8M0": lambda data: _POWERS[data],
}
