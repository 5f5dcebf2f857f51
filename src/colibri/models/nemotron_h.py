"""Nemotron 3 (NVIDIA, 2025): each layer is Mamba2, attention without positions, a mixture or a dense network, one norm.

Networks are relu^2 without a gate; experts of the larger models are narrower than the model (latent). transformers puts
the steps of Mamba2 at time_step_min at least while it reads a prompt, but not after; here they are always.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from colibri.errors import UnsupportedError
from colibri.models import common, mamba2
from colibri.spec import DenseSpec, FeedForward, Mixer, ModelSpec, NormSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import (
    COMMON_KEYS,
    MORE_THAN_ONE,
    Directory,
    Family,
    Key,
    PreTokenizers,
    correction_bias,
)
from colibri.weights.metadata import Metadata

LEAST_STEP: Final = 0.001
NETWORK: Final[dict[str, Any]] = {"activation": "relu2"}
KINDS: Final = {
    **{"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"},
    **{"linear_attention": "mamba", "full_attention": "attention"},
}


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a Nemotron model is made of."""
    metadata, key = checkpoint.metadata, checkpoint.key
    heads, widths = common.kv_heads(checkpoint), common.per_layer(checkpoint, "feed_forward_length")
    routing = common.routing(checkpoint, renormalize=True, score="sigmoid", sum_added=1e-20, group_score="sum_of_two")
    shared = common.shared_expert(checkpoint, gated=False, **NETWORK)
    moe = common.mixture(checkpoint, routing, shared, **NETWORK)

    def mixer(layer: int) -> Mixer | None:
        if heads[layer]:
            return common.attention(checkpoint, kv_heads=heads[layer], rope=None)
        if widths[layer]:
            return None
        return mamba2.spec(checkpoint, least_step=metadata.number(key("ssm.time_step_min"), LEAST_STEP))

    def ffn(layer: int) -> FeedForward | None:
        if checkpoint.is_moe(layer):
            return moe
        return DenseSpec(width=widths[layer], gated=False, **NETWORK) if widths[layer] else None

    eps = metadata.number(key("attention.layer_norm_rms_epsilon"), 0.0)
    norm = NormSpec(eps=eps or metadata.number(key("attention.layer_norm_epsilon")))
    return common.model(checkpoint, mixer, ffn, norm, layer={"ffn_norm": "attn_norm"})


# ---- directories -----------------------------------------------------------------------------------------------------


def _kinds(config: Metadata) -> list[str]:
    """What each layer is."""
    field = "layers_block_type" if "layers_block_type" in config else "hybrid_override_pattern"
    listed = list(config.strings(field) if field == "layers_block_type" else config.text(field))
    kinds = [KINDS.get(kind, kind) for kind in listed]
    if not kinds or not set(kinds) <= set(KINDS.values()):
        raise UnsupportedError(f"{config.source}: {field} is {sorted(set(listed))!r:.80}; {', '.join(KINDS)} are run")
    return kinds


def _more_keys(config: Metadata) -> Mapping[str, Any]:
    """What the layers are, by the heads of keys and the width of the network that each has; the width of all states."""
    kinds = _kinds(config)
    heads = config.integer("num_key_value_heads", config.integer("num_attention_heads", low=1), low=1)
    widths = {"moe": config.integer("moe_intermediate_size", low=1)}
    if "mlp" in kinds:
        widths["mlp"] = config.integer("intermediate_size", low=1)
    least = config.number("time_step_min", LEAST_STEP)
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": [heads if kind == "attention" else 0 for kind in kinds],
        "feed_forward_length": [widths.get(kind, 0) for kind in kinds],
        "ssm.inner_size": config.integer("mamba_num_heads", low=1) * config.integer("mamba_head_dim", low=1),
        "ssm.time_step_min": None if least == LEAST_STEP else least,  # a key of ours
        "moe_latent_size": config.integer("moe_latent_size", 0) or None,
        "rope.scaling.finetuned": False,
    }


def _without_experts(config: Metadata, layers: int) -> set[int]:
    return {layer for layer, kind in enumerate(_kinds(config)) if kind != "moe"}


GROUPS: Final = "n_groups", "mamba_n_groups"
FAMILY = Family(
    architectures=("nemotron_h_moe",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"pixtral"})),
    gated=False,
    directories={
        "nemotron_h": Directory(
            keys=(
                *(key for key in COMMON_KEYS if key.key != "block_count"),
                Key("attention.layer_norm_epsilon", ("layer_norm_epsilon",), "number"),  # llama.cpp asks for both
                Key("expert_feed_forward_length", ("moe_intermediate_size",)),
                Key("expert_shared_feed_forward_length", ("moe_shared_expert_intermediate_size",)),
                Key("expert_shared_count", ("n_shared_experts",), default=1),
                Key("expert_weights_norm", ("norm_topk_prob",), "flag", True),
                Key("expert_weights_scale", ("routed_scaling_factor",), "number", 1.0),
                Key("expert_group_count", ("n_group",), default=1),
                Key("expert_group_used_count", ("topk_group",), default=1),
                Key("ssm.conv_kernel", ("conv_kernel", "mamba_d_conv"), default=4),
                Key("ssm.state_size", ("ssm_state_size",), default=128),
                Key("ssm.group_count", GROUPS, default=8),
                Key("ssm.time_step_rank", ("mamba_num_heads",)),
            ),
            more_keys=_more_keys,
            always={"expert_gating_func": 2},
            layers="backbone.layers",
            top={
                "backbone.embeddings.weight": "token_embd.weight",
                "backbone.norm_f.weight": "output_norm.weight",
                "lm_head.weight": "output.weight",
            },
            layer={
                **mamba2.layer("mixer"),
                "norm": "attn_norm",
                "mixer.q_proj": "attn_q",
                "mixer.k_proj": "attn_k",
                "mixer.v_proj": "attn_v",
                "mixer.o_proj": "attn_output",
                "mixer.gate": "ffn_gate_inp",
                "mixer.shared_experts.up_proj": "ffn_up_shexp",
                "mixer.shared_experts.down_proj": "ffn_down_shexp",
                "mixer.fc1_latent_proj": "ffn_latent_down",
                "mixer.fc2_latent_proj": "ffn_latent_up",
                "mixer.up_proj": "ffn_up",
                "mixer.down_proj": "ffn_down",
            },
            views={
                **mamba2.views("mixer", *GROUPS),
                "mixer.gate.e_score_correction_bias": correction_bias,
            },
            experts_modules=("mixer.experts",),
            experts={"up_proj": "up", "down_proj": "down"},
            theta=1e4,
            expects={"mlp_hidden_act": ("relu2",), "mamba_hidden_act": ("silu",)},
            skipped={r"mtp\..*": MORE_THAN_ONE},
            dense_layers=_without_experts,
        )
    },
)
