"""Granite-MoE and Granite 4 (IBM, 2024-25): softmax over the chosen experts, some with a shared one; multipliers.

Embeddings, attention, answers of layers and logits are scaled. Most layers of Granite 4 (H) are Mamba2: those without
heads of keys. Its attention needs no positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from colibri.errors import UnsupportedError
from colibri.models import common, mamba2
from colibri.spec import Mixer, ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import ATTENTION, COMMON_KEYS, Directory, Family, Key, PreTokenizers
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a Granite-MoE model is made of. GGUF files divide by their logit_scale."""
    metadata, key = checkpoint.metadata, checkpoint.key
    heads = common.kv_heads(checkpoint)
    turns = metadata.flag(key("rope.scaling.finetuned"), True)  # so llama.cpp has it
    positions: dict[str, Any] = {} if turns else {"rope": None}

    def mixer(layer: int) -> Mixer:
        if not heads[layer]:
            return mamba2.spec(checkpoint)
        return common.attention(checkpoint, kv_heads=heads[layer], **positions)

    routing = common.routing(checkpoint, score="identity", softmax_of_chosen=True)
    moe = common.mixture(checkpoint, routing, common.shared_expert(checkpoint))
    return common.model(
        checkpoint, mixer, common.feed_forward(checkpoint, moe), common.rms_norm(checkpoint),
        layer={"residual_scale": metadata.number(key("residual_scale"), 1.0) or 1.0},
        embedding_scale=metadata.number(key("embedding_scale"), 1.0) or 1.0,
        logit_scale=1 / (metadata.number(key("logit_scale"), 1.0) or 1.0),
    )  # fmt: skip


def _gate_and_up(config: Metadata, tensor: TensorInfo) -> Iterable[TensorInfo]:
    """Of all experts, (experts, 2 * width, hidden)."""
    return tensor.halves("ffn_gate_exps.weight", "ffn_up_exps.weight")


def _down(config: Metadata, tensor: TensorInfo) -> Iterable[TensorInfo]:
    yield replace(tensor, name="ffn_down_exps.weight")


def _shared_gate_and_up(config: Metadata, tensor: TensorInfo) -> Iterable[TensorInfo]:
    """(2 * width, hidden): as of one expert."""
    one = replace(tensor, shape=(1, *tensor.shape))
    halves = one.halves("ffn_gate_shexp.weight", "ffn_up_shexp.weight")
    return (replace(half.expert(0), name=half.name) for half in halves)


def _recurrent_layers(config: Metadata) -> Mapping[str, Any]:
    """Heads of keys of each layer, the width of all states, and whether positions turn queries and keys."""
    heads, layers = config.integer("num_attention_heads", low=1), config.integer("num_hidden_layers", low=1)
    kinds = config.strings("layer_types", ()) or ["mamba"] * layers
    recurrent, attending = {"mamba", "linear_attention"}, {"attention", "full_attention"}
    if not set(kinds) <= recurrent | attending:
        raise UnsupportedError(f"{config.source}: layer_types are {sorted(set(kinds))}; mamba and attention are run")
    kept = config.integer("num_key_value_heads", heads, low=1)
    return {
        "attention.head_count_kv": [0 if kind in recurrent else kept for kind in kinds],
        "ssm.inner_size": config.integer("mamba_expand", 2, low=1) * config.integer("hidden_size", low=1),
        "rope.scaling.finetuned": config.text("position_embedding_type", "nope") == "rope",
    }


_DIRECTORY = Directory(
    keys=(
        *COMMON_KEYS,
        Key("feed_forward_length", ("intermediate_size",)),
        Key("expert_shared_feed_forward_length", ("shared_intermediate_size",), default=None),
        Key("attention.scale", ("attention_multiplier",), "number", 1.0),
        Key("embedding_scale", ("embedding_multiplier",), "number", 1.0),
        Key("residual_scale", ("residual_multiplier",), "number", 1.0),
        Key("logit_scale", ("logits_scaling",), "number", 1.0),
    ),
    layer=ATTENTION
    | {
        "block_sparse_moe.router": "ffn_gate_inp",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "shared_mlp.output_linear": "ffn_down_shexp",
    },
    views={
        "block_sparse_moe.input_linear.weight": _gate_and_up,
        "block_sparse_moe.output_linear.weight": _down,
        "shared_mlp.input_linear.weight": _shared_gate_and_up,
    },
    experts_modules=("block_sparse_moe.experts",),
    experts={},
    theta=1e4,
    expects={"hidden_act": ("silu",)},
)

_HYBRID = replace(
    _DIRECTORY,
    architecture="granitehybrid",
    keys=(
        *_DIRECTORY.keys,
        Key("ssm.conv_kernel", ("mamba_d_conv",), default=4),
        Key("ssm.state_size", ("mamba_d_state",), default=256),
        Key("ssm.group_count", ("mamba_n_groups",), default=1),
        Key("ssm.time_step_rank", ("mamba_n_heads",), default=128),
    ),
    more_keys=_recurrent_layers,
    layer={**_DIRECTORY.layer, **mamba2.layer("mamba")},
    views={**_DIRECTORY.views, **mamba2.views("mamba", "mamba_n_groups")},
    expects={**_DIRECTORY.expects, "time_step_limit": mamba2.NO_LIMIT},
)

FAMILY = Family(
    architectures=("granitemoe", "granitehybrid"),
    spec=common.spec_function(spec),
    row_orders=common.rope_on_adjacent_pairs("attn_q", "attn_k"),
    pre_tokenizers=PreTokenizers(frozenset({"refact", "dbrx"})),
    directories={"granitemoe": _DIRECTORY, "granitemoeshared": _DIRECTORY, "granitemoehybrid": _HYBRID},
)
