"""The families that are run, and what opens a checkpoint of any of them."""

from __future__ import annotations

from pathlib import Path

from colibri.models import (
    deepseek2,
    deepspeed_moe,
    ernie4_5_moe,
    gemma4,
    glm4_moe,
    gpt_oss,
    granite_moe,
    lfm2_moe,
    minimax_m2,
    mixtral,
    nemotron_h,
    olmoe,
    qwen2_moe,
    qwen3_moe,
    qwen3_next,
)
from colibri.ops import BLOCK_TYPES
from colibri.spec import ModelSpec
from colibri.weights import checkpoint as checkpoints
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import Families
from colibri.weights.huggingface import ReadWeights
from colibri.weights.safetensors import read_directory

FAMILIES = Families(
    module.FAMILY
    for module in (
        mixtral,
        qwen2_moe,
        qwen3_moe,
        qwen3_next,
        olmoe,
        gpt_oss,
        glm4_moe,
        minimax_m2,
        granite_moe,
        lfm2_moe,
        nemotron_h,
        deepseek2,
        ernie4_5_moe,
        gemma4,
        deepspeed_moe,
    )
)


def open_checkpoint(
    path: str | Path, accepted: frozenset[str] = frozenset(BLOCK_TYPES), read_weights: ReadWeights = read_directory
) -> Checkpoint:
    """Open a .gguf file, any file of a split, or a directory with config.json and safetensors, of any known family.

    accepted: block types that the caller reads, by default those that the engine runs. read_weights: finds the tensors
    of a directory. Raises FileError, FormatError or UnsupportedError naming the file and the key or tensor at fault.
    """
    return checkpoints.open_checkpoint(path, FAMILIES, accepted, read_weights)


def model_spec(checkpoint: Checkpoint) -> ModelSpec:
    """What the model of a checkpoint is made of."""
    return checkpoint.family.spec(checkpoint)
