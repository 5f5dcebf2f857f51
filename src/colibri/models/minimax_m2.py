"""MiniMax-M2 (2025): sigmoid with a correction bias, renormalised; q and k normed as a whole; partial rope."""

from __future__ import annotations

from colibri.models import common
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import ATTENTION, COMMON_KEYS, Directory, Family, PreTokenizers, correction_bias, one_width


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a MiniMax-M2 model is made of."""
    attention = common.attention(checkpoint, qk_norm="full")
    moe = common.mixture(checkpoint, common.routing(checkpoint, renormalize=True, score="sigmoid"))
    ffn = common.feed_forward(checkpoint, moe)
    return common.model(checkpoint, lambda layer: attention, ffn, common.rms_norm(checkpoint))


FAMILY = Family(
    architectures=("minimax-m2",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"minimax-m2"})),
    directories={
        "minimax_m2": Directory(
            keys=(*COMMON_KEYS, *one_width("intermediate_size")),
            always={"expert_gating_func": 2},
            layer=ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp"},
            views=dict.fromkeys(
                ("block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"), correction_bias
            ),
            experts_modules=("block_sparse_moe.experts", "mlp.experts"),  # the latter in transformers 5
            experts={"w1": "gate", "w3": "up", "w2": "down"},
            theta=5e6,
            expects={"hidden_act": ("silu",), "scoring_func": ("sigmoid",), "use_qk_norm": (True,)},
        )
    },
)
