"""Mixtral (arXiv 2401.04088): softmax over all experts, the best two renormalised; grouped queries.

GGUF files of Mixtral say "llama", as its dense ancestor does; what makes it a mixture is expert_count.
"""

from __future__ import annotations

from colibri.config import ModelConfig
from colibri.models.metadata import decoder_config
from colibri.weights.checkpoint import Checkpoint

ARCHITECTURE = "llama"


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of a Mixtral checkpoint."""
    return decoder_config(checkpoint, renormalize=True)
