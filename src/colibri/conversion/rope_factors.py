"""The table by which GGUF files express some scalings of rope: one divisor for each pair of a head.

Source: the llama3 and proportional rules of transformers' modeling_rope_utils, as llama.cpp's converter tabulates them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from colibri.weights.checkpoint import Checkpoint

NAME: Final = "rope_freqs.weight"
NOT_TURNED: Final = 1e30


def rope_factors(checkpoint: Checkpoint) -> npt.NDArray[np.float32] | None:
    """(rotary / 2,) divisors of the frequencies; None for any other scaling, or where the checkpoint has the table."""
    metadata, key = checkpoint.metadata, checkpoint.key
    table = _TABLES.get(metadata.text(key("rope.scaling.type"), "none"))
    if NAME in checkpoint.tensors or table is None:
        return None
    rotary, factor = metadata.integer(key("rope.dimension_count"), low=2), metadata.number(key("rope.scaling.factor"))
    return table(checkpoint, rotary, factor).astype(np.float32)


def _llama3(checkpoint: Checkpoint, rotary: int, factor: float) -> npt.NDArray[np.float64]:
    metadata, key = checkpoint.metadata, checkpoint.key
    low = metadata.number(key("rope.scaling.low_freq_factor"))
    high = metadata.number(key("rope.scaling.high_freq_factor"))
    original = metadata.integer(key("rope.scaling.original_context_length"), low=1)
    frequencies = metadata.number(key("rope.freq_base")) ** (-np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    turns = original * frequencies / (2 * math.pi)  # within the original context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _proportional(checkpoint: Checkpoint, rotary: int, factor: float) -> npt.NDArray[np.float64]:
    turning = checkpoint.metadata.integer(checkpoint.key("rope.scaling.turning"), high=rotary)
    return np.where(np.arange(rotary // 2) < turning // 2, factor, NOT_TURNED)


_TABLES: Final[dict[str, Callable[[Checkpoint, int, float], npt.NDArray[np.float64]]]] = {
    "llama3": _llama3,
    "proportional": _proportional,
}


def without_scaling(metadata: Mapping[str, object]) -> dict[str, object]:
    """Metadata that leaves the scaling to the table."""
    return {key: value for key, value in metadata.items() if not re.fullmatch(r"\w+\.rope\.scaling\..*", key)}
