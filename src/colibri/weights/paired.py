"""Tensors of Hugging Face directories whose values and scales are several tensors: brought together as one.

Beside the values NAME (or NAME_packed, NAME_blocks) stand NAME_scale, NAME_scale_inv and others; of AutoGPTQ and
AutoAWQ it is NAME.qweight beside NAME.scales. Which format it is, number_formats.py says by their types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from colibri.errors import UnsupportedError
from colibri.weights.metadata import Metadata
from colibri.weights.number_formats import FORMATS, Parts
from colibri.weights.tensor_info import TensorInfo

METHODS: Final = ("mxfp4", "fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "gptq", "awq")
# What a part's name ends in, and what the whole's has there.
_VALUES: Final = {"_blocks": "", "_packed": "", ".qweight": ".weight"}
_SIDES: Final = {
    "_scale": "", "_scales": "", "_scale_inv": "", "_scale_2": "", "_global_scale": "", "_zero_point": "", "_shape": "",
    "_g_idx": "", ".qzeros": ".weight", ".scales": ".weight", ".g_idx": ".weight",
}  # fmt: skip
# Scales of activations and of cached keys and values, which stay floats here.
_UNUSED: Final = re.compile(r".*\.(?:input|output|activation|[qkv])_(?:global_)?(?:scale|zero_point)(?:_ub)?")


def with_sides(tensors: Mapping[str, TensorInfo], config: Metadata) -> dict[str, TensorInfo]:
    """The tensors, those of one name in several parts made one under that name.

    Raises FormatError where parts do not fit together, UnsupportedError for formats that are not read.
    """
    found = config.get("quantization_config")
    method = found if isinstance(found, dict) else {}
    kept = {name: info for name, info in tensors.items() if not _UNUSED.fullmatch(name)}
    values = {name: ("", name) for name in kept}
    values |= {whole: (end, name) for name in kept for end, whole in _wholes(name, _VALUES)}
    sides: dict[str, dict[str, TensorInfo]] = {}
    used = set()
    for name, info in kept.items():
        for end, whole in _wholes(name, _SIDES):
            if whole in values:
                sides.setdefault(whole, {})[end] = info
                used |= {name, values[whole][1]}
    result = {name: info for name, info in kept.items() if name not in used}
    for whole, parts in sides.items():
        end, name = values[whole]
        result[whole] = _joined(whole, end, kept[name], parts, method)
    return result


def _wholes(name: str, ends: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(end, name of the whole) for each of these ends that the name has."""
    return ((end, name.removesuffix(end) + instead) for end, instead in ends.items() if name.endswith(end))


def _joined(name: str, end: str, values: TensorInfo, parts: Parts, method: Mapping[str, Any]) -> TensorInfo:
    for form in FORMATS:
        if (end, values.type) == (form.end, form.type) and form.sides <= parts.keys() <= form.sides | form.more:
            return replace(form.make(values, parts, method), name=name)
    known = "; ".join(f"{form.type} with {', '.join(sorted(form.sides))}" for form in FORMATS)
    raise UnsupportedError(
        f"{values.file}: {values.name:.200} is {values.type} with {', '.join(parts)} beside it; read are {known}"
    )
