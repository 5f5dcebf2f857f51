"""Gemma 4 26B-A4B (Google, 2026): windows in five of six layers, with heads of another size; experts beside a network.

Every part's answer is normed before it is added, layers are scaled, logits have a soft cap. Values of full layers are
the projection of keys. Small models of the family that give each layer an embedding of its own, or share keys and
values between layers, are not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from colibri.errors import FormatError, UnsupportedError
from colibri.models import common
from colibri.spec import AttentionSpec, BesideSpec, ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import ATTENTION, COMMON_KEYS, DENSE, TOP, Directory, Family, Key, PreTokenizers
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo

PER_LAYER: Final = "embedding_length_per_layer_input"
SHARED: Final = "attention.shared_kv_layers"
ACTIVATION: Final = "gelu_tanh"


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What a Gemma 4 model with experts is made of."""
    metadata, key = checkpoint.metadata, checkpoint.key
    for name in (PER_LAYER, SHARED):
        if metadata.integer(key(name), 0):
            raise UnsupportedError(f"{checkpoint.path}: {key(name)} is {metadata[key(name)]}; only 0 is run")
    hidden = metadata.integer(key("embedding_length"), low=1)
    norm = common.rms_norm(checkpoint)
    moe = replace(
        common.mixture(checkpoint, common.routing(checkpoint, renormalize=True), activation=ACTIVATION),
        beside=BesideSpec(
            network=common.dense(checkpoint, activation=ACTIVATION), norm="ffn_norm", answer_norm="post_ffw_norm_1"
        ),
        answer_norm="post_ffw_norm_2",
        router_scale=hidden**-0.5,
    )
    return common.model(
        checkpoint, partial(_attention, checkpoint), lambda layer: moe, norm,
        layer={"ffn_norm": "pre_ffw_norm_2", "answer_norms": ("post_attention_norm", "post_ffw_norm")},
        embedding_scale=hidden**0.5, logit_cap=metadata.number(key("final_logit_softcapping"), 0.0) or None,
    )  # fmt: skip


def _attention(checkpoint: Checkpoint, layer: int) -> AttentionSpec:
    windows = common.windows(checkpoint, lambda number: (number + 1) % 6 != 0)
    full = common.attention(
        checkpoint, kv_heads=common.kv_heads(checkpoint)[layer], qk_norm="head", value_norm=True, scale=1.0, window=0
    )
    if windows[layer]:
        return common.sliding(checkpoint, full)
    if full.rope is not None and full.rope.factors is None and full.rope.scaling == "none":
        raise FormatError(f"{checkpoint.path}: the tensor {common.ROPE_FACTORS} is missing; it says which pairs turn")
    return replace(full, values_from_keys=f"blk.{layer}.attn_v.weight" not in checkpoint.tensors)


# ---- directories -----------------------------------------------------------------------------------------------------


def _more_keys(config: Metadata) -> Mapping[str, Any]:
    """Sizes of full and of sliding layers, from per_layer_config (transformers 5.24) or global_* (before)."""
    kinds = config.strings("layer_types")
    if not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise UnsupportedError(f"{config.source}: layer_types are {sorted(set(kinds))}; sliding and full are run")
    if "full_attention" not in config.get("rope_parameters", {}):
        raise FormatError(f"{config.source}: rope_parameters has no full_attention")
    sliding = config.integer("head_dim", low=1)
    full = _full_layers(config, kinds)
    heads = config.integer("num_key_value_heads", low=1)
    full_heads = full.integer("num_key_value_heads", heads, low=1) if config.flag("attention_k_eq_v", False) else heads
    head_dim = full.integer("head_dim", low=1)
    return {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.key_length_swa": sliding,
        "attention.value_length_swa": sliding,
        "attention.head_count_kv": [heads if kind == "sliding_attention" else full_heads for kind in kinds],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
    }


def _full_layers(config: Metadata, kinds: Iterable[str]) -> Metadata:
    """What is different in full layers, under the names that sliding layers have it."""
    layers = config.get("per_layer_config")
    if layers is None:
        names = {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"}
        return Metadata(config.source, {name: config[given] for given, name in names.items() if given in config})
    wanted = [str(layer) for layer, kind in enumerate(kinds) if kind == "full_attention"]
    alike = isinstance(layers, dict) and list(layers) == wanted
    if not alike or not all(part == layers[wanted[0]] and isinstance(part, dict) for part in layers.values()):
        raise UnsupportedError(
            f"{config.source}: per_layer_config is {layers!r:.80}; one for full layers, all alike, is run"
        )
    return Metadata(config.source, layers[wanted[0]])


def _named(name: str) -> Callable[[Metadata, TensorInfo], Iterable[TensorInfo]]:
    return lambda config, tensor: [replace(tensor, name=name)]


LAYER: Final = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
}
TEXT: Final = Directory(
    keys=(
        *COMMON_KEYS,
        Key("feed_forward_length", ("intermediate_size",)),
        Key("expert_feed_forward_length", ("moe_intermediate_size",)),
        Key("attention.sliding_window", ("sliding_window",)),
        Key("final_logit_softcapping", ("final_logit_softcapping",), "number", 0.0),  # llama.cpp takes 30 without it
        Key(SHARED, ("num_kv_shared_layers",), default=0),
        Key(PER_LAYER, ("hidden_size_per_layer_input",), default=0),
    ),
    more_keys=_more_keys,
    layer=ATTENTION | DENSE | LAYER,
    views={
        "layer_scalar": _named("layer_output_scale.weight"),
        "router.scale": _named("ffn_gate_inp.scale"),
        "router.per_expert_scale": _named("ffn_down_exps.scale"),
    },
    experts_modules=("experts",),
    experts={},
    theta=1e4,
    expects={
        "hidden_activation": ("gelu_pytorch_tanh",),
        "enable_moe_block": (True,),
        "num_kv_shared_layers": (0,),
        "hidden_size_per_layer_input": (0,),
        "use_double_wide_mlp": (False,),
        "use_bidirectional_attention": ("vision",),  # among the parts of a picture
    },
)
SEEING: Final = replace(
    TEXT,
    text="text_config",
    layers="model.language_model.layers",
    top={name.replace("model.", "model.language_model."): gguf for name, gguf in TOP.items()},
    skipped={
        r"model\.(vision_tower|embed_vision)\..*": "the part that sees pictures (vision tower)",
        r"model\.(audio_tower|embed_audio)\..*": "the part that hears (audio tower)",
    },
)

FAMILY = Family(
    architectures=("gemma4",),
    spec=common.spec_function(spec),
    pre_tokenizers=PreTokenizers(frozenset({"gemma4"})),
    directories={"gemma4_text": TEXT, "gemma4": SEEING},
)
