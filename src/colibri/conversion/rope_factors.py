"""The table by which GGUF files express Llama 3's scaling of rope: one divisor for each pair of a head.

Source: the llama3 rule of transformers' modeling_rope_utils, as llama.cpp's converter tabulates it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from colibri.weights.checkpoint import Checkpoint

NAME: Final = "rope_freqs.weight"


def rope_factors(checkpoint: Checkpoint) -> npt.NDArray[np.float32] | None:
    """(rotary / 2,) divisors of the frequencies; None for any other scaling, or where the checkpoint has the table."""
    metadata, key = checkpoint.metadata, checkpoint.key
    if NAME in checkpoint.tensors or metadata.get(key("rope.scaling.type")) != "llama3":
        return None
    rotary = metadata.integer(key("rope.dimension_count"), low=2)
    factor = metadata.number(key("rope.scaling.factor"))
    low = metadata.number(key("rope.scaling.low_freq_factor"))
    high = metadata.number(key("rope.scaling.high_freq_factor"))
    original = metadata.integer(key("rope.scaling.original_context_length"), low=1)
    frequencies = metadata.number(key("rope.freq_base")) ** (-np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    turns = original * frequencies / (2 * math.pi)  # within the original context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def without_scaling(metadata: Mapping[str, object]) -> dict[str, object]:
    """Metadata that leaves the scaling to the table."""
    return {key: value for key, value in metadata.items() if not re.fullmatch(r"\w+\.rope\.scaling\..*", key)}
