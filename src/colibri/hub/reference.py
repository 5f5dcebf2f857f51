"""Names of models on a hub: ORG/NAME, or ORG/NAME:QUANTISATION."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REFERENCE: Final = re.compile(rf"(?P<repo>{_NAME}/{_NAME})(?::(?P<quant>{_NAME}))?")
_FILES: Final = (".gguf", ".safetensors", ".json", ".bin", ".pt")


@dataclass(frozen=True)
class Reference:
    """A repository and, where it was said, which of its quantisations."""

    repo: str
    quant: str | None = None

    def __str__(self) -> str:
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"


def parse(text: str) -> Reference | None:
    """The reference that a text is; None for a path: what is there, lies in a folder that is there, or names a file."""
    match = _REFERENCE.fullmatch(text)
    if match is None or text.endswith(_FILES):
        return None
    if Path(text).exists() or Path(text).parent.is_dir():
        return None
    return Reference(match["repo"], match["quant"])
