"""Blocks of every format that is read -> floats: in numpy, or, of formats with grids, as the engine reads them.

Layouts: ggml's block structures as published with the GGUF specification, and the OCP microscaling formats (MXFP4).
Each reader takes the blocks of a tensor as bytes (blocks, bytes a block) and returns their values (blocks, values a
block).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from colibri import ops
from colibri.weights.block_types import BY_NAME
from colibri.weights.encodings import E4M3

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
# The 16 levels of the non-linear 4-bit formats, and twice those of E2M1.
_LEVELS: Final = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_MXFP4_LEVELS: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def dequantize(type_name: str, data: Any, rows: int, k: int) -> Floats:
    """Plain bytes of a format -> float32 (rows, k)."""
    reader = _READERS.get(type_name)
    if reader is None:
        return _through_tiles(type_name, data, rows, k)
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BY_NAME[type_name].bytes)
    return reader(blocks).astype(np.float32, copy=False).reshape(rows, k)


def _through_tiles(type_name: str, data: Any, rows: int, k: int) -> Floats:
    tensor = ops.tensor(type_name, (rows, k), tiled=True)
    ops.tile(tensor, data)
    return ops.dequantize(tensor)


def _half(blocks: Bytes, at: int) -> Floats:  # (blocks, 1)
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Of each `run` bytes the low nibbles, then the high ones: (blocks, n) -> (blocks, 2n)."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(len(packed), -1)


def _bits(packed: Bytes) -> Bytes:
    """Single bits of bytes, lowest first."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")


def _planes(packed: Bytes, width: int) -> Bytes:
    """Fields of `width` bits: of each 32 bytes first the lowest field of all, then the next."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields = packed.reshape(len(packed), -1, 1, 32) >> shifts & ((1 << width) - 1)
    return fields.reshape(len(packed), -1).astype(np.uint8)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return _half(blocks, 0)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 16).astype(np.float32) - 8)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _floats(blocks: Bytes, at: int, count: int = 1) -> Floats:  # (blocks, count)
    return np.ascontiguousarray(blocks[:, at : at + 4 * count]).view("<f4").astype(np.float32, copy=False)


def _f8_e4m3(blocks: Bytes) -> Floats:
    return np.asarray(_floats(blocks, 64) * E4M3[blocks[:, :64]], np.float32)


def _int4(blocks: Bytes) -> Floats:
    return np.asarray(_floats(blocks, 0) * (_nibbles(blocks[:, 4:], 16).astype(np.float32) - 8), np.float32)


def _int5(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 8:], 16) | _bits(blocks[:, 4:8]) << 4
    return np.asarray(_floats(blocks, 0) * (q.astype(np.float32) - 16), np.float32)


def _int8(blocks: Bytes) -> Floats:
    return np.asarray(_floats(blocks, 0) * np.ascontiguousarray(blocks[:, 4:]).view(np.int8), np.float32)


def _fp4(blocks: Bytes) -> Floats:
    halves = np.repeat(_floats(blocks, 0, 2) / 2, 16, axis=1)
    return np.asarray(halves * _MXFP4_LEVELS[_nibbles(blocks[:, 8:], 16)], np.float32)


def _mxfp4(blocks: Bytes) -> Floats:
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)  # half of 2^(e - 127)
    return (scale * _MXFP4_LEVELS[_nibbles(blocks[:, 1:], 16)]).astype(np.float32)


def _scales_and_mins(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 12 bytes of a Q4_K or Q5_K block -> eight 6-bit scales and eight 6-bit mins, (blocks, 8) each."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    mins = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return scales, mins


def _scaled_offset(blocks: Bytes, q: Bytes) -> Floats:
    """d * scale * q - dmin * min, one scale and min for each 32 of the 256 values."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    step = (_half(blocks, 0) * scales.astype(np.float32))[:, :, None]  # (blocks, 8, 1)
    offset = (_half(blocks, 2) * mins.astype(np.float32))[:, :, None]
    return (step * q.reshape(-1, 8, 32).astype(np.float32) - offset).reshape(-1, 256)


def _q4_k(blocks: Bytes) -> Floats:
    return _scaled_offset(blocks, _nibbles(blocks[:, 16:144], 32))


def _q5_k(blocks: Bytes) -> Floats:
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    return _scaled_offset(blocks, (_nibbles(blocks[:, 48:176], 32) | fifth << 4).astype(np.uint8))


def _q6_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, 0:128], 64)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = (low | pairs.reshape(-1, 256) << 4).astype(np.float32) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    step = (_half(blocks, 208) * scales)[:, :, None]  # (blocks, 16, 1)
    return (step * q.reshape(-1, 16, 16)).reshape(-1, 256)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:], 16) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 6:], 16) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks, 0) * (q.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 8:], 16) | _bits(blocks[:, 4:8]) << 4) + _half(blocks, 2)


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
    return np.asarray(_half(blocks, 0) * _LEVELS[_nibbles(blocks[:, 2:], 16)], np.float32)


def _iq4_xs(blocks: Bytes) -> Floats:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.int32)  # two bits for each 32 values
    part = np.arange(8)
    low = (blocks[:, 4:8][:, part // 2] >> (part % 2 * 4).astype(np.uint8)) & 15
    scale = (low.astype(np.int32) | (high >> 2 * part & 3) << 4) - 32  # (blocks, 8)
    values = _LEVELS[_nibbles(blocks[:, 8:], 16)].reshape(-1, 8, 32)
    return np.asarray((_half(blocks, 0) * scale.astype(np.float32))[:, :, None] * values, np.float32)


def _f64(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f8").astype(np.float32)


_READERS: Final[Mapping[str, Callable[[Bytes], Floats]]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "Q4_0": _q4_0, "Q8_0": _q8_0, "MXFP4": _mxfp4, "F8_E4M3": _f8_e4m3,
    "INT4": _int4, "INT5": _int5, "INT8": _int8, "FP4": _fp4,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q2_K": _q2_k,
    "Q3_K": _q3_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "F64": _f64,
}  # fmt: skip
READABLE: Final = frozenset(_READERS) | frozenset(ops.BLOCK_TYPES)
