"""Tensors of Hugging Face directories whose values and scales are two tensors: brought together as one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from colibri.errors import FormatError
from colibri.weights.block_types import row_bytes
from colibri.weights.encodings import MXFP4, Encoding
from colibri.weights.tensor_info import TensorInfo

# quant_method: the encoding, and what the names of values and scales end in.
ENCODINGS: Final[Mapping[str, tuple[Encoding, str, str]]] = {"mxfp4": (MXFP4, "_blocks", "_scales")}


def with_scales(
    tensors: Mapping[str, TensorInfo], encoding: Encoding, values: str, scales: str
) -> dict[str, TensorInfo]:
    """The tensors, those that end in `values` and `scales` made one under the name before it.

    Values are U8 (..., rows, groups, bytes), scales U8 (..., rows, groups). Raises FormatError where one is missing or
    they do not fit together.
    """
    result = {name: info for name, info in tensors.items() if not name.endswith((values, scales))}
    for name, info in tensors.items():
        if name.endswith(scales) and name.removesuffix(scales) + values not in tensors:
            raise FormatError(f"{info.file}: {name} has no {values} beside it")
        if name.endswith(values):
            result[name.removesuffix(values)] = _pair(info, tensors.get(name.removesuffix(values) + scales), encoding)
    return result


def _pair(values: TensorInfo, scales: TensorInfo | None, encoding: Encoding) -> TensorInfo:
    fits = (
        scales is not None
        and values.type == scales.type == "U8"
        and len(values.shape) in (3, 4)
        and values.shape == (*scales.shape, encoding.bytes)
    )
    if not fits or scales is None:
        found = "nothing" if scales is None else f"{scales.type} {list(scales.shape)}"
        raise FormatError(
            f"{values.file}: {values.name:.200} is {values.type} {list(values.shape)} with {found} as its scales; U8 "
            f"of (rows, groups, {encoding.bytes}) and (rows, groups) are expected"
        )
    shape = *scales.shape[:-1], scales.shape[-1] * encoding.values
    nbytes = math.prod(shape[:-1]) * row_bytes(encoding.type, shape[-1])
    return replace(
        values, type=encoding.type, shape=shape, nbytes=nbytes, encoding=encoding, scales=replace(scales, type="I8")
    )
