"""Which models the files of a repository are: its GGUF quantisations, whole or split, or a directory of safetensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

SAFETENSORS: Final = "safetensors"
_SPLIT: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_LABEL: Final = re.compile(
    r"(?:^|(?<=[-._/ ]))((?:UD-)?(?:I?Q\d(?:_\w+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32))(?=[-.]|$)",
    re.IGNORECASE,
)
_NO_MODEL: Final = re.compile(r"mmproj|imatrix|(^|[-._])lora([-._]|$)", re.IGNORECASE)
# What a directory needs; weights in other formats, pictures and notes stay where they are.
_DIRECTORY: Final = re.compile(r"[^/]+\.(?:json|jinja|safetensors)|additional_chat_templates/[^/]+\.jinja")
_OTHER_WEIGHTS: Final = re.compile(r"(?:consolidated|adapter)[^/]*\.safetensors")


@dataclass(frozen=True)
class Variant:
    """One model of a repository: files in order, the first being what is opened, or all of a directory."""

    label: str
    files: tuple[str, ...]
    nbytes: int

    @property
    def bits(self) -> int:
        """Of a weight, as its label has it: 4 of Q4_K_M and MXFP4; 16 where it tells nothing."""
        digits = re.search(r"\d+", self.label)
        return int(digits[0]) if digits and self.label != SAFETENSORS else 16


def variants_of(files: Mapping[str, int]) -> list[Variant]:
    """The models that are whole among these files (names with their sizes), the largest first."""
    groups: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    for name in files:
        if not name.lower().endswith(".gguf") or _NO_MODEL.search(PurePosixPath(name).name):
            continue
        match = _SPLIT.fullmatch(name)
        stem = match["stem"] if match else name[: -len(".gguf")]
        groups.setdefault(stem, {})[int(match["number"]) if match else 1] = name
        counts[stem] = max(counts.get(stem, 1), int(match["count"]) if match else 1)
    found = [
        _variant(stem, [parts[number] for number in sorted(parts)], files)
        for stem, parts in groups.items()
        if sorted(parts) == list(range(1, counts[stem] + 1))
    ]
    return sorted([*_told_apart(found), *_directory(files)], key=lambda variant: -variant.nbytes)


def _variant(stem: str, parts: list[str], files: Mapping[str, int]) -> Variant:
    return Variant(_label(stem), tuple(parts), sum(files[name] for name in parts))


def _label(stem: str) -> str:
    labels = _LABEL.findall(PurePosixPath(stem).name) or _LABEL.findall(str(PurePosixPath(stem).parent))
    return labels[-1].upper() if labels else PurePosixPath(stem).name


def _told_apart(variants: list[Variant]) -> list[Variant]:
    """Where two have one label, the names of their files are the labels."""
    counts = Counter(variant.label for variant in variants)
    return [
        variant
        if counts[variant.label] == 1
        else replace(variant, label=PurePosixPath(variant.files[0]).name.removesuffix(".gguf"))
        for variant in variants
    ]


def _directory(files: Mapping[str, int]) -> list[Variant]:
    names = tuple(sorted(name for name in files if _DIRECTORY.fullmatch(name) and not _OTHER_WEIGHTS.fullmatch(name)))
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        return []
    return [Variant(SAFETENSORS, names, sum(files[name] for name in names))]
