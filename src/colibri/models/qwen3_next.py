"""Qwen3-Next, Qwen3.5-MoE and Qwen3.6-MoE: layers with the gated delta rule, every fourth with gated attention.

Where several heads of values share one of keys, directories and GGUF files of Qwen3-Next hold them by head of keys.
GGUF files of Qwen3.5 hold the first of each, then the second, and so does the engine, whatever the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from colibri.errors import ArgumentError, FormatError, UnsupportedError
from colibri.layers.delta_net import mixed_rows
from colibri.models import common
from colibri.spec import DeltaNetSpec, ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import (
    ATTENTION,
    COMMON_KEYS,
    DENSE,
    MORE_THAN_ONE,
    NAMED_EXPERTS,
    TOP,
    Directory,
    Family,
    Key,
    PreTokenizers,
    sparse_step,
)
from colibri.weights.metadata import Metadata
from colibri.weights.row_order import RowOrder
from colibri.weights.tensor_info import TensorInfo

FFN_NORM: Final = "post_attention_norm"
INTERVAL: Final = 4
SECTIONS: Final = [11, 11, 10, 0]  # of rope in pictures, which llama.cpp asks for; in text all positions are alike


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What such a model is made of: layers are what their tensors are."""
    metadata, key = checkpoint.metadata, checkpoint.key
    heads = metadata.integer(key("ssm.time_step_rank"), low=1)
    delta_net = DeltaNetSpec(
        heads=heads,
        key_heads=metadata.integer(key("ssm.group_count"), low=1),
        key_size=metadata.integer(key("ssm.state_size"), low=1),
        value_size=metadata.integer(key("ssm.inner_size"), low=1) // heads,
        taps=metadata.integer(key("ssm.conv_kernel"), low=1),
        tiled=checkpoint.architecture == "qwen35moe",
    )
    attention = common.attention(checkpoint, qk_norm="head", gate=True)
    routing = common.routing(checkpoint, renormalize=True)
    moe = common.mixture(checkpoint, routing, common.shared_expert(checkpoint, "sigmoid"))
    return common.model(
        checkpoint, lambda layer: delta_net if f"blk.{layer}.ssm_a" in checkpoint.tensors else attention,
        common.feed_forward(checkpoint, moe), common.rms_norm(checkpoint), layer={"ffn_norm": FFN_NORM},
    )  # fmt: skip


# ---- directories -----------------------------------------------------------------------------------------------------


def _sizes(config: Metadata) -> DeltaNetSpec:
    names = {
        "heads": "linear_num_value_heads",
        "key_heads": "linear_num_key_heads",
        "key_size": "linear_key_head_dim",
        "value_size": "linear_value_head_dim",
        "taps": "linear_conv_kernel_dim",
    }
    sizes: dict[str, Any] = {field: config.integer(name, low=1) for field, name in names.items()}
    try:
        return DeltaNetSpec(**sizes)
    except ArgumentError as error:
        raise FormatError(f"{config.source}: {error}") from error


def _more_keys(config: Metadata) -> Mapping[str, Any]:
    """Keys that no single field gives: width of all values, which layers are recurrent."""
    layers = config.integer("num_hidden_layers", low=1)
    interval = config.integer("full_attention_interval", INTERVAL, low=1)
    kinds = config.strings("layer_types", ())
    if not set(kinds) <= {"linear_attention", "full_attention"}:
        raise UnsupportedError(f"{config.source}: layer_types are {sorted(set(kinds))}; linear and full are run")
    recurrent = [kind == "linear_attention" for kind in kinds] or [(n + 1) % interval != 0 for n in range(layers)]
    first = recurrent.index(False) + 1 if False in recurrent else layers + 1
    regular = recurrent == [(n + 1) % first != 0 for n in range(layers)]
    sizes = _sizes(config)
    keys: dict[str, Any] = {"ssm.inner_size": sizes.value_width}
    return keys | ({"full_attention_interval": first} if regular else {"attention.recurrent_layers": recurrent})


View = Callable[[Metadata, TensorInfo], Iterable[TensorInfo]]


def _picked(tensor: TensorInfo, name: str, order: RowOrder) -> TensorInfo:
    """These rows of a tensor, or values of a vector, as another."""
    if tensor.shape[0] != order.unit:
        found = f"{tensor.file}: tensor {tensor.name} has shape {tensor.shape}"
        raise FormatError(f"{found}, {order.unit} rows are expected")
    return replace(tensor.of_rows(len(order.rows), order), name=name)


