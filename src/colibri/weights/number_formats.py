"""The number formats of Hugging Face directories that are read: by the types and shapes of what stands together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from colibri.errors import FormatError, UnsupportedError
from colibri.weights.block_types import row_bytes
from colibri.weights.encodings import MXFP4, NUMBERS, NVFP4_SCALED, Encoding, Packed, fp4, fp8, integers, packed
from colibri.weights.tensor_info import Side, TensorInfo

Parts = Mapping[str, TensorInfo]
Make = Callable[[TensorInfo, Parts, Mapping[str, Any]], TensorInfo]


class Format(NamedTuple):
    """end and type: of the name and of the numbers of the values. sides: what is beside them; more: what may be.

    make: from the values, what is beside them, and quantization_config.
    """

    end: str
    type: str
    sides: frozenset[str]
    more: frozenset[str]
    make: Make


def _unfit(values: TensorInfo, scales: TensorInfo, expected: str) -> FormatError:
    return FormatError(
        f"{values.file}: {values.name:.200} is {values.type} {list(values.shape)} with {scales.type} "
        f"{list(scales.shape)} as its scales; {expected} expected"
    )


def _encoded(values: TensorInfo, encoding: Encoding, shape: tuple[int, ...], *sides: Side) -> TensorInfo:
    k = shape[-1]
    if k % encoding.values:
        raise UnsupportedError(
            f"{values.file}: {values.name:.200} has rows of {k} values; this format is read where {encoding.values} "
            "divides them. Use the unquantised checkpoint or a GGUF file"
        )
    nbytes = math.prod(shape[:-1]) * row_bytes(encoding.type, k)
    return replace(values, type=encoding.type, shape=shape, nbytes=nbytes, encoding=encoding, sides=sides)


def _beside(side: TensorInfo, each: int = 1) -> Side:
    """A tensor (rows, n) or, of merged experts, (experts, rows, n); each 0: all of it."""
    rows = math.prod(side.shape[:-1]) if each else 1
    return Side(side.file, side.offset, side.nbytes // max(rows, 1), each,
                of_expert=side.shape[1] if len(side.shape) == 3 else 0)  # fmt: skip


def _scale_size(values: TensorInfo, shape: tuple[int, ...], scales: TensorInfo, block: int, asked: int | None) -> int:
    """How many of a row's values have a scale in common, of scales for groups of a row or for whole rows.

    asked: by the configuration, None where it does not say.
    """
    size = _values_a_scale(shape[-1], scales.shape[-1] if scales.shape else 0, asked or block)
    fits = size == shape[-1] or (size and size % block == 0 and asked in (None, size))
    if scales.type not in NUMBERS or scales.shape[:-1] != shape[:-1] or not fits:
        groups = f"one for each {asked or block} values{'' if asked else ' or more'}"
        raise _unfit(values, scales, f"for each of {list(shape[:-1])} rows one, or {groups}, are")
    return size


def _values_a_scale(values: int, scales: int, usual: int) -> int:
    """How many values have a scale in common, where so many are in a line; 0 where that does not go."""
    if scales < 1 or values < 1:
        return 0
    if -(-values // usual) == scales:
        return usual
    return values // scales if values % scales == 0 else 0


# ---- the formats -----------------------------------------------------------------------------------------------------


def _mxfp4(values: TensorInfo, parts: Parts, method: Mapping[str, Any]) -> TensorInfo:
    """Values (..., rows, groups, 16) and scales (..., rows, groups)."""
    scales = parts["_scales"]
    if scales.type != "U8" or len(values.shape) not in (3, 4) or values.shape != (*scales.shape, MXFP4.bytes):
        raise _unfit(values, scales, f"U8 of (rows, groups, {MXFP4.bytes}) and (rows, groups) are")
    return _encoded(values, MXFP4, (*scales.shape[:-1], scales.shape[-1] * MXFP4.values), _beside(scales))


def _packed_floats(values: TensorInfo, parts: Parts, method: Mapping[str, Any]) -> TensorInfo:
    """Values (rows, k / 2) of e2m1; scales (rows, k / 16) and one for all, or exponents (rows, k / 32)."""
    scales = parts["_scale"]
    shape = *values.shape[:-1], 2 * values.shape[-1]
    if scales.type == "U8" and len(parts) == 1:
        if scales.shape != (*shape[:-1], shape[-1] // MXFP4.values):
            raise _unfit(values, scales, f"U8 for each {MXFP4.values} values are")
        return _encoded(values, MXFP4, shape, _beside(scales))
    of_all = parts.get("_scale_2", parts.get("_global_scale"))
    if of_all is None or of_all.type != "F32" or of_all.nbytes != 4:
        raise _unfit(values, scales, "and an F32 beside them that is the scale of all are")
    if _scale_size(values, shape, scales, 16, 16) != 16:
        raise _unfit(values, scales, "one for each 16 values are")
    return _encoded(values, fp4(scales.type, "_global_scale" in parts), shape, _beside(scales), _beside(of_all, each=0))


def scaled(values: TensorInfo, scales: TensorInfo) -> TensorInfo:
    """A tensor of GGUF's NVFP4 with a scale, or one for each of its experts, that stands beside it."""
    experts = values.shape[0] if len(values.shape) == 3 else 1
    if values.type != "NVFP4" or scales.type != "F32" or scales.shape != (experts,):
        raise UnsupportedError(
            f"{scales.file}: {scales.name:.200} is {scales.type} {list(scales.shape)} beside {values.type} "
            f"{list(values.shape)}; a scale of a tensor is read beside NVFP4, F32 of ({experts},)"
        )
    side = Side(scales.file, scales.offset, 4, each=0, of_expert=1 if len(values.shape) == 3 else 0)
    return _encoded(values, NVFP4_SCALED, values.shape, side)


