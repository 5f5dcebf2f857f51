"""DeepSeek-V2, V3 and R1 (arXiv 2405.04434, 2412.19437), Kimi-K2, GLM-4.7-Flash: latent attention, shared experts.

The first layers are dense. V2 routes by softmax, the others by sigmoid with a correction bias. GGUF files made before
April 2025 hold the matrices of keys and values of all heads in one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from colibri.errors import FormatError, UnsupportedError
from colibri.models import common
from colibri.ops import BLOCK_TYPES
from colibri.spec import LatentAttentionSpec, ModelSpec, NormSpec, RoutingSpec
from colibri.weights.block_types import BY_NAME, row_bytes
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import (
    ATTENTION,
    COMMON_KEYS,
    DENSE,
    NAMED_EXPERTS,
    SHARED_EXPERTS,
    Directory,
    Family,
    Key,
    PreTokenizers,
    correction_bias,
)
from colibri.weights.metadata import Metadata
from colibri.weights.row_order import RowOrder, adjacent_pairs
from colibri.weights.tensor_info import TensorInfo

LATENT_NORM: Final = NormSpec(eps=1e-6)  # whatever the epsilon of the other norms is, as transformers has it


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a DeepSeek model is made of."""
    attention = _attention(checkpoint)
    moe = common.mixture(checkpoint, _routing(checkpoint), common.shared_expert(checkpoint))
    ffn = common.feed_forward(checkpoint, moe)
    return common.model(checkpoint, lambda layer: attention, ffn, common.rms_norm(checkpoint))


def _attention(checkpoint: Checkpoint) -> LatentAttentionSpec:
    metadata, key = checkpoint.metadata, checkpoint.key
    query_dim, rotary = (metadata.integer(key(name), low=1) for name in ("attention.key_length_mla", _ROTARY))
    rope, multiplier = common.rope(checkpoint, rotary), metadata.number(key(_MULTIPLIER), 0.0)
    stretch = 1.0 + multiplier * math.log(max(rope.factor, 1.0))
    if multiplier and rope.attention_factor is None:
        rope = replace(rope, attention_factor=1.0)
    return LatentAttentionSpec(
        heads=metadata.integer(key("attention.head_count"), low=1),
        query_rank=metadata.integer(key("attention.q_lora_rank"), 0),
        kv_rank=metadata.integer(key(_RANK), low=1),
        nope_dim=query_dim - rotary,
        value_dim=metadata.integer(key("attention.value_length_mla"), low=1),
        rope=rope,
        scale=query_dim**-0.5 * stretch**2,
        norm=LATENT_NORM,
    )


def _routing(checkpoint: Checkpoint) -> RoutingSpec:
    """Where a file does not say by what it routes, it is by sigmoid if there are correction biases."""
    corrected = any(name.endswith(".exp_probs_b.bias") for name in checkpoint.tensors)
    routing = common.routing(checkpoint, score="sigmoid" if corrected else "softmax", sum_added=1e-20)
    return replace(routing, group_score="sum_of_two" if routing.score == "sigmoid" else "max")


_ROTARY: Final = "rope.dimension_count"
_RANK: Final = "attention.kv_lora_rank"
_MULTIPLIER: Final = "rope.scaling.yarn_log_multiplier"


# --- GGUF files ---


def _sizes(metadata: Metadata) -> tuple[int, int, int, int]:
    """Values of a head's query, those of them that positions turn, of the latent vector, of a head's answer."""
    prefix = metadata.text("general.architecture")
    names = "attention.key_length_mla", _ROTARY, _RANK, "attention.value_length_mla"
    query, rotary, rank, value = (metadata.integer(f"{prefix}.{name}", low=1, high=1 << 16) for name in names)
    if rotary >= query or rotary % 2:
        raise metadata.error(f"{prefix}.{_ROTARY}", str(rotary), f"an even number below {query}, the size of a head")
    return query, rotary, rank, value