def _mixed(config: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
    """Queries, keys, values and gate of each head of keys together."""
    for part, order in mixed_rows(_sizes(config)).items():
        yield _picked(tensor, f"attn_{part}.weight", order)


def _by_turns(config: Metadata, rows: int, before: int = 0) -> RowOrder:
    """`before` rows as they are, then `rows` of each head of values: the first of all heads of keys, the second, ..."""
    sizes = _sizes(config)
    heads: npt.NDArray[np.int64] = np.arange(sizes.heads * rows).reshape(sizes.key_heads, -1, rows)
    places = (*range(before), *(before + heads.transpose(1, 0, 2).ravel()).tolist())
    return RowOrder(len(places), places)


def _of_heads(name: str, size: str = "", **rules: Any) -> View:
    """Rows of the heads of values, as many of each as the field `size` says."""

    def view(config: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
        order = _by_turns(config, config.integer(size) if size else 1)
        yield replace(_picked(tensor, name, order), **rules)

    return view


def _of_channels(name: str) -> View:
    """Rows of queries and keys, which stay where they are, and of values."""

    def view(config: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
        sizes = _sizes(config)
        yield _picked(_flat(tensor), name, _by_turns(config, sizes.value_size, 2 * sizes.key_width))

    return view


def _output(config: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
    """Columns of the heads of values."""
    yield replace(tensor, name="ssm_out.weight", columns=_by_turns(config, _sizes(config).value_size))


def _flat(tensor: TensorInfo) -> TensorInfo:
    """A convolution's weight (channels, 1, taps) as (channels, taps)."""
    single = len(tensor.shape) == 3 and tensor.shape[1] == 1
    return replace(tensor, shape=(tensor.shape[0], tensor.shape[2])) if single else tensor


def _same(name: str, **rules: Any) -> View:
    return lambda config, tensor: [replace(_flat(tensor), name=name, **rules)]


DECAY: Final = {"transform": "negative_exponential"}
BY_KEY_HEAD: Final[Mapping[str, View]] = {
    "linear_attn.in_proj_qkvz.weight": _mixed,
    "linear_attn.conv1d.weight": _same("ssm_conv1d.weight"),
    "linear_attn.A_log": _same("ssm_a", **DECAY),
    "linear_attn.dt_bias": _same("ssm_dt.bias"),
}
BY_TURNS: Final[Mapping[str, View]] = {
    "linear_attn.in_proj_qkv.weight": _of_channels("attn_qkv.weight"),
    "linear_attn.in_proj_z.weight": _of_heads("attn_gate.weight", "linear_value_head_dim"),
    "linear_attn.in_proj_b.weight": _of_heads("ssm_beta.weight"),
    "linear_attn.in_proj_a.weight": _of_heads("ssm_alpha.weight"),
    "linear_attn.conv1d.weight": _of_channels("ssm_conv1d.weight"),
    "linear_attn.A_log": _of_heads("ssm_a", **DECAY),
    "linear_attn.dt_bias": _of_heads("ssm_dt.bias"),
    "linear_attn.out_proj.weight": _output,
}
NORMS: Final = ("attn_norm", FFN_NORM, "attn_q_norm", "attn_k_norm", "output_norm")  # stored less one


def _directory(**rules: Any) -> Directory:
    modules = {
        "mlp.gate": "ffn_gate_inp",
        "post_attention_layernorm": FFN_NORM,
        "linear_attn.norm": "ssm_norm",
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    }
    own: dict[str, Any] = {"keys": (), "layer": {}} | rules
    keys = (
        *COMMON_KEYS,
        *own.pop("keys"),
        Key("expert_feed_forward_length", ("moe_intermediate_size",)),
        Key("expert_shared_feed_forward_length", ("shared_expert_intermediate_size",)),
        Key("ssm.conv_kernel", ("linear_conv_kernel_dim",)),
        Key("ssm.state_size", ("linear_key_head_dim",)),
        Key("ssm.group_count", ("linear_num_key_heads",)),
        Key("ssm.time_step_rank", ("linear_num_value_heads",)),
    )
    return Directory(
        keys=keys, more_keys=_more_keys, layer=ATTENTION | modules | own.pop("layer"), experts=NAMED_EXPERTS, theta=1e4,
        rotary_part=0.25, expects={"hidden_act": ("silu",), "attn_output_gate": (True,)},
        transforms={f"{name}.weight": "plus_one" for name in NORMS}, **own,
    )  # fmt: skip


NEXT: Final = _directory(
    keys=(
        Key("feed_forward_length", ("intermediate_size",)),
        Key("expert_weights_norm", ("norm_topk_prob",), "flag", True),
    ),
    layer=DENSE | {"linear_attn.in_proj_ba": "ssm_ba", "linear_attn.out_proj": "ssm_out"},
    views=BY_KEY_HEAD,
    skipped={r"mtp\..*": MORE_THAN_ONE},
    dense_layers=sparse_step,
)
TEXT: Final = _directory(
    views=BY_TURNS,
    always={"rope.dimension_sections": SECTIONS},
    skipped={r"mtp\..*": MORE_THAN_ONE},
    architecture="qwen35moe",
)
SEEING: Final = replace(
    TEXT,
    text="text_config",
    layers="model.language_model.layers",
    top={name.replace("model.", "model.language_model."): gguf for name, gguf in TOP.items()},
    skipped={**TEXT.skipped, r"model\.visual\..*": "the part that sees pictures (vision tower)"},
)

FAMILY = Family(
    architectures=("qwen3next", "qwen35moe"),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"qwen2", "qwen35"})),
    directories={"qwen3_next": NEXT, "qwen3_5_moe": SEEING, "qwen3_5_moe_text": TEXT},
)
