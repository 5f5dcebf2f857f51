"""gpt-oss (OpenAI, 2025): windows in every second layer, sinks, clamped SwiGLU, softmax over the chosen experts.

Biases are everywhere. Experts are MXFP4, in GGUF files and in directories, where rows of gate and up alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from colibri.models import common
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import ATTENTION, COMMON_KEYS, Directory, Family, Key, PreTokenizers, one_width
from colibri.weights.metadata import Metadata
from colibri.weights.row_order import RowOrder
from colibri.weights.tensor_info import TensorInfo


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a gpt-oss model is made of."""
    full = common.attention(checkpoint, sinks=True, truncate=False, window=0)
    sliding = replace(full, window=checkpoint.metadata.integer(checkpoint.key("attention.sliding_window"), low=1))
    windows = common.windows(checkpoint, lambda layer: layer % 2 == 0)
    routing = common.routing(checkpoint, score="identity", softmax_of_chosen=True)
    moe = common.mixture(checkpoint, routing, activation="swiglu_oai")
    return common.model(
        checkpoint, lambda layer: sliding if windows[layer] else full, common.feed_forward(checkpoint, moe),
        common.rms_norm(checkpoint), layer={"ffn_norm": "post_attention_norm"},
    )  # fmt: skip


def _more_keys(config: Metadata) -> Mapping[str, Any]:
    kinds = config.strings("layer_types", ())
    rope = config.get("rope_parameters", config.get("rope_scaling", {}))
    keys: dict[str, Any] = {"rope.scaling.yarn_truncate": bool(rope.get("truncate", True)) or None}  # false is usual
    if kinds:
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    return keys


def _halves(config: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
    """gate and up of all experts: MXFP4 (experts, 2 * width, hidden), or floats (experts, hidden, 2 * width)."""
    for number, name in enumerate(("ffn_gate_exps.weight", "ffn_up_exps.weight")):
        part = replace(tensor, name=name, nbytes=tensor.nbytes // 2)
        if tensor.encoding is not None:
            experts, rows, hidden = tensor.shape
            yield replace(part, shape=(experts, rows // 2, hidden), order=RowOrder(2, (number,)))
        else:
            experts, hidden, rows = tensor.shape
            at = tensor.offset + number * tensor.value_bytes
            strides = hidden * rows, 2, rows
            yield replace(part, shape=(experts, rows // 2, hidden), offset=at, strides=strides)


def _half_biases(config: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
    experts, rows = tensor.shape
    for number, name in enumerate(("ffn_gate_exps.bias", "ffn_up_exps.bias")):
        at = tensor.offset + number * tensor.value_bytes
        yield replace(
            tensor, name=name, shape=(experts, rows // 2), nbytes=tensor.nbytes // 2, offset=at, strides=(rows, 2)
        )


def _down(config: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
    name = "ffn_down_exps.weight"
    if tensor.encoding is not None:
        yield replace(tensor, name=name)
    else:
        experts, width, hidden = tensor.shape
        yield replace(tensor, name=name, shape=(experts, hidden, width), strides=(width * hidden, 1, hidden))


FAMILY = Family(
    architectures=("gpt-oss",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"gpt-4o"})),
    directories={
        "gpt_oss": Directory(
            keys=(*COMMON_KEYS, *one_width("intermediate_size"), Key("attention.sliding_window", ("sliding_window",))),
            more_keys=_more_keys,
            layer=ATTENTION
            | {
                "post_attention_layernorm": "post_attention_norm",
                "mlp.router": "ffn_gate_inp",
            },
            views={
                "self_attn.sinks": lambda config, tensor: [replace(tensor, name="attn_sinks.weight")],
                "mlp.experts.gate_up_proj": _halves,
                "mlp.experts.gate_up_proj_bias": _half_biases,
                "mlp.experts.down_proj": _down,
                "mlp.experts.down_proj_bias": lambda config, tensor: [replace(tensor, name="ffn_down_exps.bias")],
            },
            experts={},
            theta=150000.0,
            expects={
                "hidden_act": ("silu",),
                "attention_bias": (True,),
                "swiglu_limit": (7.0,),
                "swiglu_alpha": (1.702,),
            },
        )
    },
)