def _row_orders(metadata: Metadata) -> Mapping[str, RowOrder]:
    """Of queries and the shared key those rows that positions turn are stored for rope on adjacent pairs."""
    query, rotary, rank, _ = _sizes(metadata)
    queries = adjacent_pairs(query, query - rotary, rotary)
    return {"attn_q": queries, "attn_q_b": queries, "attn_kv_a_mqa": adjacent_pairs(rank + rotary, rank, rotary)}


def _lengths(rank: int, rotary: int, query: int, value: int) -> dict[str, Any]:
    """Sizes as llama.cpp gives them: of the key that is stored, and of a head."""
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotary,
        "attention.value_length": rank,
        "attention.key_length_mla": query,
        "attention.value_length_mla": value,
    }


def _keys_of_early_files(metadata: Metadata) -> Mapping[str, Any]:
    """Files that hold keys and values in one tensor give the sizes of heads under other names."""
    prefix = metadata.text("general.architecture")
    if f"{prefix}.attention.key_length_mla" in metadata:
        return {}
    names = _RANK, _ROTARY, "attention.key_length", "attention.value_length"
    sizes = (metadata.integer(f"{prefix}.{name}", low=1, high=1 << 16) for name in names)
    return {f"{prefix}.{name}": value for name, value in _lengths(*sizes).items()}


def _split_of_early_files(metadata: Metadata, tensor: TensorInfo) -> Iterable[TensorInfo]:
    query, rotary, _, value = _sizes(metadata)
    return _split(tensor, query - rotary, value)


# --- directories ---


def _split_of_directories(config: Metadata, tensor: TensorInfo) -> Iterable[TensorInfo]:
    return _split(tensor, *(config.integer(name, low=1) for name in ("qk_nope_head_dim", "v_head_dim")))


def _split(tensor: TensorInfo, nope: int, value: int) -> Iterable[TensorInfo]:
    """Of each head nope rows of keys, transposed as llama.cpp has them, then its rows of values."""
    unit = nope + value
    if len(tensor.shape) != 2 or tensor.shape[0] % unit:
        found = f"{tensor.file}: tensor {tensor.name} has shape {tensor.shape}"
        raise FormatError(f"{found}; a matrix of whole heads of {nope} + {value} rows is expected")
    if tensor.strides is not None:
        raise UnsupportedError(f"{tensor.file}: tensor {tensor.name} is stored transposed, which is not read")
    heads, rank = tensor.shape[0] // unit, tensor.shape[1]

    def part(first: int, rows: int) -> TensorInfo:
        order = RowOrder(unit, tuple(range(first, first + rows)))
        return replace(tensor.of_rows(heads * rows, order), shape=(heads, rows, rank))

    blocks = tensor.type in BLOCK_TYPES and BY_NAME[tensor.type].values > 1
    kind = "F16" if blocks else tensor.type
    nbytes = heads * rank * row_bytes(kind, nope)
    shape = heads, rank, nope
    keys = replace(tensor, type=kind, shape=shape, nbytes=nbytes, transpose_of=part(0, nope))
    yield replace(keys, name="attn_k_b.weight")
    yield replace(part(nope, value), name="attn_v_b.weight")


