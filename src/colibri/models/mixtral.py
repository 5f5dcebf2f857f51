"""Mixtral (arXiv 2401.04088): softmax over all experts, the best two renormalised; grouped queries.

GGUF files of Mixtral say "llama", as its dense ancestor does; what makes it a mixture is expert_count.
"""

from __future__ import annotations

from colibri.models import common
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import ATTENTION, COMMON_KEYS, Directory, Family, Key, PreTokenizers, one_width


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a Mixtral model is made of."""
    attention = common.attention(checkpoint)
    moe = common.mixture(checkpoint, common.routing(checkpoint, renormalize=True))
    ffn = common.feed_forward(checkpoint, moe)
    return common.model(checkpoint, lambda layer: attention, ffn, common.rms_norm(checkpoint))


FAMILY = Family(
    architectures=("llama",),
    spec=common.spec_function(spec),
    row_orders=common.rope_on_adjacent_pairs("attn_q", "attn_k"),
    pre_tokenizers=PreTokenizers(
        frozenset({"llama-bpe", "llama3", "llama-v3", "smaug-bpe", "tekken", "smollm", "falcon3", "pixtral"}),
        others=True,  # of fine-tunes
    ),
    directories={
        "mixtral": Directory(
            keys=(
                *COMMON_KEYS,
                *one_width("intermediate_size"),
                Key("attention.sliding_window", ("sliding_window",), default=None),
            ),
            layer=ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp"},
            experts_modules=("block_sparse_moe.experts", "mlp.experts"),  # the latter in transformers 5
            experts={"w1": "gate", "w3": "up", "w2": "down"},
            theta=1e6,
            always={"expert_weights_norm": True},
            expects={"hidden_act": ("silu",)},
        )
    },
)
