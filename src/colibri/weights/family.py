"""What tells one family of models from another: its names in GGUF files and in Hugging Face directories.

A module of models/ fills these in; nothing here or beside it lists families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from colibri.errors import FormatError
from colibri.spec import ModelSpec
from colibri.weights.metadata import Metadata

if TYPE_CHECKING:
    from colibri.weights.checkpoint import Checkpoint

REQUIRED: Final = object()


@dataclass(frozen=True)
class Key:
    """A field of config.json and the metadata key it becomes. `names` are the names it has had."""

    key: str
    names: tuple[str, ...]
    kind: str = "integer"  # the getter of Metadata
    default: Any = REQUIRED  # None: no key when the field is absent


def _no_layers(config: Metadata, layers: int) -> set[int]:
    return set()


@dataclass(frozen=True, kw_only=True)
class Directory:
    """How the directories of one model_type are translated into GGUF's vocabulary.

    layer: module inside a layer -> GGUF name; experts: module inside an expert -> projection. Where a module has had
    several names, all of them are known. theta: of rope, where config.json gives none.
    expects: fields that must have one of these values where they are given, because nothing else is implemented.
    dense_layers: config -> the layers without experts.
    """

    keys: tuple[Key, ...]
    layer: Mapping[str, str]
    experts_modules: tuple[str, ...] = ("mlp.experts",)
    experts: Mapping[str, str]
    theta: float
    always: Mapping[str, Any] = field(default_factory=dict)
    expects: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dense_layers: Callable[[Metadata, int], set[int]] = _no_layers


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models.

    architecture: general.architecture of its GGUF files. spec: from a checkpoint to what its model is made of.
    directories: by model_type. adjacent_pairs: projections whose rows GGUF files store for rope on adjacent pairs.
    pre_tokenizers: those that its released checkpoints name, to tell a mislabelled file; other_pre_tokenizers:
    checkpoints with any other are as good. never_tied: llama.cpp asks for an output matrix even where it is tied.
    """

    architecture: str
    spec: Callable[[Checkpoint], ModelSpec]
    directories: Mapping[str, Directory] = field(default_factory=dict)
    adjacent_pairs: tuple[str, ...] = ()
    pre_tokenizers: frozenset[str] = frozenset()
    other_pre_tokenizers: bool = False
    never_tied: bool = False


class Families:
    """All families, by what their files call them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self.by_architecture = {family.architecture: family for family in families}
        self.by_model_type = {
            model_type: family for family in self.by_architecture.values() for model_type in family.directories
        }


# ---- words that the directories of several families share ----

ATTENTION: Final = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
DENSE: Final = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
NAMED_EXPERTS: Final = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}

COMMON_KEYS: Final = (
    Key("block_count", ("num_hidden_layers",)),
    Key("context_length", ("max_position_embeddings",)),
    Key("embedding_length", ("hidden_size",)),
    Key("vocab_size", ("vocab_size",)),
    Key("attention.head_count", ("num_attention_heads",)),
    Key("attention.layer_norm_rms_epsilon", ("rms_norm_eps",), "number"),
    Key("expert_count", ("num_local_experts", "num_experts", "n_routed_experts")),
    Key("expert_used_count", ("num_experts_per_tok",)),
)


def one_width(name: str) -> tuple[Key, ...]:
    """Keys of families whose dense networks, if any, are as wide as an expert."""
    return Key("feed_forward_length", (name,)), Key("expert_feed_forward_length", (name,))


def sparse_step(config: Metadata, layers: int) -> set[int]:
    """The dense layers of configurations with decoder_sparse_step and mlp_only_layers."""
    step = config.integer("decoder_sparse_step", 1, low=1)
    only_dense = config.get("mlp_only_layers", [])
    if not isinstance(only_dense, list) or not all(type(layer) is int for layer in only_dense):
        raise FormatError(f"{config.source}: mlp_only_layers is {only_dense!r:.80}, a list of layers is expected")
    return {layer for layer in range(layers) if layer in only_dense or (layer + 1) % step}
