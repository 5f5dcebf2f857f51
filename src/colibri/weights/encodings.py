"""Number formats of Hugging Face directories that hold values and their scales in several tensors, as blocks.

A tensor of such a format has the type that its rows are made into as they are read; nothing of a value changes.
Source: OCP Microscaling Formats specification 1.0; OCP 8-bit floating point specification 1.0; the packing of
compressed-tensors, AutoAWQ and AutoGPTQ; transformers' and ggml's order of the nibbles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from colibri.errors import FormatError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How rows of `type` are stored.

    values: of which each group of so many takes `bytes` bytes in the file, without what stands beside it; 0 bytes where
    all stands beside it.
    join: (places of the rows in the file, their bytes, and for each side (rows or 1, its bytes)) -> rows of the type.
    Raises FormatError for numbers that it does not hold.
    """

    type: str
    values: int
    bytes: int
    join: Callable[..., Bytes]


def _e4m3() -> Floats:
    """The values of the 256 bytes: sign, four bits of exponent, three of mantissa; 127 and 255 are NaN."""
    exponent, mantissa = np.divmod(np.arange(127), 8)
    steps = np.where(exponent > 0, 8 + mantissa, mantissa)
    values = np.append(np.ldexp(steps.astype(np.float32), np.maximum(exponent, 1) - 10), np.float32(np.nan))
    return np.concatenate([values, -values]).astype(np.float32)


E4M3: Final = _e4m3()
_POWERS: Final = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))
NUMBERS: Final[Mapping[str, Callable[[Bytes], Floats]]] = {
    "F32": lambda data: data.view("<f4").astype(np.float32, copy=False),
    "F16": lambda data: data.view("<f2").astype(np.float32),
    "BF16": lambda data: (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32),
    "F8_E4M3": lambda data: E4M3[data],
    "F8_E8M0": lambda data: _POWERS[data],
}


