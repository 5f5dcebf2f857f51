"""What families share on the way from a checkpoint's metadata, in GGUF's keys for every kind of file, to a spec.

All raise FormatError when a key is missing, of the wrong type or contradicts another, UnsupportedError for what is not
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from colibri.errors import ArgumentError, FormatError, UnsupportedError
from colibri.spec import (
    AttentionSpec,
    DenseSpec,
    FeedForward,
    LayerSpec,
    Mixer,
    ModelSpec,
    MoeSpec,
    NormSpec,
    RopeScaling,
    RopeSpec,
    RoutingSpec,
    SharedGate,
    SharedSpec,
)
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.metadata import Metadata
from colibri.weights.row_order import RowOrder, adjacent_pairs

SCALINGS: dict[str, RopeScaling] = {
    "none": "none", "default": "none", "linear": "linear", "yarn": "yarn", "llama3": "llama3", "dynamic": "dynamic",
    "proportional": "proportional",
}  # fmt: skip
GATINGS: dict[int, dict[str, Any]] = {  # what GGUF's expert_gating_func stands for; 0: nothing is said
    0: {},
    1: {"score": "softmax"},
    2: {"score": "sigmoid"},
    3: {"score": "identity", "softmax_of_chosen": True},
    4: {"score": "sqrt_softplus"},
}
ROPE_FACTORS = "rope_freqs.weight"


def rope_on_adjacent_pairs(*parts: str) -> Callable[[Metadata], Mapping[str, RowOrder]]:
    """For families whose GGUF files store the rows of these projections so that neighbouring values turn together."""

    def orders(metadata: Metadata) -> Mapping[str, RowOrder]:
        architecture = metadata.text("general.architecture")
        heads = metadata.integer(f"{architecture}.attention.head_count", low=1)
        hidden = metadata.integer(f"{architecture}.embedding_length", low=1)
        head_rows = metadata.integer(f"{architecture}.attention.key_length", hidden // heads, low=1)
        rotary = metadata.integer(f"{architecture}.rope.dimension_count", head_rows)
        if rotary != head_rows or head_rows % 2:
            raise UnsupportedError(
                f"{metadata.source}: {architecture}.rope.dimension_count is {rotary} of a head of {head_rows}; "
                f"for {architecture} rope over whole heads of even size is run"
            )
        return dict.fromkeys(parts, adjacent_pairs(head_rows))

    return orders


def spec_function(make: Callable[[Checkpoint], ModelSpec]) -> Callable[[Checkpoint], ModelSpec]:
    """A family's function whose complaints about values name the file."""

    @wraps(make)
    def made(checkpoint: Checkpoint) -> ModelSpec:
        try:
            return make(checkpoint)
        except ArgumentError as error:
            raise FormatError(f"{checkpoint.path}: the metadata makes no model: {error}") from error

    return made


def model(
    checkpoint: Checkpoint,
    mixer: Callable[[int], Mixer | None],
    ffn: Callable[[int], FeedForward | None],
    norm: NormSpec,
    layer: Mapping[str, Any] | None = None,
    **rules: Any,
) -> ModelSpec:
    """The decoder whose layers have the mixer and the feed-forward part that are given for their numbers.

    layer: what else holds for each of them; rules: for the whole.
    """
    metadata, key = checkpoint.metadata, checkpoint.key
    return ModelSpec(
        architecture=checkpoint.architecture,
        name=checkpoint.name,
        hidden_size=metadata.integer(key("embedding_length"), low=1),
        vocab_size=_vocabulary(checkpoint),
        context_length=_context_length(checkpoint),
        layers=tuple(
            LayerSpec(mixer=mixer(number), ffn=ffn(number), norm=norm, **(layer or {}))
            for number in range(checkpoint.layers)
        ),
        norm=norm,
        final_norm=checkpoint.family.final_norm,
        **rules,
    )


def per_layer(checkpoint: Checkpoint, name: str, usual: int = 0) -> list[int]:
    """A number for each layer: of a list, which also counts layers that are not run, or the same for all."""
    metadata, key = checkpoint.metadata, checkpoint.key(name)
    if not isinstance(metadata.get(key), list | np.ndarray):
        return [metadata.integer(key, usual)] * checkpoint.layers
    listed: list[int] = metadata.integers(key).tolist()
    blocks = metadata.integer(checkpoint.key("block_count"))
    if len(listed) != blocks or min(listed) < 0:
        raise metadata.error(key, str(listed), f"one number for each of {blocks} layers")
    return listed[: checkpoint.layers]


