"""The step loop, sequences and sampling; `load` and `infer` are the ways in."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from colibri.config import Precision
from colibri.engine.loading import load
from colibri.engine.model import Model

__all__ = ["Model", "infer", "load"]


def infer(
    path: str | os.PathLike[str] | None, ids: Sequence[int], *, precision: Precision = "fast"
) -> NDArray[np.float32]:
    """Load a model, give the logits of every position, float32 (len(ids), vocab), and close it."""
    with load(path, context=None, precision=precision) as model:
        return model.infer(ids)
