"""LFM2-MoE (Liquid AI, 2025): gated short convolutions and few layers of attention; sigmoid with a correction bias.

The first layers are dense. A layer without heads of keys is a convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from colibri.errors import UnsupportedError
from colibri.models import common
from colibri.spec import Mixer, ModelSpec, ShortConvSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import COMMON_KEYS, Directory, Family, Key, PreTokenizers, correction_bias
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What an LFM2-MoE model is made of."""
    metadata, key = checkpoint.metadata, checkpoint.key
    heads = common.kv_heads(checkpoint)
    taps = metadata.integer(key("shortconv.l_cache"), low=1)
    convolution = ShortConvSpec(channels=metadata.integer(key("embedding_length"), low=1), taps=taps)

    def mixer(layer: int) -> Mixer:
        return common.attention(checkpoint, kv_heads=heads[layer], qk_norm="head") if heads[layer] else convolution

    routing = common.routing(checkpoint, renormalize=True, score="sigmoid", sum_added=1e-6)
    ffn = common.feed_forward(checkpoint, common.mixture(checkpoint, routing))
    return common.model(checkpoint, mixer, ffn, common.rms_norm(checkpoint))


def _more_keys(config: Metadata) -> Mapping[str, Any]:
    """Heads of keys of each layer, which say what it is."""
    heads, kinds = config.integer("num_key_value_heads", low=1), config.strings("layer_types")
    if not set(kinds) <= {"conv", "full_attention"}:
        raise UnsupportedError(
            f"{config.source}: layer_types are {sorted(set(kinds))}; conv and full_attention are run"
        )
    return {"attention.head_count_kv": [0 if kind == "conv" else heads for kind in kinds]}


def _convolution(config: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
    """Stored as (channels, 1, taps)."""
    yield replace(tensor, name="shortconv.conv.weight", shape=(tensor.shape[0], tensor.shape[-1]))


FAMILY = Family(
    architectures=("lfm2moe",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"lfm2"})),
    final_norm="token_embd_norm",
    directories={
        "lfm2_moe": Directory(
            keys=(
                *COMMON_KEYS,
                Key("feed_forward_length", ("intermediate_size",)),
                Key("expert_feed_forward_length", ("moe_intermediate_size",)),
                Key("expert_weights_scale", ("routed_scaling_factor",), "number", 1.0),
                Key("expert_weights_norm", ("norm_topk_prob",), "flag", True),
                Key("leading_dense_block_count", ("num_dense_layers",), default=2),
                Key("shortconv.l_cache", ("conv_L_cache",), default=3),
            ),
            more_keys=_more_keys,
            always={"expert_gating_func": 2},
            layer={
                "operator_norm": "attn_norm",
                "ffn_norm": "ffn_norm",
                "self_attn.q_proj": "attn_q",
                "self_attn.k_proj": "attn_k",
                "self_attn.v_proj": "attn_v",
                "self_attn.out_proj": "attn_output",
                "self_attn.q_layernorm": "attn_q_norm",
                "self_attn.k_layernorm": "attn_k_norm",
                "conv.in_proj": "shortconv.in_proj",
                "conv.out_proj": "shortconv.out_proj",
                "feed_forward.w1": "ffn_gate",
                "feed_forward.w3": "ffn_up",
                "feed_forward.w2": "ffn_down",
                "feed_forward.gate": "ffn_gate_inp",
            },
            top={
                "model.embed_tokens.weight": "token_embd.weight",
                "model.embedding_norm.weight": "token_embd_norm.weight",
                "lm_head.weight": "output.weight",
            },
            views={
                "conv.conv.weight": _convolution,
                "conv.conv.bias": lambda config, tensor: [replace(tensor, name="shortconv.conv.bias")],
                "feed_forward.expert_bias": correction_bias,
            },
            experts_modules=("feed_forward.experts",),
            experts={"w1": "gate", "w3": "up", "w2": "down"},
            theta=1e6,
            tied=True,
            expects={"tie_embedding": (True,)},
            dense_layers=lambda config, layers: set(range(config.integer("num_dense_layers", 2, high=layers))),
        )
    },
)