def kv_heads(checkpoint: Checkpoint) -> list[int]:
    """Heads of keys and values of each layer; 0 in layers that have none."""
    heads = checkpoint.metadata.integer(checkpoint.key("attention.head_count"), low=1)
    return per_layer(checkpoint, "attention.head_count_kv", heads)


def windows(checkpoint: Checkpoint, usual: Callable[[int], bool]) -> list[bool]:
    """Which layers see the latest tokens only: as the metadata lists, or as the family's layers usually do."""
    key = checkpoint.key("attention.sliding_window_pattern")
    found = checkpoint.metadata.get(key)
    if found is None:
        return [usual(layer) for layer in range(checkpoint.layers)]
    listed = [bool(value) for value in np.atleast_1d(found)]
    if len(listed) != checkpoint.layers:
        raise checkpoint.metadata.error(key, f"{len(listed)} values", f"one for each of {checkpoint.layers} layers")
    return listed


def _context_length(checkpoint: Checkpoint) -> int:
    """Tokens that the model can take: as the file says, or as YaRN or dynamic scaling stretch the original length."""
    metadata, key = checkpoint.metadata, checkpoint.key
    given, scaling = metadata.integer(key("context_length"), low=1), key("rope.scaling")
    if metadata.text(f"{scaling}.type", "none") not in ("yarn", "dynamic"):
        return given
    original = metadata.integer(f"{scaling}.original_context_length", given)
    return max(given, int(metadata.number(f"{scaling}.factor", 1.0) * original))


def rms_norm(checkpoint: Checkpoint) -> NormSpec:
    """RMSNorm with the checkpoint's epsilon."""
    return NormSpec(eps=checkpoint.metadata.number(checkpoint.key("attention.layer_norm_rms_epsilon")))


def attention(checkpoint: Checkpoint, *, truncate: bool = True, **rules: Any) -> AttentionSpec:
    """Attention with the sizes that the metadata gives; `rules` are what the family fixes, such as rope=None.

    truncate: see `rope`.
    """
    metadata, key = checkpoint.metadata, checkpoint.key
    heads = metadata.integer(key("attention.head_count"), low=1)
    head_dim = metadata.integer(
        key("attention.key_length"), metadata.integer(key("embedding_length"), low=1) // heads
    )
    if metadata.integer(key("attention.value_length"), head_dim) != head_dim:
        raise UnsupportedError(f"{checkpoint.path}: values and keys of different lengths are not supported")
    usual: dict[str, Any] = {
        "window": metadata.integer(key("attention.sliding_window"), 0),
        "scale": metadata.number(key("attention.scale"), 0.0) or None,
    }
    if "rope" not in rules:
        usual["rope"] = rope(checkpoint, head_dim, truncate)
    if "kv_heads" not in rules:
        usual["kv_heads"] = metadata.integer(key("attention.head_count_kv"), heads)
    return AttentionSpec(heads=heads, head_dim=head_dim, **(usual | rules))


def sliding(checkpoint: Checkpoint, full: AttentionSpec) -> AttentionSpec:
    """What `full` is in layers that see the latest tokens only, with the sizes and the rope that are theirs (_swa)."""
    metadata, key = checkpoint.metadata, checkpoint.key
    head_dim = metadata.integer(key("attention.key_length_swa"), full.head_dim)
    if metadata.integer(key("attention.value_length_swa"), head_dim) != head_dim:
        raise UnsupportedError(f"{checkpoint.path}: values and keys of different lengths are not supported")
    turns = RopeSpec(
        theta=metadata.number(key("rope.freq_base_swa"), 10000.0),
        rotary=metadata.integer(key("rope.dimension_count_swa"), head_dim),
    )
    window = metadata.integer(key("attention.sliding_window"), low=1)
    return replace(full, head_dim=head_dim, rope=turns, window=window)


