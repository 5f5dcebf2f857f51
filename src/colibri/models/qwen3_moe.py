"""Qwen3-MoE (arXiv 2505.09388): softmax over all experts, the best k renormalised; each head's queries and keys normed.

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
    """What a Qwen3-MoE model is made of. Released models renormalise, and GGUF files do not say so."""
    attention = common.attention(checkpoint, qk_norm="head")
    moe = common.mixture(checkpoint, common.routing(checkpoint, renormalize=True))
    ffn = common.feed_forward(checkpoint, moe)
    return common.model(checkpoint, lambda layer: attention, ffn, common.rms_norm(checkpoint))


FAMILY = Family(
    architectures=("qwen3moe",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"qwen2"})),
    directories={
        "qwen3_moe": Directory(
            keys=(
                *COMMON_KEYS,
                Key("feed_forward_length", ("intermediate_size",)),
                Key("expert_feed_forward_length", ("moe_intermediate_size",)),
                Key("expert_weights_norm", ("norm_topk_prob",), "flag", False),
            ),
            layer=ATTENTION | DENSE | {"mlp.gate": "ffn_gate_inp"},
            experts=NAMED_EXPERTS,
            theta=1e4,
            expects={"hidden_act": ("silu",), "use_sliding_window": (False,)},
            dense_layers=sparse_step,
        )
    },
)
