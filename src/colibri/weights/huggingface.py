"""Hugging Face directories in GGUF's words: config.json becomes metadata keys, tensors get their GGUF names.

What differs between families is in their Directory, which a module of models/ makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from colibri.errors import FormatError, UnsupportedError
from colibri.weights.family import MORE_THAN_ONE, REQUIRED, Directory, Families, Family
from colibri.weights.json_file import read_object
from colibri.weights.metadata import Metadata
from colibri.weights.paired import METHODS, with_sides
from colibri.weights.repository_name import repository_name
from colibri.weights.safetensors import supported
from colibri.weights.tensor_info import TensorInfo, with_row_orders

_IGNORED = re.compile(r".*\.rotary_emb\.inv_freq")  # computed, stored by old versions

ReadWeights = Callable[[Path], dict[str, TensorInfo]]


def read_huggingface(
    path: Path, families: Families, read_weights: ReadWeights
) -> tuple[Family, Metadata, dict[str, TensorInfo], tuple[str, ...]]:
    """Family, metadata and tensors of a directory with config.json, in GGUF's vocabulary, and notes on what is skipped.

    read_weights finds the tensors.

    Raises FileError, FormatError or UnsupportedError naming the file and the field or tensor.
    """
    file = path / "config.json"
    config = Metadata(file, {name: value for name, value in read_object(file).items() if value is not None})
    family = _family(config, families)
    directory = family.directories[config.text("model_type")]
    if directory.text:
        config = _inside(config, directory.text)
    _check_supported(config, directory)
    metadata = _metadata(config, family, directory, repository_name(path) or path.resolve().name)
    layers = metadata.integer(f"{metadata.text('general.architecture')}.block_count", low=1, high=1 << 16)
    kept, notes = _skip(directory, layers, read_weights(path))
    if _quantization(config) is not None:
        kept = with_sides(kept, config)
    tensors = with_row_orders(_tensors(config, directory, kept), directory.row_orders(metadata))
    _check_layers(config, directory, layers, tensors)
    return family, metadata, tensors, notes


def _quantization(config: Metadata) -> str | None:
    """The method of quantization_config, as text."""
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else found
    return None if method is None else str(method)


def _inside(config: Metadata, field: str) -> Metadata:
    """The part of a configuration that describes the language model, with what stands beside it for all."""
    part = config.get(field)
    if not isinstance(part, dict):
        raise config.error(field, type(part).__name__, "an object")
    inside = {name: value for name, value in part.items() if value is not None}
    return Metadata(config.source, {**{name: config[name] for name in config if name != field}, **inside})


def _skip(
    directory: Directory, layers: int, found: Mapping[str, TensorInfo]
) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """The tensors of the model that is run, and what the others are."""
    kept: dict[str, TensorInfo] = {}
    notes: dict[str, None] = {}
    in_layer = _in_layer(directory)
    for name, tensor in found.items():
        match = in_layer.fullmatch(name)
        what = next((what for pattern, what in directory.skipped.items() if re.fullmatch(pattern, name)), None)
        if what is None and match is not None and int(match[1]) >= layers:
            what = MORE_THAN_ONE
        if what is not None:
            notes[f"{what} is not used"] = None
        elif not _IGNORED.fullmatch(name):
            kept[name] = tensor
    return kept, tuple(notes)


def _family(config: Metadata, families: Families) -> Family:
    model_type = config.text("model_type")
    family = families.by_model_type.get(model_type)
    if family is None:
        experts = any(name in config for name in ("num_local_experts", "num_experts", "n_routed_experts"))
        why = (
            "not an architecture that is read"
            if experts
            else "not a Mixture-of-Experts model, which this engine is for"
        )
        known = ", ".join(families.by_model_type)
        raise UnsupportedError(f"{config.source}: model_type {model_type!r} is {why}; known: {known}")
    return family


def _check_supported(config: Metadata, directory: Directory) -> None:
    method = _quantization(config)
    if method is not None and method not in METHODS:
        raise UnsupportedError(
            f"{config.source}: quantization_config {method!r:.80}: of quantised safetensors {', '.join(METHODS)} are "
            "read; use the unquantised checkpoint or a GGUF file"
        )
    for name, allowed in directory.expects.items():
        if name in config and config[name] not in allowed:
            wanted, model_type = " or ".join(map(repr, allowed)), config["model_type"]
            raise UnsupportedError(f"{config.source}: {name} is {config[name]!r:.80}; for {model_type} {wanted} is run")


# --- config.json -> metadata ---


def _metadata(config: Metadata, family: Family, directory: Directory, name: str) -> Metadata:
    values: dict[str, Any] = {}
    written = {"attention.head_count_kv": "num_key_value_heads", "attention.key_length": directory.head_dim}
    for key in directory.keys:
        found = written[key.key] = next((name for name in key.names if name in config), key.names[0])
        if found in config or key.default is REQUIRED:
            values[key.key] = getattr(config, key.kind)(found)
        elif key.default is not None:
            values[key.key] = key.default
    heads, hidden = values["attention.head_count"], values["embedding_length"]
    if heads < 1 or (directory.head_dim not in config and hidden % heads):
        raise FormatError(f"{config.source}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = config.integer(directory.head_dim, hidden // heads, low=1, high=1 << 16)
    values["attention.head_count_kv"] = config.integer("num_key_value_heads", heads, low=1)
    values["attention.key_length"] = values["attention.value_length"] = head_dim
    more = dict(directory.more_keys(config))
    full, sliding = (more.get(f"attention.key_length{kind}", head_dim) for kind in ("", "_swa"))
    head_dims = {"all": head_dim, "full": full, "sliding": sliding}
    values |= _ropes(config, directory, head_dims, values["context_length"]) | dict(directory.always) | more
    prefix = directory.architecture or family.architectures[0]
    general = {"general.architecture": prefix, "general.name": name, "general.type": "model"}
    return Metadata(
        config.source,
        general | {f"{prefix}.{key}": _as_stored(value) for key, value in values.items() if value is not None},
        {f"{prefix}.{key}": field for key, field in written.items()},
    )


def _as_stored(value: Any) -> Any:
    """A float as a GGUF file holds it, so that one made from this directory means exactly the same."""
    with np.errstate(over="ignore"):  # an infinity is named when it is asked for
        return float(np.float32(value)) if isinstance(value, float) else value


def _ropes(config: Metadata, directory: Directory, head_dims: Mapping[str, int], context: int) -> dict[str, Any]:
    """Rope keys from rope_parameters (transformers 5) or rope_theta, rotary_dim and rope_scaling (before).

    Where full and sliding layers turn in ways of their own, those of the sliding ones end with _swa.
    """
    field = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"  # which of both transformers takes
    given = _rope_object(config, field, config.get(field, {}))
    if "full_attention" not in given:
        return _rope(config, directory, given, head_dims["all"], context)
    full, sliding = (
        _rope(config, directory, _rope_object(config, field, given.get(f"{kind}_attention")), head_dims[kind], context)
        for kind in ("full", "sliding")
    )
    if len(sliding) > 2:
        raise UnsupportedError(f"{config.source}: {field} scales the rope of sliding layers, which is not run")
    return full | {f"{key}_swa": value for key, value in sliding.items()}


def _rope_object(config: Metadata, field: str, given: object) -> Metadata:
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise FormatError(f"{config.source}: {field} is {given!r:.80}, an object is expected")
    return Metadata(config.source, {name: value for name, value in given.items() if value is not None})


def _rope(config: Metadata, directory: Directory, rope: Metadata, head_dim: int, context: int) -> dict[str, Any]:
    """The keys of one kind of layers.

    The types "llama3", "dynamic" and "proportional" and the keys low_freq_factor, high_freq_factor, yarn_truncate and
    turning are not in GGUF's vocabulary (llama.cpp stores a table of factors for llama3 and proportional and does not
    know dynamic); they are ours.
    """
    theta = rope.number("rope_theta", config.number("rope_theta", directory.theta))
    usual = config.number("rotary_dim", head_dim * directory.rotary_part) / head_dim
    part = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", usual))
    keys = {"rope.freq_base": theta, "rope.dimension_count": int(head_dim * part)}
    kind = rope.text("rope_type" if "rope_type" in rope else "type", "default")
    if kind == "default":
        if part != 1 and usual == 1:  # transformers ignores it for such families
            what = f"partial_rotary_factor is {part:g}; for {config['model_type']} rope over whole heads is run"
            raise UnsupportedError(f"{config.source}: {what}")
        return keys
    if kind == "proportional":  # pairs are those of the whole head, and some of them turn
        scaling = {"type": kind, "factor": rope.number("factor", 1.0), "turning": 2 * int(part * head_dim // 2)}
        return keys | {"rope.dimension_count": head_dim} | _scaling_keys(scaling)
    if kind in ("llama3", "yarn") and "original_max_position_embeddings" in config:  # it has priority
        rope = Metadata(
            config.source, {**rope, "original_max_position_embeddings": config["original_max_position_embeddings"]}
        )
    if kind not in _SCALINGS:
        raise UnsupportedError(
            f"{config.source}: rope_type {kind!r} is not run; known: default, proportional, {', '.join(_SCALINGS)}"
        )
    scaling = {"type": kind, "factor": rope.number("factor")} | _SCALINGS[kind](rope, context)
    if kind != "llama3":  # whose files say the stretched length themselves
        keys["context_length"] = max(context, int(rope.number("factor") * _original(rope, context)))
    return keys | _scaling_keys(scaling)


def _scaling_keys(scaling: Mapping[str, Any]) -> dict[str, Any]:
    return {f"rope.scaling.{name}": value for name, value in scaling.items()}


def _original(rope: Metadata, context: int) -> int:
    return rope.integer("original_max_position_embeddings", context, low=1)


def _original_context(rope: Metadata, context: int) -> dict[str, Any]:
    return {"original_context_length": _original(rope, context)}


def _yarn(rope: Metadata, context: int) -> dict[str, Any]:
    keys = _original_context(rope, context)
    keys["yarn_beta_fast"] = rope.number("beta_fast", 32.0)
    keys["yarn_beta_slow"] = rope.number("beta_slow", 1.0)
    if not rope.flag("truncate", True):
        keys["yarn_truncate"] = False
    attention = rope.number("attention_factor", 0.0)
    scale, scale_all = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if not attention and scale and scale_all:
        attention = _yarn_scale(rope.number("factor"), scale) / _yarn_scale(rope.number("factor"), scale_all)
    if attention:
        keys["yarn_attn_factor"] = attention
    return keys


def _yarn_scale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(rope: Metadata, context: int) -> dict[str, Any]:
    return _original_context(rope, context) | {
        "low_freq_factor": rope.number("low_freq_factor"),
        "high_freq_factor": rope.number("high_freq_factor"),
    }


_SCALINGS: Final[Mapping[str, Callable[[Metadata, int], dict[str, Any]]]] = {
    "linear": lambda rope, context: {},
    "dynamic": lambda rope, context: {"original_context_length": context},
    "yarn": _yarn,
    "llama3": _llama3,
}


# --- tensor names ---


def _in_layer(directory: Directory) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(directory.layers)}\.(\d{{1,5}})\.(.+)")


def _tensors(config: Metadata, directory: Directory, found: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    tied = config.flag("tie_word_embeddings", directory.tied)
    tensors: dict[str, TensorInfo] = {}
    for name, tensor in found.items():  # an lm_head is used also where the config says it is the embedding
        for info in _translate(config, directory, name, supported(tensor)):
            if info.name in tensors:
                raise FormatError(f"{tensor.file}: {name} and another tensor both stand for {info.name}")
            tensors[info.name] = info
    if not tied and "output.weight" not in tensors:
        raise FormatError(f"{config.source}: tie_word_embeddings is false, but there is no tensor lm_head.weight")
    return tensors


def _translate(config: Metadata, directory: Directory, name: str, tensor: TensorInfo) -> list[TensorInfo]:
    if name in directory.top:
        return [_info(directory.top[name], tensor, directory)]
    match = _in_layer(directory).fullmatch(name)
    if match:
        block, rest = f"blk.{int(match[1])}.", match[2]
        if rest in directory.views:
            return [_info(f"{block}{view.name}", view) for view in directory.views[rest](config, tensor)]
        module, _, kind = rest.rpartition(".")
        if module in directory.layer and kind in ("weight", "bias"):
            return [_info(f"{block}{directory.layer[module]}.{kind}", tensor, directory)]
        for experts in directory.experts_modules:
            if rest.startswith(experts + "."):
                infos = _expert_tensors(directory, block, rest.removeprefix(experts + "."), tensor)
                if infos:
                    return infos
    raise UnsupportedError(
        f"{tensor.file}: the tensor {name:.200} is not known for {config['model_type']} models; save the model with "
        "transformers' save_pretrained, without adapters or layers of its own"
    )


def _expert_tensors(directory: Directory, block: str, rest: str, tensor: TensorInfo) -> list[TensorInfo]:
    """One expert's matrix (`3.w1.weight`) or all experts' (`gate_up_proj`: for each expert gate rows, then up rows)."""
    parts = rest.split(".")
    if len(parts) == 3 and parts[0].isdecimal() and parts[1] in directory.experts and parts[2] in ("weight", "bias"):
        return [_info(f"{block}ffn_{directory.experts[parts[1]]}.{int(parts[0])}.{parts[2]}", tensor)]
    if rest in ("up_proj", "down_proj") and len(tensor.shape) == 3:
        return [_info(f"{block}ffn_{rest.removesuffix('_proj')}_exps.weight", tensor)]
    if rest == "gate_up_proj" and len(tensor.shape) == 3:
        merged = _info(f"{block}ffn_gate_up_exps.weight", tensor)
        return list(merged.halves(f"{block}ffn_gate_exps.weight", f"{block}ffn_up_exps.weight"))
    return []


def _info(name: str, tensor: TensorInfo, directory: Directory | None = None) -> TensorInfo:
    if not 1 <= len(tensor.shape) <= 4 or min(tensor.shape) < 1:
        raise FormatError(f"{tensor.file}: tensor {tensor.name:.200} has the impossible shape {list(tensor.shape)}")
    transforms = {} if directory is None else directory.transforms
    return replace(tensor, name=name, transform=transforms.get(re.sub(r"^blk\.\d+\.", "", name), tensor.transform))


def _check_layers(config: Metadata, directory: Directory, layers: int, tensors: Mapping[str, TensorInfo]) -> None:
    """Layers have experts where the config says so, and biases when it says so."""
    dense = directory.dense_layers(config, layers)
    for layer in range(layers):
        routed = f"blk.{layer}.ffn_gate_inp.weight" in tensors
        if routed == (layer in dense):
            expected = "a dense layer" if layer in dense else "a layer with experts (a router)"
            raise FormatError(f"{config.source}: makes layer {layer} {expected}, but the tensors are not those of one")
        wanted = config.flag("attention_bias", None)
        biased = f"blk.{layer}.attn_q.bias" in tensors
        if wanted is not None and f"blk.{layer}.attn_q.weight" in tensors and biased != wanted:
            found = "has a" if biased else "has no"
            raise FormatError(
                f"{config.source}: attention_bias is {str(wanted).lower()}, but layer {layer} {found} q_proj.bias"
            )
