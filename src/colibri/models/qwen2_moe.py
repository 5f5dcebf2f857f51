"""Qwen2-MoE (arXiv 2407.10671): softmax over all experts, the best k not renormalised; a gated shared expert; biases.

Layers without experts (mlp_only_layers, decoder_sparse_step) are those whose tensors are a dense network's.
"""

from __future__ import annotations

from colibri.models import common
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import (
    ATTENTION,
    COMMON_KEYS,
    DENSE,
    NAMED_EXPERTS,
    Directory,
    Family,
    Key,
    PreTokenizers,
    sparse_step,
)


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a Qwen2-MoE model is made of. Early GGUF files leave out the width of the shared expert."""
    attention = common.attention(checkpoint)
    width = checkpoint.metadata.integer(checkpoint.key("feed_forward_length"), 0)
    shared = common.shared_expert(checkpoint, "sigmoid", width)
    moe = common.mixture(checkpoint, common.routing(checkpoint), shared)
    ffn = common.feed_forward(checkpoint, moe)
    return common.model(checkpoint, lambda layer: attention, ffn, common.rms_norm(checkpoint))


FAMILY = Family(
    architectures=("qwen2moe",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"qwen2"})),
    directories={
        "qwen2_moe": Directory(
            keys=(
                *COMMON_KEYS,
                Key("feed_forward_length", ("intermediate_size",)),
                Key("expert_feed_forward_length", ("moe_intermediate_size",)),
                Key("expert_shared_feed_forward_length", ("shared_expert_intermediate_size",)),
                Key("expert_weights_norm", ("norm_topk_prob",), "flag", False),
            ),
            layer=ATTENTION
            | DENSE
            | {
                "mlp.gate": "ffn_gate_inp",
                "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
                "mlp.shared_expert.up_proj": "ffn_up_shexp",
                "mlp.shared_expert.down_proj": "ffn_down_shexp",
                "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
            },
            experts=NAMED_EXPERTS,
            theta=1e4,
            expects={"hidden_act": ("silu",), "use_sliding_window": (False,)},
            dense_layers=sparse_step,
        )
    },
)
