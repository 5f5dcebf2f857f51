"""GPT with mixtures as Megatron-DeepSpeed trains it (arXiv 2201.05596): one expert a token, or two renormalised.

The classic form has LayerNorm, learned positions and experts without a gate; newer options (rotary positions, RMSNorm,
SwiGLU) are those of the metadata; the keys that GGUF has no word for are ours. A residual mixture has a shared expert.
Mixtures may be in every second layer only.
"""

from __future__ import annotations

from dataclasses import replace

from colibri.models import common
from colibri.spec import ModelSpec, NormSpec, SharedSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import Family


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a converted checkpoint is made of."""
    metadata, key = checkpoint.metadata, checkpoint.key
    eps = key("attention.layer_norm_epsilon")
    norm = NormSpec(eps=metadata.number(eps), kind="layer") if eps in metadata else common.rms_norm(checkpoint)
    turned = key("rope.dimension_count") in metadata
    attention = common.attention(checkpoint) if turned else common.attention(checkpoint, rope=None)
    moe = common.mixture(
        checkpoint,
        common.routing(checkpoint, renormalize=metadata.integer(key("expert_used_count")) > 1),
        activation=metadata.text(key("feed_forward_activation")),
    )
    if metadata.flag(key("expert_residual"), False):
        moe = replace(moe, shared=SharedSpec(network=moe.expert, gate="softmax"))
    learned = "position_embd.weight" in checkpoint.tensors
    ffn = common.feed_forward(checkpoint, moe)
    return common.model(checkpoint, lambda layer: attention, ffn, norm, learned_positions=learned)


FAMILY = Family(architectures=("deepspeedmoe",), spec=common.spec_function(spec))