def _scales(type_name: str, scales: Bytes, rows: int, values_a_scale: int, block: int, k: int) -> Floats:
    """(rows, k / block): the scale of every block, of scales for each so many values of a row."""
    numbers = NUMBERS[type_name](np.ascontiguousarray(scales))
    of_blocks = np.repeat(numbers, -(-values_a_scale // block), axis=1)[:, : k // block]
    return np.broadcast_to(of_blocks, (rows, k // block))


def _bytes_of(scales: Floats, kind: str) -> Bytes:
    """(rows, blocks) -> (rows, blocks, bytes), in half floats for the formats of GGUF."""
    kind = "<f4" if kind in ("INT4", "INT5", "INT8", "FP4", "F8_E4M3") else "<f2"
    return np.ascontiguousarray(scales, kind)[..., None].view(np.uint8)


def _nibbles(data: Bytes) -> Bytes:
    """(rows, n) -> (rows, 2 n): of each byte the low four bits, then the high ones."""
    return np.stack([data & np.uint8(15), data >> np.uint8(4)], axis=-1).reshape(len(data), -1)


def _halves(codes: Bytes) -> Bytes:
    """(..., 32) of four bits -> (..., 16) as GGUF has them: values j and j + 16 in byte j."""
    return codes[..., :16] | codes[..., 16:] << np.uint8(4)


def _repacked(data: Bytes) -> Bytes:
    """(rows, n) with values 2 j and 2 j + 1 in byte j -> (rows, n / 16, 16) as GGUF has them; eight bytes at a time."""
    first, second = np.moveaxis(np.ascontiguousarray(data).reshape(len(data), -1, 2, 8).view("<u8")[..., 0], -1, 0)
    low = np.uint64(0x0F0F0F0F0F0F0F0F)
    even = np.ascontiguousarray(first & low | (second & low) << np.uint64(4))
    odd = np.ascontiguousarray(first >> np.uint64(4) & low | second & ~low)
    pairs: Bytes = (even.view(np.uint8).astype("<u2") | odd.view(np.uint8).astype("<u2") << np.uint16(8)).view(np.uint8)
    return pairs.reshape(len(data), -1, 16)


def _rows(*parts: Bytes) -> Bytes:
    """Parts (rows, blocks, bytes) of the blocks, one behind the other -> (rows, bytes)."""
    return np.concatenate(parts, axis=-1).reshape(len(parts[0]), -1)


# ---- floats ----------------------------------------------------------------------------------------------------------


def _mxfp4(places: Places, values: Bytes, scales: Bytes) -> Bytes:
    return _rows(scales[..., None], _repacked(values))


MXFP4: Final = Encoding("MXFP4", 32, 16, _mxfp4)


@cache
def fp4(scale_type: str, divided: bool) -> Encoding:
    """E2m1 with a scale for each 16 values and one for all, by which those are multiplied or divided."""

    def join(places: Places, values: Bytes, scales: Bytes, of_all: Bytes) -> Bytes:
        factor, k = NUMBERS["F32"](np.ascontiguousarray(of_all)), 2 * values.shape[1]
        own = _scales(scale_type, scales, len(values), 16, 16, k)
        both = (own / factor if divided else own * factor).reshape(len(values), -1, 2)
        pairs = np.ascontiguousarray(both, "<f4").view(np.uint8)
        return _rows(pairs, _repacked(values))

    return Encoding("FP4", 32, 16, join)


def _nvfp4(places: Places, values: Bytes, of_all: Bytes) -> Bytes:
    """Blocks of GGUF: scales of four groups of 16 values, then of each the low four bits of j and j + 8 in byte j."""
    blocks = values.reshape(len(values), -1, 36)
    scales = _WITHOUT_SIGN[blocks[..., :4]]
    factor = NUMBERS["F32"](np.ascontiguousarray(of_all))[0, 0]
    pairs = np.ascontiguousarray(scales * factor, "<f4").reshape(len(values), -1, 2).view(np.uint8)
    groups = np.ascontiguousarray(blocks[..., 4:]).reshape(len(values), -1, 2, 8).view("<u8")[..., 0]
    low = np.uint64(0x0F0F0F0F0F0F0F0F)
    first, second = groups[..., :1], groups[..., 1:]
    halves = [first & low | (second & low) << np.uint64(4), first >> np.uint64(4) & low | second & ~low]
    return _rows(pairs, np.concatenate(halves, axis=-1).view(np.uint8))


# As the scales of NVFP4 are read: no sign, and 127 alone stands for NaN, which is taken for 0.
_WITHOUT_SIGN: Final = np.concatenate([E4M3[:127], [0], E4M3[:127], [480]]).astype(np.float32)
NVFP4_SCALED: Final = Encoding("FP4", 64, 36, _nvfp4)


@cache
def fp8(scale_type: str, values_a_scale: int) -> Encoding:
    """E4m3 with a scale for each so many values of a row, a multiple of 64 or all."""

    def join(places: Places, values: Bytes, scales: Bytes) -> Bytes:
        of_blocks = _scales(scale_type, scales, len(values), values_a_scale, 64, values.shape[1])
        return _rows(values.reshape(len(values), -1, 64), _bytes_of(of_blocks, "F8_E4M3"))

    return Encoding("F8_E4M3", 64, 64, join)


# ---- integers --------------------------------------------------------------------------------------------------------


def _integer_type(bits: int, scale_type: str) -> str:
    """The format with a scale for each 32 integers: one of GGUF where the scale is a half float."""
    return {4: "Q4_0", 5: "Q5_0", 8: "Q8_0"}[bits] if scale_type == "F16" else f"INT{bits}"


def _five_bits(codes: Bytes, zeros: Bytes, values_a_zero: int) -> tuple[Bytes, Bytes]:
    """codes (rows, k) of four bits less their zeros: the fifth bits of every block, and the four others."""
    less = codes + np.uint8(16) - np.repeat(zeros, values_a_zero, axis=1)[:, : codes.shape[1]]
    blocks = less.reshape(len(less), -1, 32)
    return np.packbits(blocks >> np.uint8(4), axis=-1, bitorder="little"), _halves(blocks & np.uint8(15))


@cache
def integers(bits: int, scale_type: str, values_a_scale: int, signed: bool = False, zeros: bool = False) -> Encoding:
    """Integers of 4 or 8 bits plus 8 or 128, or signed ones, as compressed-tensors has them.

    zeros: what is taken off first stands beside them, too, in words of four bits for each eight rows.
    """
    kind = _integer_type(5 if zeros else bits, scale_type)

    def join(places: Places, values: Bytes, scales: Bytes, *beside: Bytes) -> Bytes:
        k = values.shape[1] * 8 // bits
        head = _bytes_of(_scales(scale_type, scales, len(values), values_a_scale, 32, k), kind)
        if bits == 8:
            return _rows(head, (values if signed else values ^ np.uint8(128)).reshape(len(values), -1, 32))
        if not beside:
            return _rows(head, _repacked(values))
        words = np.ascontiguousarray(beside[0]).view("<u4")
        zero = (words >> (4 * (places % 8)).astype(np.uint32)[:, None] & 15).astype(np.uint8)
        return _rows(head, *_five_bits(_nibbles(values), zero, values_a_scale))

    return Encoding(kind, 32, 4 * bits, join)


# Where the eight numbers of a word are.
_IN_ORDER: Final = np.arange(8)
_AWQ: Final = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])


def _of_columns(words: npt.NDArray[np.uint32], places: Places, order: npt.NDArray[np.int64]) -> Bytes:
    """(n, columns / 8) words of eight columns -> (len(places), n)."""
    shifts = (4 * order[places % 8]).astype(np.uint32)
    return (words[:, places // 8] >> shifts & 15).astype(np.uint8).T


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix (rows, k) of four bits, stored as its transpose, with a scale and a zero for each `values_a_scale` of k.

    along_k: eight values of k are in a word, in order (AutoGPTQ), otherwise eight rows in AutoAWQ's order.
    more: what is added to the zeros that are stored. symmetric: all zeros are 8.
    """

    rows: int
    k: int
    values_a_scale: int
    along_k: bool
    more: int
    symmetric: bool


@cache
def packed(form: Packed) -> Encoding:
    """As AutoGPTQ and AutoAWQ have them. Sides: the values, the zeros, the scales and, with some, the groups of k."""
    kind = _integer_type(4 if form.symmetric else 5, "F16")

    def join(places: Places, _: Bytes, values: Bytes, zeros: Bytes, scales: Bytes, *groups: Bytes) -> Bytes:
        for own in groups:
            if not np.array_equal(own.view("<i4")[0], np.arange(form.k) // form.values_a_scale):
                raise FormatError("g_idx is not in order (desc_act), which is not read; use another quantisation")
        zero_words = zeros.view("<u4").reshape(-1, form.rows // 8)
        zero = _of_columns(zero_words, places, _IN_ORDER if form.along_k else _AWQ) + form.more
        own_scales = scales.view("<f2").reshape(-1, form.rows)[:, places].T
        head = _bytes_of(np.repeat(own_scales, form.values_a_scale // 32, axis=1)[:, : form.k // 32], kind)
        if form.along_k:
            words = np.ascontiguousarray(values.view("<u4").reshape(form.k // 8, form.rows)[:, places].T)
            nibbles = words.view(np.uint8)
        else:
            codes = _of_columns(values.view("<u4").reshape(form.k, form.rows // 8), places, _AWQ)
            nibbles = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
        if not form.symmetric:
            return _rows(head, *_five_bits(_nibbles(nibbles), zero, form.values_a_scale))
        if (zero != 8).any():
            raise FormatError("quantization_config says sym, but the zeros in qzeros are not all 8; set it to false")
        return _rows(head, _repacked(nibbles))

    return Encoding(kind, 32, 0, join)
