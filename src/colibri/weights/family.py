"""What tells one family of models from another: its names in GGUF files and in Hugging Face directories.

A module of models/ fills these in; nothing here or beside it lists families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from colibri.errors import FormatError
from colibri.spec import ModelSpec
from colibri.weights.metadata import Metadata
from colibri.weights.row_order import RowOrder
from colibri.weights.tensor_info import TensorInfo

if TYPE_CHECKING:
    from colibri.weights.checkpoint import Checkpoint

REQUIRED: Final = object()
MORE_THAN_ONE: Final = "the head that predicts more than one token (MTP)"


TOP: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
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
SHARED_EXPERTS: Final = {
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
NAMED_EXPERTS: Final = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


@dataclass(frozen=True)
class Key:
    """A field of config.json and the metadata key it becomes. `names` are the names it has had."""

    key: str
    names: tuple[str, ...]
    kind: str = "integer"  # the getter of Metadata
    default: Any = REQUIRED  # None: no key when the field is absent


View = Callable[[Metadata, TensorInfo], Iterable[TensorInfo]]


def _no_keys(config: Metadata) -> Mapping[str, Any]:
    return {}


def _no_layers(config: Metadata, layers: int) -> set[int]:
    return set()


def _no_orders(metadata: Metadata) -> Mapping[str, RowOrder]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Directory:
    """How the directories of one model_type are translated into GGUF's vocabulary.

    keys: fields that become a key each; more_keys: what else config.json says, as keys; None leaves one out.
    layer: module inside a layer -> GGUF name; experts: module inside an expert -> projection. Where a module has had
    several names, all of them are known. layers: what the layers are in, and top: the names of what is beside them.
    views: what stands for several tensors of a layer, or for one in another order or shape: its name inside a layer,
    with weight or bias where it has that, -> (config, tensor) -> tensors named without the layer.
    transforms: GGUF names inside a layer, or of what is beside them, -> what their values go through (TRANSFORMS of
    weights/load.py). row_orders: as of a Family, for rows of directories. skipped: patterns of names -> what they are.
    head_dim: the field with the size of a head, of which rotary positions turn a part.
    theta: of rope, and rotary_part: how much of a head turns, where config.json gives none.
    expects: fields that must have one of these values where they are given, because nothing else is implemented.
    dense_layers: config -> the layers without experts. text: the field of config.json that describes the language
    model, where it describes others beside it. architecture: of its GGUF files, where it is not the family's first.
    tied: whether the embedding is the output matrix where config.json does not say.
    """


    keys: tuple[Key, ...]
    more_keys: Callable[[Metadata], Mapping[str, Any]] = _no_keys
    layer: Mapping[str, str]
    experts_modules: tuple[str, ...] = ("mlp.experts",)
    experts: Mapping[str, str]
    theta: float
    rotary_part: float = 1.0
    head_dim: str = "head_dim"
    always: Mapping[str, Any] = field(default_factory=dict)
    expects: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dense_layers: Callable[[Metadata, int], set[int]] = _no_layers
    layers: str = "model.layers"
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    views: Mapping[str, View] = field(default_factory=dict)
    transforms: Mapping[str, str] = field(default_factory=dict)
    row_orders: Callable[[Metadata], Mapping[str, RowOrder]] = _no_orders
    skipped: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    architecture: str = ""
    tied: bool = False


class PreTokenizers(NamedTuple):
    """The names that released checkpoints of a family give as tokenizer.ggml.pre; others: any other is as good."""

    names: frozenset[str] = frozenset()
    others: bool = False


NO_PRE_TOKENIZERS: Final = PreTokenizers()


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models.

    architectures: general.architecture of its GGUF files. spec: from a checkpoint to what its model is made of.
    directories: by model_type. row_orders: from metadata to the parts of a layer, such as attn_q, whose rows GGUF files
    store in another order than the engine.
    pre_tokenizers: to tell a mislabelled file. skipped: patterns of GGUF names -> what the tensors are that are not
    used. never_tied: llama.cpp asks for an output matrix even where it is tied. final_norm: what GGUF files call the
    last norm. gated: experts and dense networks have a gate where metadata does not say.
    views, more_keys: as of a Directory, of GGUF files that have tensors or metadata in older words.
    """

    architectures: tuple[str, ...]
    spec: Callable[[Checkpoint], ModelSpec]
    directories: Mapping[str, Directory] = field(default_factory=dict)
    row_orders: Callable[[Metadata], Mapping[str, RowOrder]] = _no_orders
    pre_tokenizers: PreTokenizers = NO_PRE_TOKENIZERS
    never_tied: bool = False
    final_norm: str = "output_norm"
    gated: bool = True
    skipped: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, View] = field(default_factory=dict)
    more_keys: Callable[[Metadata], Mapping[str, Any]] = _no_keys


class Families:
    """All families, by what their files call them."""

    def __init__(self, families: Iterable[Family]) -> None:
        known = tuple(families)
        self.by_architecture = {architecture: family for family in known for architecture in family.architectures}
        self.by_model_type = {model_type: family for family in known for model_type in family.directories}


# ---- what the directories of several families share ----

COMMON_KEYS: Final = (
    Key("block_count", ("num_hidden_layers",)),
    Key("context_length", ("max_position_embeddings",)),
    Key("embedding_length", ("hidden_size",)),
    Key("vocab_size", ("vocab_size",)),
    Key("attention.head_count", ("num_attention_heads",)),
    Key("attention.layer_norm_rms_epsilon", ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"), "number"),
    Key("expert_count", ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")),
    Key("expert_used_count", ("num_experts_per_tok", "moe_k", "top_k_experts")),
)


def one_width(name: str) -> tuple[Key, ...]:
    """Keys of families whose dense networks, if any, are as wide as an expert."""
    return Key("feed_forward_length", (name,)), Key("expert_feed_forward_length", (name,))


def correction_bias(config: Metadata, tensor: TensorInfo) -> Iterable[TensorInfo]:
    """A view: what is added to the router's scores for the choice alone; some store it as a matrix of one row."""
    yield replace(tensor, name="exp_probs_b.bias", shape=tensor.shape[-1:])


def first_dense(config: Metadata, layers: int) -> set[int]:
    """The dense layers of configurations with first_k_dense_replace."""
    return set(range(min(config.integer("first_k_dense_replace", 0), layers)))


def sparse_step(config: Metadata, layers: int) -> set[int]:
    """The dense layers of configurations with decoder_sparse_step and mlp_only_layers."""
    step = config.integer("decoder_sparse_step", 1, low=1)
    only_dense = config.get("mlp_only_layers", [])
    if not isinstance(only_dense, list) or not all(type(layer) is int for layer in only_dense):
        raise FormatError(f"{config.source}: mlp_only_layers is {only_dense!r:.80}, a list of layers is expected")
    return {layer for layer in range(layers) if layer in only_dense or (layer + 1) % step}
