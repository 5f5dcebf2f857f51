"""From a checkpoint's metadata, in GGUF's keys for every kind of file, to the configuration that decoders share."""

from __future__ import annotations

from typing import Any

from colibri.config import ModelConfig, RopeConfig, RopeScaling
from colibri.errors import ArgumentError, FormatError, UnsupportedError
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.metadata import Metadata

SCALINGS: dict[str, RopeScaling] = {
    "none": "none", "default": "none", "linear": "linear", "yarn": "yarn", "llama3": "llama3", "dynamic": "dynamic",
}  # fmt: skip
EPSILONS = {"rms": "layer_norm_rms_epsilon", "layer": "layer_norm_epsilon"}


def decoder_config(checkpoint: Checkpoint, *, rope: bool = True, **rules: Any) -> ModelConfig:
    """The configuration of a decoder with routed experts; `rules` are what the architecture fixes, without rope if so.

    Raises FormatError when a key is missing, of the wrong type or contradicts another.
    """
    metadata = checkpoint.metadata
    prefix = checkpoint.architecture
    hidden = metadata.integer(f"{prefix}.embedding_length", low=1)
    heads = metadata.integer(f"{prefix}.attention.head_count", low=1)
    head_dim = metadata.integer(f"{prefix}.attention.key_length", hidden // heads)
    if metadata.integer(f"{prefix}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{checkpoint.path}: values and keys of different lengths are not supported")
    context = metadata.integer(f"{prefix}.context_length", low=1)
    intermediate = metadata.integer(f"{prefix}.feed_forward_length", 0)
    fields: dict[str, Any] = {
        "architecture": prefix,
        "name": checkpoint.name,
        "layers": metadata.integer(f"{prefix}.block_count", low=1, high=512),
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": metadata.integer(f"{prefix}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": _vocabulary(checkpoint),
        "context_length": context,
        "experts": metadata.integer(f"{prefix}.expert_count", low=1),
        "experts_per_token": metadata.integer(f"{prefix}.expert_used_count", low=1),
        "expert_intermediate": metadata.integer(f"{prefix}.expert_feed_forward_length", intermediate),
        "intermediate": intermediate,
        "norm_eps": metadata.number(f"{prefix}.attention.{EPSILONS[rules.get('norm', 'rms')]}"),
        "rope": rope_config(metadata, prefix, head_dim, context) if rope else None,
        "renormalize": metadata.flag(f"{prefix}.expert_weights_norm", rules.pop("renormalize")),
        "expert_scale": metadata.number(f"{prefix}.expert_weights_scale", 1.0) or 1.0,  # 0 stands for "not set"
        "gated": checkpoint.gated,
        "window": metadata.integer(f"{prefix}.attention.sliding_window", 0),
    }
    try:
        return ModelConfig(**(fields | rules))
    except ArgumentError as error:
        raise FormatError(f"{checkpoint.path}: the metadata makes no model: {error}") from error


def rope_config(metadata: Metadata, prefix: str, head_dim: int, context: int) -> RopeConfig:
    """The rotary positions: theta, how much of a head turns, and the scaling."""
    key = f"{prefix}.rope"
    kind = metadata.text(f"{key}.scaling.type", "none")
    if kind not in SCALINGS:
        raise UnsupportedError(
            f"{metadata.source}: {key}.scaling.type is {kind!r}, supported are {', '.join(SCALINGS)}"
        )
    factor = metadata.number(f"{key}.scaling.factor", 1.0)
    try:
        return RopeConfig(
            theta=metadata.number(f"{key}.freq_base", 10000.0),
            rotary=metadata.integer(f"{key}.dimension_count", head_dim),
            scaling=SCALINGS[kind],
            factor=factor,
            original_context=metadata.integer(f"{key}.scaling.original_context_length", context),
            attention_factor=_attention_factor(metadata, f"{key}.scaling"),
            beta_fast=metadata.number(f"{key}.scaling.yarn_beta_fast", 32.0),
            beta_slow=metadata.number(f"{key}.scaling.yarn_beta_slow", 1.0),
            low_frequency_factor=metadata.number(f"{key}.scaling.low_freq_factor", 1.0),
            high_frequency_factor=metadata.number(f"{key}.scaling.high_freq_factor", 4.0),
        )
    except ArgumentError as error:
        raise FormatError(f"{metadata.source}: {error}") from error


def _attention_factor(metadata: Metadata, key: str) -> float | None:
    return metadata.number(f"{key}.yarn_attn_factor") if f"{key}.yarn_attn_factor" in metadata else None


def _vocabulary(checkpoint: Checkpoint) -> int:
    """Rows of the embedding: tokenizers may name fewer or more tokens."""
    info = checkpoint.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise FormatError(f"{checkpoint.path}: tensor token_embd.weight is missing or no matrix")
    return info.shape[0]
