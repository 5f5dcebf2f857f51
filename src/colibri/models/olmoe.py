"""OLMoE (arXiv 2409.02060): softmax over all experts, the best k not renormalised; q and k normed as a whole."""

from __future__ import annotations

from colibri.config import ModelConfig
from colibri.models.metadata import decoder_config
from colibri.weights.checkpoint import Checkpoint

ARCHITECTURE = "olmoe"


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of an OLMoE checkpoint. Some have queries, keys and values clipped (clip_qkv)."""
    clip = checkpoint.metadata.number("olmoe.attention.clamp_kqv", 0.0)
    return decoder_config(checkpoint, renormalize=False, qk_norm="full", clip_qkv=clip or None)