def _more_keys(config: Metadata) -> Mapping[str, Any]:
    rank, rotary, nope, value = (
        config.integer(name, low=1, high=1 << 16)
        for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    return (
        _lengths(rank, rotary, nope + rotary, value)
        | {"leading_dense_block_count": len(_dense_layers(config, 1 << 16))}
        | _groups(config)
        | _stretch(config)
    )


def _groups(config: Metadata) -> dict[str, Any]:
    names = {"expert_group_count": "n_group", "expert_group_used_count": "topk_group"}
    usual = "greedy" if config.text("model_type") == "deepseek_v2" else "noaux_tc"
    grouped = config.text("topk_method", usual) != "greedy"
    return {key: config.integer(name) for key, name in names.items() if grouped and name in config}


def _stretch(config: Metadata) -> dict[str, Any]:
    """What YaRN multiplies the scale of attention by, and cosines and sines where only that is asked for."""
    given = config.get("rope_parameters", config.get("rope_scaling"))
    known = {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else {}
    rope = Metadata(config.source, known)
    of_scale = rope.number("mscale_all_dim", 0.0)
    if not of_scale:
        return {}
    keys = {_MULTIPLIER: 0.1 * of_scale}
    if not rope.number("mscale", 0.0) and not rope.number("attention_factor", 0.0):
        keys["rope.scaling.yarn_attn_factor"] = 1.0 + 0.1 * math.log(max(rope.number("factor", 1.0), 1.0))
    return keys


def _dense_layers(config: Metadata, layers: int) -> set[int]:
    """The first ones, by their number or by a list of the kinds of all layers."""
    kinds = config.strings("mlp_layer_types", ())
    if kinds:
        return {layer for layer, kind in enumerate(kinds) if kind == "dense"}
    first = {"deepseek_v2": 0, "glm4_moe_lite": 1}.get(config.text("model_type"), 3)
    return set(range(min(config.integer("first_k_dense_replace", first), layers)))


def _directory(score: int, renormalize: bool, **expects: tuple[Any, ...]) -> Directory:
    """Of a model_type whose router has this score; renormalize where config.json is silent."""
    return Directory(
        keys=(
            *COMMON_KEYS,
            Key("feed_forward_length", ("intermediate_size",)),
            Key("expert_feed_forward_length", ("moe_intermediate_size",)),
            Key("expert_shared_count", ("n_shared_experts",), default=0),
            Key("expert_weights_scale", ("routed_scaling_factor",), "number"),
            Key("expert_weights_norm", ("norm_topk_prob",), "flag", renormalize),
            Key("attention.q_lora_rank", ("q_lora_rank",), default=None),
            Key(_RANK, ("kv_lora_rank",)),
        ),
        more_keys=_more_keys,
        always={"expert_gating_func": score},
        layer=_LAYER,
        views={
            "self_attn.kv_b_proj.weight": _split_of_directories,
            "mlp.gate.e_score_correction_bias": correction_bias,
        },
        experts=NAMED_EXPERTS,
        head_dim="qk_rope_head_dim",
        theta=1e4,
        row_orders=_row_orders,
        expects={"hidden_act": ("silu",), "rope_interleave": (True,), "moe_layer_freq": (1,)} | expects,
        dense_layers=_dense_layers,
    )


_LAYER: Final = (
    {name: ATTENTION[name] for name in ("input_layernorm", "post_attention_layernorm")}
    | {"self_attn.q_proj": "attn_q", "self_attn.o_proj": "attn_output"}
    | {"self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b"}
    | {"self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm"}
    | {"mlp.gate": "ffn_gate_inp"}
    | DENSE
    | SHARED_EXPERTS
)
_SOFTMAX: Final = _directory(
    1, False, scoring_func=("softmax",), topk_method=("greedy", "group_limited_greedy"), norm_topk_prob=(False,)
)
_SIGMOID: Final = _directory(2, True, scoring_func=("sigmoid",), topk_method=("noaux_tc",))

FAMILY = Family(
    architectures=("deepseek2",),
    spec=common.spec_function(spec),
    row_orders=_row_orders,
    views={"attn_kv_b.weight": _split_of_early_files},
    more_keys=_keys_of_early_files,
    pre_tokenizers=PreTokenizers(
        frozenset({"deepseek-llm", "deepseek-v3", "deepseek-coder", "kimi-k2", "joyai-llm", "glm4"})
    ),
    directories={
        "deepseek_v2": _SOFTMAX,
        "deepseek_v3": _SIGMOID,
        "kimi_k2": _SIGMOID,
        "glm4_moe_lite": _SIGMOID,
    },
)
