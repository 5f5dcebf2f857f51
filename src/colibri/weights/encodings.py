"""Number formats of Hugging Face directories that hold values and scales in two tensors, as blocks of the GGUF types.

A tensor of such a format has the type that its rows are made into as they are read; nothing of a value changes.
Source: OCP Microscaling Formats specification 1.0; transformers' and ggml's order of the nibbles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How rows of `type` are stored.

    values: of which each group of so many has a scale. bytes: of such a group's values in the file, without the scale.
    join: (rows, bytes of values) and (rows, bytes of scales) -> rows of the type.
    """

    type: str
    values: int
    bytes: int
    join: Callable[[Bytes, Bytes], Bytes]


def _mxfp4(values: Bytes, scales: Bytes) -> Bytes:
    """Byte j of 16 holds values 2j and 2j + 1; in a block of GGUF it holds j and j + 16, behind the scale."""
    groups = values.reshape(*scales.shape, 16)
    codes = np.stack([groups & 15, groups >> 4], axis=-1).reshape(*scales.shape, 2, 16)
    blocks = np.concatenate([scales[..., None], codes[..., 0, :] | codes[..., 1, :] << 4], axis=-1)
    return blocks.reshape(len(values), -1)


MXFP4 = Encoding("MXFP4", 32, 16, _mxfp4)
