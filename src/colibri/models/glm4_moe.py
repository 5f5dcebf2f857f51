"""GLM-4.5, 4.6 and 4.7 (arXiv 2508.06471): sigmoid with a correction bias, a shared expert, half of each head turns.

The first layers are dense; large models norm each head's queries and keys. The layers behind the last, which predict
more than one token, are not used.
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
    SHARED_EXPERTS,
    Directory,
    Family,
    Key,
    PreTokenizers,
    correction_bias,
    first_dense,
)


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a GLM-4.5 model is made of."""
    normed = "blk.0.attn_q_norm.weight" in checkpoint.tensors
    attention = common.attention(checkpoint, qk_norm="head" if normed else "none")
    routing = common.routing(
        checkpoint, renormalize=True, score="sigmoid", sum_added=1e-20, group_score="sum_of_two"
    )
    moe = common.mixture(checkpoint, routing, common.shared_expert(checkpoint))
    return common.model(
        checkpoint, lambda layer: attention, common.feed_forward(checkpoint, moe), common.rms_norm(checkpoint),
        layer={"ffn_norm": "post_attention_norm"},
    )  # fmt: skip


FAMILY = Family(
    architectures=("glm4moe",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"glm4", "chatglm-bpe"})),
    directories={
        "glm4_moe": Directory(
            keys=(
                *COMMON_KEYS,
                Key("feed_forward_length", ("intermediate_size",)),
                Key("expert_feed_forward_length", ("moe_intermediate_size",)),
                Key("expert_shared_count", ("n_shared_experts",), default=1),
                Key("expert_weights_scale", ("routed_scaling_factor",), "number", 1.0),
                Key("expert_weights_norm", ("norm_topk_prob",), "flag", True),
                Key("expert_group_count", ("n_group",), default=1),
                Key("expert_group_used_count", ("topk_group",), default=1),
                Key("leading_dense_block_count", ("first_k_dense_replace",), default=1),
            ),
            always={"expert_gating_func": 2},
            layer=ATTENTION
            | DENSE
            | SHARED_EXPERTS
            | {"post_attention_layernorm": "post_attention_norm", "mlp.gate": "ffn_gate_inp"},
            views={"mlp.gate.e_score_correction_bias": correction_bias},
            experts=NAMED_EXPERTS,
            theta=1e4,
            rotary_part=0.5,
            expects={"hidden_act": ("silu",)},
            dense_layers=first_dense,
        )
    },
)
