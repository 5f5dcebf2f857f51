"""Block formats that are read to be converted, though the engine does not run them, beside those that it runs.

Layouts: ggml's block structures as published with the GGUF specification. Each reader takes the blocks of a tensor as
bytes (blocks, bytes a block) and returns their values (blocks, values a block).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from colibri.ops import reference
from colibri.weights.block_types import BY_NAME

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
# The 16 levels of the non-linear 4-bit formats.
_LEVELS: Final = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def dequantize(type_name: str, data: Any, rows: int, k: int) -> Floats:
    """Plain bytes of a format -> float32 (rows, k)."""
    if type_name in reference.FORMATS:
        return reference.dequantize(type_name, data, (rows, k))
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BY_NAME[type_name].bytes)
    return _READERS[type_name](blocks).astype(np.float32, copy=False).reshape(rows, k)


def _half(blocks: Bytes, at: int) -> Floats:  # (blocks, 1)
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low nibbles of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _bits(packed: Bytes) -> Bytes:
    """Single bits of bytes, lowest first."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")


def _planes(packed: Bytes, width: int) -> Bytes:
    """Fields of `width` bits: of each 32 bytes first the lowest field of all, then the next."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields = packed.reshape(len(packed), -1, 1, 32) >> shifts & ((1 << width) - 1)
    return fields.reshape(len(packed), -1).astype(np.uint8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks, 0) * (q.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4) + _half(blocks, 2)


def _q2_k(blocks: Bytes) -> Floats:
    q = _planes(blocks[:, 16:80], 2).reshape(-1, 16, 16)
    scale = (_half(blocks, 80) * (blocks[:, :16] & 15))[:, :, None]  # (blocks, 16, 1)
    low = (_half(blocks, 82) * (blocks[:, :16] >> 4))[:, :, None]
    return np.asarray(scale * q - low, np.float32)


def _q3_k(blocks: Bytes) -> Floats:
    low = _planes(blocks[:, 32:96], 2)
    high = _planes(blocks[:, :32], 1)  # a clear bit: 4 less
    q = (low.astype(np.float32) - 4 * (1 - high.astype(np.float32))).reshape(-1, 16, 16)
    packed = blocks[:, 96:108]
    lows = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    highs = np.concatenate([packed[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    scale = (lows | highs << 4).astype(np.float32) - 32
    return np.asarray((_half(blocks, 108) * scale)[:, :, None] * q, np.float32)


def _iq4_nl(blocks: Bytes) -> Floats:
    return np.asarray(_half(blocks, 0) * _LEVELS[_nibbles(blocks[:, 2:])], np.float32)


def _iq4_xs(blocks: Bytes) -> Floats:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.int32)  # two bits for each 32 values
    part = np.arange(8)
    low = (blocks[:, 4:8][:, part // 2] >> (part % 2 * 4).astype(np.uint8)) & 15
    scale = (low.astype(np.int32) | (high >> 2 * part & 3) << 4) - 32  # (blocks, 8)
    values = _LEVELS[_nibbles(blocks[:, 8:].reshape(-1, 16))].reshape(-1, 8, 32)
    return np.asarray((_half(blocks, 0) * scale.astype(np.float32))[:, :, None] * values, np.float32)


def _f64(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f8").astype(np.float32)


_READERS: Final[Mapping[str, Callable[[Bytes], Floats]]] = {
    "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q2_K": _q2_k, "Q3_K": _q3_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
    "F64": _f64,
}  # fmt: skip
READABLE: Final = frozenset(reference.FORMATS) | frozenset(_READERS)
