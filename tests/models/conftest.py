"""The golden checkpoints: where they are and what transformers computed for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colibri
from colibri import ops
from colibri.engine.model import Model

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name != "families")
DIRECTORIES = sorted(file.parent for file in GOLDEN.rglob("config.json"))  # of all families


def files_of(name: str) -> list[Path]:
    """Every file or directory that holds this case's weights."""
    directory = GOLDEN / name
    whole = [directory] if (directory / "config.json").exists() else []
    return [*whole, *sorted(directory.glob("*.gguf"))]


ALL_FILES = [pytest.param(path, id=str(path.relative_to(GOLDEN))) for name in NAMES for path in files_of(name)]


def golden_of(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """ids, logits, chosen, logits_half, long_ids, long_logits of the case that a checkpoint belongs to."""
    directory = path if path.is_dir() else path.parent
    with np.load(directory / "golden.npz") as arrays:
        return dict(arrays)


def distance(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """The largest difference, as a part of the range of the logits."""
    return float(np.abs(found - expected).max() / np.ptp(expected))


@pytest.fixture
def load() -> Iterator[Callable[..., Model]]:
    """colibri.load that closes what it opened; the number of threads comes back to what it was."""
    opened: list[Model] = []
    threads = ops.threads()

    def open_model(path: Path, **options: Any) -> Model:
        opened.append(colibri.load(path, **options))
        return opened[-1]

    yield open_model
    for model in opened:
        model.close()
    ops.set_threads(threads)
