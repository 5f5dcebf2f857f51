"""Granite-MoE (IBM, 2024): softmax over the chosen experts, some with a shared one; multipliers of what is added.

Embeddings, attention, answers of layers and logits are scaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from colibri.models import common
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import ATTENTION, COMMON_KEYS, Directory, Family, Key
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a Granite-MoE model is made of. GGUF files divide by their logit_scale."""
    metadata, key = checkpoint.metadata, checkpoint.key
    attention = common.attention(checkpoint)
    routing = common.routing(checkpoint, score="identity", softmax_of_chosen=True)
    moe = common.mixture(checkpoint, routing, common.shared_expert(checkpoint))
    return common.model(
        checkpoint, lambda layer: attention, common.feed_forward(checkpoint, moe), common.rms_norm(checkpoint),
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

FAMILY = Family(
    architectures=("granitemoe",),
    spec=common.spec_function(spec),
    row_orders=common.rope_on_adjacent_pairs("attn_q", "attn_k"),
    pre_tokenizers=frozenset({"refact", "dbrx"}),
    directories={"granitemoe": _DIRECTORY, "granitemoeshared": _DIRECTORY},
)
