"""Tensors of Hugging Face directories whose values and scales are several tensors: brought together as one.

Beside the values NAME (or NAME_packed, NAME_blocks) stand NAME_scale, NAME_scale_inv and others: see _SIDES. Their
types say which format it is, whatever the configuration calls the method.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from colibri.errors import FormatError, UnsupportedError
from colibri.weights.block_types import row_bytes
from colibri.weights.encodings import MXFP4, NUMBERS, Encoding, fp8
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import Side, TensorInfo

METHODS: Final = ("mxfp4", "fp8", "fbgemm_fp8", "compressed-tensors", "modelopt")
_SIDES: Final = ("_scale_inv", "_scales", "_scale")
_VALUES: Final = ("_blocks", "_packed", "")
# Scales of activations and of cached keys and values, which stay floats here.
_UNUSED: Final = re.compile(r".*\.(?:input|output|activation|[qkv])_(?:global_)?scale(?:_ub)?")

Parts = Mapping[str, TensorInfo]


def with_sides(tensors: Mapping[str, TensorInfo], config: Metadata) -> dict[str, TensorInfo]:
    """The tensors, those of one name in several parts made one under that name.

    Raises FormatError where a part is missing or they do not fit together, UnsupportedError for formats not read.
    """
    result = {name: info for name, info in tensors.items() if not _UNUSED.fullmatch(name)}
    groups: dict[str, dict[str, TensorInfo]] = {}
    for name in tensors:
        suffix = next((suffix for suffix in _SIDES if name.endswith(suffix)), None)
        if suffix is not None and name in result:
            groups.setdefault(name.removesuffix(suffix), {})[suffix] = result.pop(name)
    for name, info in tensors.items():
        if name.endswith("_blocks") and name.removesuffix("_blocks") not in groups:
            raise FormatError(f"{info.file}: {name:.200} has no {name.removesuffix('_blocks'):.200}_scales beside it")
    for name, sides in groups.items():
        found = next((name + suffix for suffix in _VALUES if name + suffix in result), None)
        if found is None:
            side = next(iter(sides.values()))
            raise FormatError(f"{side.file}: {side.name:.200} has no {name:.200} beside it")
        result[name] = _joined(name, result.pop(found), sides, config)
    return result


def _joined(name: str, values: TensorInfo, sides: Parts, config: Metadata) -> TensorInfo:
    kind = values.type, *sides
    for known, make in _FORMATS.items():
        if kind == known:
            return replace(make(values, *sides.values(), config), name=name)
    formats = "; ".join(" with ".join(known) for known in _FORMATS)
    found = f"{values.file}: {values.name:.200} is {values.type} with {', '.join(sides)} beside it"
    raise UnsupportedError(f"{found}; read are {formats}")


def _unfit(values: TensorInfo, scales: TensorInfo, expected: str) -> FormatError:
    return FormatError(
        f"{values.file}: {values.name:.200} is {values.type} {list(values.shape)} with {scales.type} "
        f"{list(scales.shape)} as its scales; {expected} expected"
    )


def _encoded(values: TensorInfo, encoding: Encoding, shape: tuple[int, ...], *sides: Side) -> TensorInfo:
    nbytes = math.prod(shape[:-1]) * row_bytes(encoding.type, shape[-1])
    return replace(values, type=encoding.type, shape=shape, nbytes=nbytes, encoding=encoding, sides=sides)


def _mxfp4(values: TensorInfo, scales: TensorInfo, config: Metadata) -> TensorInfo:
    """Values (..., rows, groups, 16) and scales (..., rows, groups)."""
    if scales.type != "U8" or len(values.shape) not in (3, 4) or values.shape != (*scales.shape, MXFP4.bytes):
        raise _unfit(values, scales, f"U8 of (rows, groups, {MXFP4.bytes}) and (rows, groups) are")
    side = Side(
        scales.file, scales.offset, scales.shape[-1], of_expert=scales.shape[1] if len(scales.shape) == 3 else 0
    )
    return _encoded(values, MXFP4, (*scales.shape[:-1], scales.shape[-1] * MXFP4.values), side)


def _fp8(values: TensorInfo, scales: TensorInfo, config: Metadata) -> TensorInfo:
    """Values (..., rows, k) and a scale for each block of them, each row, or all."""
    *experts, rows, k = values.shape if len(values.shape) in (2, 3) else (0, 0)
    height, width = _block_size(config)
    *of_experts, high, wide = scales.shape if len(scales.shape) > 1 else (*experts, scales.nbytes // _bytes(scales), 1)
    each, values_a_scale = _values_a_scale(rows, high, height), _values_a_scale(k, wide, width)
    if scales.type not in NUMBERS or of_experts != experts or not each or not values_a_scale:
        raise _unfit(values, scales, f"one for each {height} rows and {width} values, each row or all are")
    if k % 64 or (wide > 1 and values_a_scale % 64):
        found = f"{values.file}: {values.name:.200} has rows of {k} values with a scale for each {values_a_scale}"
        raise UnsupportedError(
            f"{found}; FP8 is read where 64 divides both. Use the unquantised checkpoint or a GGUF file"
        )
    side = Side(scales.file, scales.offset, wide * _bytes(scales), each, of_expert=high if experts else 0)
    return _encoded(values, fp8(scales.type, -(-values_a_scale // 64) * 64), values.shape, side)


def _bytes(scales: TensorInfo) -> int:
    """Of one of them."""
    return scales.nbytes // max(1, math.prod(scales.shape))


def _block_size(config: Metadata) -> tuple[int, int]:
    """(rows, values of a row) that have a scale in common, where there are several of both."""
    found = config.get("quantization_config")
    given = found.get("weight_block_size") if isinstance(found, dict) else None
    if isinstance(given, list) and len(given) == 2 and all(type(size) is int and size > 0 for size in given):
        return given[0], given[1]
    return 128, 128


def _values_a_scale(values: int, scales: int, usual: int) -> int:
    """How many values have a scale in common, where so many are in a line; 0 where that does not go."""
    if scales < 1 or values < 1:
        return 0
    if -(-values // usual) == scales:
        return usual
    return values // scales if values % scales == 0 else 0


_FORMATS: Final[Mapping[tuple[str, ...], Callable[..., TensorInfo]]] = {
    ("U8", "_scales"): _mxfp4,
    ("F8_E4M3", "_scale_inv"): _fp8,
    ("F8_E4M3", "_scale"): _fp8,
}
