"""GGUF files of one expert: blk.<layer>.ffn_{gate,up,down}.<expert>.weight and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import FormatError
from colibri.weights.gguf import GGUFFile, read_gguf
from colibri.weights.tensor_info import TensorInfo

GENERAL_TYPE = "expert"  # what general.type says of such files
_NAME = re.compile(r"blk\.(0|[1-9]\d{0,4})\.ffn_(gate|up|down)\.(0|[1-9]\d{0,4})\.weight")


@dataclass(frozen=True)
class SingleExpert:
    """One expert's matrices, by layer and projection."""

    file: GGUFFile
    expert: int
    layers: Mapping[int, Mapping[str, TensorInfo]]


def read_single_expert(path: Path) -> SingleExpert:
    """Raises FileError, and FormatError for a file that holds anything else."""
    file = read_gguf(path)
    layers: dict[int, dict[str, TensorInfo]] = {}
    numbers: set[int] = set()
    for name, info in file.tensors.items():
        match = _NAME.fullmatch(name)
        if match is None or len(info.shape) != 2:
            found = f"{name} of shape {info.shape}"
            raise FormatError(
                f"{path}: holds {found}; matrices blk.<layer>.ffn_{{gate,up,down}}.<expert>.weight are expected"
            )
        layers.setdefault(int(match[1]), {})[match[2]] = info
        numbers.add(int(match[3]))
    if len(numbers) != 1:
        raise FormatError(f"{path}: holds experts {ranges(numbers)}, expected exactly one")
    return SingleExpert(file, numbers.pop(), layers)


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
