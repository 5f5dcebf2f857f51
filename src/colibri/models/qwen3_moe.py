"""Qwen3-MoE (arXiv 2505.09388): softmax over all experts, the best k renormalised; each head's queries and keys normed.

Layers without experts (mlp_only_layers, decoder_sparse_step) are those whose tensors are a dense network's.
"""

from __future__ import annotations

from colibri.config import ModelConfig
from colibri.models.metadata import decoder_config
from colibri.weights.checkpoint import Checkpoint

ARCHITECTURE = "qwen3moe"


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of a Qwen3-MoE checkpoint. Released models renormalise, and GGUF files do not say so."""
    return decoder_config(checkpoint, renormalize=True, qk_norm="head")
