"""ERNIE-4.5 (Baidu, 2025): softmax with a correction bias, renormalised; shared experts; rope on adjacent pairs.

The first layers are dense. What predicts more than one token is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri.models import common
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import (
    ATTENTION,
    COMMON_KEYS,
    DENSE,
    MORE_THAN_ONE,
    NAMED_EXPERTS,
    SHARED_EXPERTS,
    Directory,
    Family,
    Key,
    correction_bias,
)
from colibri.weights.metadata import Metadata

ADJACENT = common.rope_on_adjacent_pairs("attn_q", "attn_k")  # in directories too


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What an ERNIE-4.5 mixture is made of."""
    attention = common.attention(checkpoint)
    routing = common.routing(checkpoint, renormalize=True, sum_least=1e-12)
    moe = common.mixture(checkpoint, routing, common.shared_expert(checkpoint))
    ffn = common.feed_forward(checkpoint, moe)
    return common.model(checkpoint, lambda layer: attention, ffn, common.rms_norm(checkpoint))


def _shared_width(config: Metadata) -> Mapping[str, Any]:
    width = config.integer("moe_num_shared_experts", 2) * config.integer("moe_intermediate_size")
    return {"expert_shared_feed_forward_length": width} if width else {}


def _dense_layers(config: Metadata, layers: int) -> set[int]:
    first, step = config.integer("moe_layer_start_index", 1), config.integer("moe_layer_interval", 1, low=1)
    last = config.integer("moe_layer_end_index", -1, low=-1)
    mixtures = range(first, layers if last < 0 else min(last + 1, layers))
    return {layer for layer in range(layers) if layer not in mixtures or (layer + 1) % step}


FAMILY = Family(
    architectures=("ernie4_5-moe",),
    spec=common.spec_function(spec),
    row_orders=ADJACENT,
    directories={
        "ernie4_5_moe": Directory(
            keys=(
                *COMMON_KEYS,
                Key("feed_forward_length", ("intermediate_size",)),
                Key("expert_feed_forward_length", ("moe_intermediate_size",)),
                Key("expert_shared_count", ("moe_num_shared_experts",), default=2),
                Key("leading_dense_block_count", ("moe_layer_start_index",), default=1),
                Key("interleave_moe_layer_step", ("moe_layer_interval",), default=1),
            ),
            more_keys=_shared_width,
            row_orders=ADJACENT,
            layer=ATTENTION | DENSE | SHARED_EXPERTS | {"mlp.gate": "ffn_gate_inp"},
            views=dict.fromkeys(
                ("mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"),
                correction_bias,
            ),
            experts=NAMED_EXPERTS,
            theta=5e5,
            skipped={r"model\.mtp_.*": MORE_THAN_ONE},
            expects={"hidden_act": ("silu",), "use_bias": (False,), "moe_norm_min": (1e-12,)},
            dense_layers=_dense_layers,
        )
    },
)
