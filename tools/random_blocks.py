"""Random blocks of every format, in their packed form, whose values have a given standard deviation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from colibri.weights.block_types import BY_NAME
from colibri.weights.gguf_writer import TensorSpec

Bytes = npt.NDArray[np.uint8]
CHUNK_BYTES = 16 << 20


def _half(values: npt.NDArray[np.float64]) -> Bytes:
    return values.astype("<f2").view(np.uint8).reshape(len(values), 2)


def _scales(rng: np.random.Generator, count: int, scale: float, signed: bool) -> npt.NDArray[np.float64]:
    scales = rng.uniform(0.75, 1.25, count) * scale
    return scales * rng.choice([-1.0, 1.0], count) if signed else scales


def _bytes(rng: np.random.Generator, count: int, width: int) -> Bytes:
    return np.frombuffer(rng.bytes(count * width), np.uint8).reshape(count, width)


def _q4_k(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return _four_or_five_bits(rng, count, deviation / (36.4 * 4.61), 7.5, 128)


def _q5_k(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return _four_or_five_bits(rng, count, deviation / (36.4 * 9.23), 15.5, 160)


def _four_or_five_bits(rng: np.random.Generator, count: int, scale: float, middle: float, bits: int) -> Bytes:
    """value = d * s * q - dmin * m with m = s and dmin = d * middle, so that the mean is 0."""
    d = _half(_scales(rng, count, scale, signed=False))
    dmin = _half(d.view("<f2")[:, 0].astype(np.float64) * middle)
    low = _bytes(rng, count, 4)
    high = _bytes(rng, count, 4) & 15
    return np.hstack([d, dmin, low, low, high * np.uint8(17), _bytes(rng, count, bits)])


def _q6_k(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    d = _half(_scales(rng, count, deviation / (18.5 * 74), signed=True))
    return np.hstack([_bytes(rng, count, 128 + 64 + 16), d])


def _q8_0(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return np.hstack([_half(_scales(rng, count, deviation / 73.9, signed=True)), _bytes(rng, count, 32)])


def _q4_0(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return np.hstack([_half(_scales(rng, count, deviation / 4.61, signed=True)), _bytes(rng, count, 16)])


def _mxfp4(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    exponent = 127 + math.log2(deviation / 2.93)
    drawn = np.floor(exponent + rng.uniform(0, 1, count)).astype(np.uint8)
    return np.hstack([drawn[:, None], _bytes(rng, count, 16)])


def _sixteen_bits(rng: np.random.Generator, count: int, deviation: float, mantissa: int, bias: int) -> Bytes:
    """Random sign and mantissa; the exponent is one of two, uniform: values of 1..4 units, rms 2.37 units."""
    raw = np.frombuffer(rng.bytes(2 * count), "<u2")
    exponent = bias + round(math.log2(deviation / 2.37))
    kept = raw & (0x8000 | ((2 << mantissa) - 1))
    bits = kept + np.uint16(0) + (np.uint16(exponent) << np.uint16(mantissa))
    return bits.astype("<u2").view(np.uint8).reshape(count, 2)


def _f16(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return _sixteen_bits(rng, count, deviation, 10, 15)


def _bf16(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return _sixteen_bits(rng, count, deviation, 7, 127)


def _f32(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return (rng.standard_normal(count, np.float32) * np.float32(deviation)).view(np.uint8).reshape(count, 4)


def _scaled(width: int, at: int, unit: float) -> Callable[[np.random.Generator, int, float], Bytes]:
    """Any bits; the half float at byte `at` is a scale, of which values are `unit` on average."""

    def draw(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
        scale = _half(_scales(rng, count, deviation / unit, signed=True))
        return np.hstack([_bytes(rng, count, at), scale, _bytes(rng, count, width - at - 2)])

    return draw


def _with_minimum(width: int, middle: float, unit: float) -> Callable[[np.random.Generator, int, float], Bytes]:
    """Any bits after a scale and a minimum that makes the mean 0."""

    def draw(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
        scale = _half(_scales(rng, count, deviation / unit, signed=True))
        minimum = _half(scale.view("<f2")[:, 0].astype(np.float64) * -middle)
        return np.hstack([scale, minimum, _bytes(rng, count, width - 4)])

    return draw


def _nvfp4(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    exponent = 7 + math.log2(deviation / 2.93)  # of 4 bits: what is less than 2^-6 is a fraction of it
    drawn = np.clip(np.floor(exponent + rng.uniform(0, 1, (count, 4))), 0, 14).astype(np.uint8)
    smallest = np.uint8(round(deviation / 2.93 * 512)) if exponent < 1 else np.uint8(0)
    scales = np.where(drawn == 0, smallest, drawn << np.uint8(3)).astype(np.uint8)
    return np.hstack([scales, _bytes(rng, count, 32)])


def _iq1_m(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    """A half float in four parts of four bits."""
    blocks = _bytes(rng, count, 56).copy()
    d = _scales(rng, count, deviation / 7.4, signed=True).astype(np.float16).view(np.uint16)
    for part in range(4):
        blocks[:, 49 + 2 * part] = (blocks[:, 49 + 2 * part] & 15) | ((d >> 4 * part & 15) << 4).astype(np.uint8)
    return blocks


def _q2_k(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    """A scale and the minimum of its 16 values are the same nibble, so that the mean is 0."""
    d = _half(_scales(rng, count, deviation / 9.84, signed=True))
    dmin = _half(d.view("<f2")[:, 0].astype(np.float64) * 1.5)
    scales = (_bytes(rng, count, 16) & 15) * np.uint8(17)
    return np.hstack([scales, _bytes(rng, count, 64), d, dmin])


BLOCKS: dict[str, Callable[[np.random.Generator, int, float], Bytes]] = {
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_0": _q8_0, "Q4_0": _q4_0,
    "MXFP4": _mxfp4, "F16": _f16, "BF16": _bf16, "F32": _f32,
    "Q4_1": _with_minimum(20, 7.5, 4.61), "Q5_1": _with_minimum(24, 15.5, 9.23), "Q5_0": _scaled(22, 0, 9.24),
    "IQ4_NL": _scaled(18, 0, 70.8), "IQ4_XS": _scaled(136, 0, 1310), "Q2_K": _q2_k, "Q3_K": _scaled(110, 108, 43.3),
    "IQ3_S": _scaled(110, 0, 150), "IQ3_XXS": _scaled(98, 0, 150), "IQ2_S": _scaled(82, 0, 58),
    "IQ2_XS": _scaled(74, 0, 58), "IQ2_XXS": _scaled(66, 0, 54), "IQ1_S": _scaled(50, 0, 7.4), "IQ1_M": _iq1_m,
    "TQ1_0": _scaled(54, 52, 0.82), "TQ2_0": _scaled(66, 64, 1.2), "NVFP4": _nvfp4,
}  # fmt: skip


def random_tensor(rng: np.random.Generator, tensor: TensorSpec, deviation: float) -> Iterator[Bytes]:
    """The bytes of a tensor with values of mean 0 and about this deviation, in chunks."""
    block = BY_NAME[tensor.type]
    left = tensor.nbytes // block.bytes
    while left:
        count = min(left, CHUNK_BYTES // block.bytes)
        yield BLOCKS[tensor.type](rng, count, deviation)
        left -= count
