"""GPT with mixtures as Megatron-DeepSpeed trains it (arXiv 2201.05596): one expert a token, or two renormalised.

The classic form has LayerNorm, learned positions and experts without a gate; newer options (rotary positions, RMSNorm,
SwiGLU) are those of the metadata. A residual mixture has a shared expert. Mixtures may be in every second layer only.
"""

from __future__ import annotations

from colibri.config import ModelConfig
from colibri.models.metadata import decoder_config
from colibri.weights.checkpoint import Checkpoint

ARCHITECTURE = "deepspeedmoe"


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of a converted checkpoint; the keys that GGUF has no word for are ours."""
    metadata, key = checkpoint.metadata, checkpoint.key
    return decoder_config(
        checkpoint,
        rope=key("rope.dimension_count") in metadata,
        norm="layer" if key("attention.layer_norm_epsilon") in metadata else "rms",
        activation=metadata.text(key("feed_forward_activation")),
        learned_positions="position_embd.weight" in checkpoint.tensors,
        shared_expert=metadata.flag(key("expert_residual"), False),
        renormalize=metadata.integer(key("expert_used_count")) > 1,
    )
