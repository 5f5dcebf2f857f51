"""OLMoE (arXiv 2409.02060): softmax over all experts, the best k not renormalised; q and k normed as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri.errors import UnsupportedError
from colibri.models import common
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import (
    ATTENTION,
    COMMON_KEYS,
    NAMED_EXPERTS,
    Directory,
    Family,
    Key,
    PreTokenizers,
    one_width,
)
from colibri.weights.metadata import Metadata


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What an OLMoE model is made of. Some have queries, keys and values clipped (clip_qkv)."""
    clip = checkpoint.metadata.number(checkpoint.key("attention.clamp_kqv"), 0.0)
    attention = common.attention(checkpoint, qk_norm="full", clip=clip or None)
    moe = common.mixture(checkpoint, common.routing(checkpoint, renormalize=False))
    ffn = common.feed_forward(checkpoint, moe)
    return common.model(checkpoint, lambda layer: attention, ffn, common.rms_norm(checkpoint))


def _more_keys(config: Metadata) -> Mapping[str, Any]:
    if config.number("clip_qkv", None) == 0:
        raise UnsupportedError(f"{config.source}: clip_qkv is 0, which leaves nothing of queries, keys and values")
    return {}


FAMILY = Family(
    architectures=("olmoe",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"olmo"})),
    never_tied=True,
    directories={
        "olmoe": Directory(
            keys=(
                *COMMON_KEYS,
                *one_width("intermediate_size"),
                Key("attention.clamp_kqv", ("clip_qkv",), "number", None),
                Key("expert_weights_norm", ("norm_topk_prob",), "flag", False),
            ),
            more_keys=_more_keys,
            layer=ATTENTION | {"mlp.gate": "ffn_gate_inp"},
            experts=NAMED_EXPERTS,
            theta=1e4,
            expects={"hidden_act": ("silu",)},
        )
    },
)
