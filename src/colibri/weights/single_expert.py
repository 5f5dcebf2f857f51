"""Files of one expert: GGUF with blk.<layer>.ffn_{gate,up,down}.<expert>.weight and nothing else, or safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import FormatError
from colibri.weights.gguf import read_gguf
from colibri.weights.safetensors import read_file, supported
from colibri.weights.tensor_info import TensorInfo

GENERAL_TYPE = "expert"  # what general.type says of such files
_NAME = re.compile(r"blk\.(?P<layer>0|[1-9]\d{0,4})\.ffn_(?P<part>gate|up|down)\.(?:0|[1-9]\d{0,4})\.weight")
_EXPERT = re.compile(r"\.(\d{1,5})\.weight")
_SAFE_NAME = re.compile(
    r"(?:.*\.)?layers\.(?P<layer>\d{1,5})\.(?:.*\.)?(?P<part>w1|w2|w3|gate_proj|up_proj|down_proj)\.weight"
)
_SAFE_EXPERT = re.compile(r"experts\.(\d{1,5})\.")
_PROJECTION = {"w1": "gate", "w3": "up", "w2": "down"}


@dataclass(frozen=True)
class SingleExpert:
    """One expert's matrices, by layer and projection, and its number, where the tensors' names have one."""

    expert: int | None
    layers: Mapping[int, Mapping[str, TensorInfo]]


def read_single_expert(path: Path) -> SingleExpert:
    """Raises FileError, and FormatError for a file that holds anything else or several experts."""
    safe = path.suffix == ".safetensors"
    name_of, number_of = (_SAFE_NAME, _SAFE_EXPERT) if safe else (_NAME, _EXPERT)
    layers: dict[int, dict[str, TensorInfo]] = {}
    numbers: set[int] = set()
    for name, info in (read_file(path) if safe else read_gguf(path).tensors).items():
        match = name_of.fullmatch(name)
        if match is None or len(info.shape) != 2:
            expected = "layers.<layer>...{w1,w2,w3}" if safe else "blk.<layer>.ffn_{gate,up,down}.<expert>"
            raise FormatError(
                f"{path}: holds {name:.200} of shape {info.shape}; matrices {expected}.weight are expected"
            )
        numbers |= {int(number) for number in number_of.findall(name)}
        parts, projection = layers.setdefault(int(match["layer"]), {}), match["part"].removesuffix("_proj")
        projection = _PROJECTION.get(projection, projection)
        if projection in parts and len(numbers) < 2:
            raise FormatError(f"{path}: holds two {projection} matrices of layer {match['layer']}, expected one expert")
        parts[projection] = supported(info) if safe else info
    if len(numbers) > 1 or not layers:
        raise FormatError(f"{path}: holds experts {ranges(numbers)}, expected exactly one")
    return SingleExpert(next(iter(numbers), None), layers)


def find_single_expert(path: Path) -> SingleExpert | None:
    """The expert in a GGUF file that says that it holds one; None for other files and for directories."""
    if not path.is_file() or read_gguf(path).metadata.get("general.type") != GENERAL_TYPE:
        return None
    return read_single_expert(path)


def ranges(numbers: Iterable[int]) -> str:
    """0-3, 5 for {0, 1, 2, 3, 5}."""
    texts, run = [], [-2, -2]
    for number in [*sorted(numbers), -1]:
        if number == run[1] + 1:
            run[1] = number
            continue
        if run[0] >= 0:
            texts.append(str(run[0]) if run[0] == run[1] else f"{run[0]}-{run[1]}")
        run = [number, number]
    return ", ".join(texts) or "none"