def _fp8(values: TensorInfo, parts: Parts, method: Mapping[str, Any]) -> TensorInfo:
    """Values (..., rows, k) and a scale for each block of them, each row, or all."""
    (scales,) = parts.values()
    *experts, rows, k = values.shape if len(values.shape) in (2, 3) else (0, 0)
    height, width = _block_size(method)
    own = scales.nbytes // max(1, math.prod(scales.shape))
    *of_experts, high, wide = scales.shape if len(scales.shape) > 1 else (*experts, scales.nbytes // own, 1)
    each, size = _values_a_scale(rows, high, height), _values_a_scale(k, wide, width)
    if scales.type not in NUMBERS or of_experts != experts or not each or not size:
        raise _unfit(values, scales, f"one for each {height} rows and {width} values, each row or all are")
    if wide > 1 and size % 64:
        raise UnsupportedError(f"{values.file}: {values.name:.200} has a scale for each {size} values; FP8 is read "
                               "where 64 divides that. Use the unquantised checkpoint or a GGUF file")  # fmt: skip
    side = Side(scales.file, scales.offset, wide * own, each, of_expert=high if experts else 0)
    return _encoded(values, fp8(scales.type, size), values.shape, side)


def _block_size(method: Mapping[str, Any]) -> tuple[int, int]:
    """(rows, values of a row) that have a scale in common, where there are several of both."""
    given = method.get("weight_block_size")
    if isinstance(given, list) and len(given) == 2 and all(type(size) is int and size > 0 for size in given):
        return given[0], given[1]
    return 128, 128


def _packed_integers(values: TensorInfo, parts: Parts, method: Mapping[str, Any]) -> TensorInfo:
    """Words (rows, k * bits / 32) of integers plus 8 or 128, scales (rows, groups), zeros (rows / 8, groups)."""
    scales, zeros, bits = parts["_scale"], parts.get("_zero_point"), _bits(method, values)
    *rows, words = values.shape
    shape = *rows, words * 32 // bits
    size = _scale_size(values, shape, scales, 32, _group(method))
    if "_g_idx" in parts:
        raise UnsupportedError(f"{values.file}: {values.name:.200} has groups in an order of their own (actorder), "
                               "which is not read; use another quantisation")  # fmt: skip
    if zeros is None:
        return _encoded(values, integers(bits, scales.type, size), shape, _beside(scales))
    if bits != 4 or zeros.type != "I32" or zeros.shape != (-(-rows[-1] // 8), scales.shape[-1]):
        raise _unfit(values, zeros, "zeros of four bits, I32 of (rows / 8, groups), are")
    return _encoded(
        values, integers(bits, scales.type, size, zeros=True), shape, _beside(scales), _beside(zeros, each=8)
    )


def _bits(method: Mapping[str, Any], values: TensorInfo) -> int:
    """How many an integer has, by the configuration."""
    found = _said(method, "num_bits") | _said(method, "bits")
    if len(found) != 1 or not found <= {4, 8}:
        names = ", ".join(map(str, sorted(found, key=str))) or "unknown"
        raise UnsupportedError(f"{values.file}: {values.name:.200} has integers of {names:.80} bits; 4 and 8 are read")
    return int(*found)


def _group(method: Mapping[str, Any]) -> int | None:
    """How many values have a scale in common, where the configuration says it for all."""
    sizes = _said(method, "group_size")
    (size,) = sizes if len(sizes) == 1 else (None,)
    return size if type(size) is int and size > 0 else None


def _said(method: Mapping[str, Any], field: str) -> set[Any]:
    """What quantization_config says of the weights, once or for each of its groups."""
    groups = method.get("config_groups")
    of_groups = groups.values() if isinstance(groups, dict) else [{"weights": method}]
    weights = [group.get("weights") for group in of_groups if isinstance(group, dict)]
    return {each[field] for each in weights if isinstance(each, dict) and isinstance(each.get(field), int | str)}


def _plain_integers(values: TensorInfo, parts: Parts, method: Mapping[str, Any]) -> TensorInfo:
    """Signed bytes (rows, k) and scales (rows, groups)."""
    size = _scale_size(values, values.shape, parts["_scale"], 32, _group(method))
    return _encoded(
        values, integers(8, parts["_scale"].type, size, signed=True), values.shape, _beside(parts["_scale"])
    )


def _transposed_integers(values: TensorInfo, parts: Parts, method: Mapping[str, Any]) -> TensorInfo:
    """AutoGPTQ's words (k / 8, rows) or AutoAWQ's (k, rows / 8); scales (groups, rows), zeros (groups, rows / 8)."""
    scales, zeros = parts[".scales"], parts[".qzeros"]
    gptq = method.get("quant_method") == "gptq"
    if _bits(method, values) != 4 or (not gptq and str(method.get("version", "gemm")).lower() != "gemm"):
        raise UnsupportedError(
            f"{values.file}: of {method.get('quant_method')} 4 bits, of AWQ the version GEMM are read"
        )
    high, wide = values.shape if len(values.shape) == 2 else (0, 0)
    k, rows = (8 * high, wide) if gptq else (high, 8 * wide)
    size = _values_a_scale(k, scales.shape[0] if len(scales.shape) == 2 else 0, _group(method) or 128)
    if (
        not size
        or size % 32
        or rows % 8
        or scales.type != "F16"
        or scales.shape != (-(-k // size), rows)
        or (zeros.type != "I32" or zeros.shape != (scales.shape[0], rows // 8))
    ):
        raise _unfit(values, scales, "F16 of (groups of 32 or more, rows) and zeros, I32 of (groups, rows / 8), are")
    more = 1 if gptq and method.get("checkpoint_format") != "gptq_v2" else 0
    form = Packed(rows, k, size, gptq, more, symmetric=gptq and method.get("sym") is True)
    sides = [
        _beside(side, each=0) for side in (values, zeros, scales, *(parts[end] for end in (".g_idx",) if end in parts))
    ]
    return _encoded(values, packed(form), (rows, k), *sides)


_NONE: Final[frozenset[str]] = frozenset()
FORMATS: Final = (
    Format("_blocks", "U8", frozenset({"_scales"}), _NONE, _mxfp4),
    Format("", "F8_E4M3", frozenset({"_scale_inv"}), _NONE, _fp8),
    Format("", "F8_E4M3", frozenset({"_scale"}), _NONE, _fp8),
    Format("", "U8", frozenset({"_scale", "_scale_2"}), _NONE, _packed_floats),
    Format("_packed", "U8", frozenset({"_scale"}), frozenset({"_global_scale"}), _packed_floats),
    Format("_packed", "I32", frozenset({"_scale"}), frozenset({"_shape", "_zero_point", "_g_idx"}), _packed_integers),
    Format("", "I8", frozenset({"_scale"}), _NONE, _plain_integers),
    Format(".qweight", "I32", frozenset({".qzeros", ".scales"}), frozenset({".g_idx"}), _transposed_integers),
)
