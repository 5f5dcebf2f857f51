"""Mixtral (arXiv 2401.04088): softmax over all experts, the best two renormalised; grouped queries.

GGUF files of Mixtral say "llama", as its dense ancestor does; what makes it a mixture is expert_count.
"""

from __future__ import annotations

from colibri.config import ModelConfig
from colibri.errors import UnsupportedError
from colibri.models.metadata import decoder_config
from colibri.weights.checkpoint import Checkpoint

ARCHITECTURE = "llama"


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of a Mixtral checkpoint; UnsupportedError for a llama without experts."""
    if not checkpoint.metadata.integer("llama.expert_count", 0):
        raise UnsupportedError(
            f"{checkpoint.path}: a dense llama model (llama.expert_count is 0 or missing); "
            "colibri runs Mixture-of-Experts models"
        )
    return decoder_config(checkpoint, renormalize=True)
