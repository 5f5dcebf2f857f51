"""What a path in the cache of huggingface_hub is called by people."""

from __future__ import annotations

import itertools
from pathlib import Path


def repository_name(path: Path) -> str | None:
    """`org/name` of models--org--name/snapshots/COMMIT, or of what lies in it; None for any other path."""
    parts = path.absolute().parts
    if "snapshots" not in parts:
        parts = path.resolve().parts
    for folder, snapshots in itertools.pairwise(parts):
        kind, _, name = folder.partition("--")
        if snapshots == "snapshots" and kind == "models" and name:
            return name.replace("--", "/", 1)
    return None