def rope(checkpoint: Checkpoint, head_dim: int, truncate: bool = True) -> RopeSpec:
    """The rotary positions: theta, how much of a head turns, and the scaling; truncate where the metadata is silent."""
    metadata, key = checkpoint.metadata, checkpoint.key("rope")
    factor = metadata.number(f"{key}.scaling.factor", metadata.number(f"{key}.scale_linear", 0.0)) or 1.0
    alone = "none" if factor == 1 else "linear"  # what llama.cpp takes a factor without a type for
    kind = metadata.text(f"{key}.scaling.type", alone)
    if kind not in SCALINGS:
        raise UnsupportedError(
            f"{metadata.source}: {key}.scaling.type is {kind!r}, supported are {', '.join(SCALINGS)}"
        )
    context = metadata.integer(checkpoint.key("context_length"), low=1)
    factor_key = f"{key}.scaling.yarn_attn_factor"
    return RopeSpec(
        theta=metadata.number(f"{key}.freq_base", 10000.0),
        rotary=metadata.integer(f"{key}.dimension_count", head_dim),
        scaling=SCALINGS[kind],
        factor=factor,
        original_context=metadata.integer(f"{key}.scaling.original_context_length", context),
        attention_factor=metadata.number(factor_key) if factor_key in metadata else None,
        beta_fast=metadata.number(f"{key}.scaling.yarn_beta_fast", 32.0),
        truncate=metadata.flag(f"{key}.scaling.yarn_truncate", truncate),
        beta_slow=metadata.number(f"{key}.scaling.yarn_beta_slow", 1.0),
        low_frequency_factor=metadata.number(f"{key}.scaling.low_freq_factor", 1.0),
        high_frequency_factor=metadata.number(f"{key}.scaling.high_freq_factor", 4.0),
        turning=metadata.integer(f"{key}.scaling.turning", 0),
        factors=ROPE_FACTORS if ROPE_FACTORS in checkpoint.tensors else None,
    )


def dense(checkpoint: Checkpoint, **rules: Any) -> DenseSpec:
    """The network of layers without experts."""
    width = checkpoint.metadata.integer(checkpoint.key("feed_forward_length"), low=1)
    return DenseSpec(width=width, gated=checkpoint.gated, **rules)


def routing(checkpoint: Checkpoint, *, renormalize: bool = False, **rules: Any) -> RoutingSpec:
    """How the router chooses; `rules` hold where the metadata does not say it."""
    metadata, key = checkpoint.metadata, checkpoint.key
    gating = metadata.integer(key("expert_gating_func"), 0)
    if gating not in GATINGS:
        known = ", ".join(map(str, GATINGS))
        raise UnsupportedError(f"{metadata.source}: {key('expert_gating_func')} is {gating}, supported are {known}")
    groups = metadata.integer(key("expert_group_count"), 1) or 1  # 0 stands for "not set", here and below
    return RoutingSpec(
        experts=metadata.integer(key("expert_count"), low=1),
        experts_per_token=metadata.integer(key("expert_used_count"), low=1),
        renormalize=metadata.flag(key("expert_weights_norm"), renormalize),
        scale=metadata.number(key("expert_weights_scale"), 1.0) or 1.0,
        groups=groups,
        kept_groups=metadata.integer(key("expert_group_used_count"), groups) or groups,
        **rules | GATINGS[gating],
    )


def mixture(checkpoint: Checkpoint, routing: RoutingSpec, shared: SharedSpec | None = None, **rules: Any) -> MoeSpec:
    """A mixture of experts; `rules` are those of an expert."""
    metadata, key = checkpoint.metadata, checkpoint.key
    own, of_all = key("expert_feed_forward_length"), key("feed_forward_length")
    width = metadata.integer(own if own in metadata else of_all, 0)
    expert = DenseSpec(width=width, gated=checkpoint.gated, **rules)
    return MoeSpec(routing=routing, expert=expert, shared=shared, latent=metadata.integer(key("moe_latent_size"), 0))


def shared_expert(
    checkpoint: Checkpoint, gate: SharedGate = "none", usual_width: int = 0, **rules: Any
) -> SharedSpec | None:
    """The shared expert, if there is one: several that a file counts are one of their width together.

    usual_width holds where the metadata says nothing; `rules` are those of the network.
    """
    metadata, key = checkpoint.metadata, checkpoint.key
    count = metadata.integer(key("expert_shared_count"), 0)
    width = count * metadata.integer(key("expert_feed_forward_length"), 0) or usual_width
    width = metadata.integer(key("expert_shared_feed_forward_length"), width)
    return SharedSpec(network=DenseSpec(width=width, **rules), gate=gate) if width else None


def feed_forward(checkpoint: Checkpoint, moe: MoeSpec) -> Callable[[int], FeedForward]:
    """The mixture in layers that have a router's tensors, a dense network with its rules in the others."""

    def part(layer: int) -> FeedForward:
        return moe if checkpoint.is_moe(layer) else dense(checkpoint, activation=moe.expert.activation)

    return part


def _vocabulary(checkpoint: Checkpoint) -> int:
    """Rows of the embedding: tokenizers may name fewer or more tokens."""
    info = checkpoint.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise FormatError(f"{checkpoint.path}: tensor token_embd.weight is missing or no matrix")
    return info.shape[0]
