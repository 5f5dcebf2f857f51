"""Training states of DeepSpeed-MoE as Megatron-DeepSpeed saves them, in GGUF's vocabulary, to be converted.

The dense part and the trainer's options are in mp_rank_00_model_states.pt, each expert of each mixture in
layer_L_expert_E_mp_rank_00_model_states.pt, where L counts the mixtures; names inside say the layer itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from colibri.conversion.dequantize import READABLE
from colibri.conversion.torch_file import read_file, read_state
from colibri.errors import FormatError, UnsupportedError
from colibri.models.deepspeed_moe import FAMILY
from colibri.spec import MAX_LAYERS
from colibri.weights.checkpoint import Checkpoint, check
from colibri.weights.metadata import Metadata
from colibri.weights.safetensors import supported
from colibri.weights.tensor_info import TensorInfo

DENSE: Final = "mp_rank_00_model_states.pt"
ARCHITECTURE: Final = FAMILY.architectures[0]
_EXPERT_FILES: Final = "*expert_*_mp_rank_00_model_states.pt"
_OF_ANOTHER_RANK = re.compile(r".*mp_rank_(?!00_)\d+_model_states\.pt|layer_\d+-model_\d+-model_states\.pt")
# What only these values are implemented for; others are refused by name.
_EXPECTED: Final[Mapping[str, Any]] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "apply_residual_connection_post_layernorm": False,
    "apply_layernorm_1p": False,
    "squared_relu": False,
    "retro_add_retriever": False,
}
_TOP: Final = {
    "embedding.word_embeddings.weight": "token_embd.weight",
    "embedding.position_embeddings.weight": "position_embd.weight",
    "output_layer.weight": "output.weight",
    "final_layernorm.weight": "output_norm.weight",
    "final_layernorm.bias": "output_norm.bias",
}
_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "attention.dense": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_4h_to_h": "ffn_down",
    "mlp.mlp.dense_4h_to_h": "ffn_down_shexp",
    "mlp.deepspeed_moe.gate.wg": "ffn_gate_inp",
    "mlp.coefficient": "ffn_gate_inp_shexp",
}
_QKV: Final = "attention.query_key_value"  # self_attention in newer versions
_FIRST: Final = {"mlp.dense_h_to_4h": "ffn_{}", "mlp.mlp.dense_h_to_4h": "ffn_{}_shexp"}  # up, or gate above up
_IN_LAYER = re.compile(r".*?layers\.(\d{1,5})\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"mlp\.deepspeed_moe\.experts\.deepspeed_experts\.(\d{1,5})\.(dense_h_to_4h|dense_4h_to_h)")


def deepspeed_folder(path: Path) -> Path | None:
    """The folder with the states: this one, or the one that its file `latest` names; None where there are none."""
    latest = path / "latest"
    if not (path / DENSE).exists() and latest.is_file() and latest.stat().st_size < 4096:
        path = path / latest.read_text(encoding="utf-8", errors="replace").strip()
    return path if (path / DENSE).is_file() else None


def open_deepspeed(folder: Path, name: str) -> Checkpoint:
    """The checkpoint in a folder. Raises FileError, FormatError, or UnsupportedError that names an option."""
    strange = sorted(file.name for file in folder.iterdir() if _OF_ANOTHER_RANK.fullmatch(file.name))
    if strange:
        raise UnsupportedError(
            f"{folder}: {strange[0]} belongs to a model split over ranks; merge tensor and pipeline parallel parts"
        )
    found, options = read_state(folder / DENSE)
    args = Metadata(folder / DENSE, {name: _plain(value) for name, value in options.items() if value is not None})
    metadata = _metadata(args, name)
    tensors: dict[str, TensorInfo] = {}
    for tensor in found.values():
        if "deepspeed_experts" not in tensor.name:  # some versions leave copies of the first rank's experts there
            _add(tensors, tensor, _translate(args, supported(tensor)))
    for file in sorted(folder.glob(_EXPERT_FILES)):
        for tensor in read_file(file).values():
            _add(tensors, tensor, _translate(args, supported(tensor)))
    _check_options(args, metadata, tensors)
    tokenizer = folder / "tokenizer.json"
    checkpoint = Checkpoint(folder, "deepspeed", name, FAMILY, metadata, tensors, tokenizer, READABLE)
    check(checkpoint)
    return checkpoint


# ---- the trainer's options -> metadata ----


def _plain(value: Any) -> Any:
    """Numbers, texts and lists of them; of anything else only the kind, as it may be large and refer to itself."""
    values = value if isinstance(value, list) and len(value) <= MAX_LAYERS else [value]
    return value if all(isinstance(one, str | int | float) for one in values) else f"a {type(value).__name__}"


def _metadata(args: Metadata, name: str) -> Metadata:
    for option, expected in _EXPECTED.items():
        if args.get(option, expected) != expected:
            raise _unsupported(args, option, f"{expected!r} is expected")
    if args.integer("zero_stage", 0) == 3:
        raise _unsupported(args, "zero_stage", "stage 3 leaves no weights in this file; gather them first")
    heads, hidden = args.integer("num_attention_heads", low=1), args.integer("hidden_size", low=1)
    context, wide = args.integer("max_position_embeddings", low=1), args.integer("ffn_hidden_size", low=1)
    head_dim = args.integer("kv_channels", hidden // heads, low=1)
    rms = args.text("normalization", "layernorm") == "rmsnorm"
    values: dict[str, Any] = {
        "block_count": args.integer("num_layers", low=1),
        "context_length": context,
        "embedding_length": hidden,
        "feed_forward_length": wide,
        "expert_feed_forward_length": wide,
        "vocab_size": args.integer("padded_vocab_size", low=1),
        "attention.head_count": heads,
        "attention.head_count_kv": args.integer("num_key_value_heads", heads, low=1),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        f"attention.layer_norm_{'rms_' if rms else ''}epsilon": args.number("layernorm_epsilon", 1e-5),
        "expert_count": _experts(args),
        "expert_used_count": args.integer("topk", 1, low=1),
        "expert_residual": args.text("mlp_type", "standard") == "residual",
        "feed_forward_gated": args.flag("swiglu", False),
        "feed_forward_activation": _activation(args),
    }
    if args.flag("use_rotary_position_embeddings", False):
        values["rope.dimension_count"] = int(head_dim * args.number("rotary_percent", 1.0))
        values["rope.freq_base"] = args.number("rope_theta", 10000.0)
    general = {"general.architecture": ARCHITECTURE, "general.name": name, "general.type": "model"}
    return Metadata(args.source, general | {f"{ARCHITECTURE}.{key}": value for key, value in values.items()})


def _experts(args: Metadata) -> int:
    """The number that all mixtures have; a pyramid, where it grows from layer to layer, is not run."""
    counts = args.get("num_experts")
    if not isinstance(counts, list) or not counts or not all(type(count) is int for count in counts):
        raise args.error("num_experts", repr(counts)[:80], "a list of numbers")
    if len(set(counts)) != 1:
        raise _unsupported(args, "num_experts", "mixtures of one size are run, not pyramids")
    return int(counts[0])


def _activation(args: Metadata) -> str:
    """torch's exact gelu is only what remains when no option asks for the approximation, as the default does."""
    if args.flag("swiglu", False):
        return "silu"
    fused = args.flag("bias_gelu_fusion", False) and not args.get("onnx_safe")
    return "gelu_tanh" if fused or args.flag("openai_gelu", False) else "gelu_erf"


def _unsupported(args: Metadata, option: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"{args.source}: --{option.replace('_', '-')} is {args[option]!r:.80}; {why}")


def _check_options(args: Metadata, metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> None:
    """The tensors must be those that the options speak of."""
    wanted = {
        "position_embd.weight": f"{ARCHITECTURE}.rope.dimension_count" not in metadata,
        "output.weight": args.flag("untie_embeddings_and_output_weights", False),
        "output_norm.bias": f"{ARCHITECTURE}.attention.layer_norm_epsilon" in metadata,
    }
    for name, expected in wanted.items():
        if (name in tensors) != expected:
            found = "missing" if expected else "there, but no option asks for it"
            raise FormatError(f"{args.source}: {name} is {found}")


# ---- names and shapes of the tensors ----


def _add(tensors: dict[str, TensorInfo], source: TensorInfo, found: Iterator[TensorInfo]) -> None:
    for info in found:
        if info.name in tensors:
            raise FormatError(f"{source.file}: {source.name:.200} and another tensor both stand for {info.name}")
        tensors[info.name] = info


def _translate(args: Metadata, tensor: TensorInfo) -> Iterator[TensorInfo]:
    if not 1 <= len(tensor.shape) <= 2 or min(tensor.shape) < 1:
        raise FormatError(f"{tensor.file}: {tensor.name:.200} has the shape {list(tensor.shape)}, no weight's")
    match = _IN_LAYER.fullmatch(tensor.name)
    if match is None:
        top = next((known for known in _TOP if tensor.name.endswith(known)), None)
        if top is None:
            raise _unknown(tensor)
        return iter([replace(tensor, name=_TOP[top])])
    block, module, kind = f"blk.{int(match[1])}", match[2].removeprefix("self_"), match[3]
    expert = _EXPERT.fullmatch(module)
    if module in _LAYER:
        return iter([replace(tensor, name=f"{block}.{_LAYER[module]}.{kind}")])
    if module == _QKV:
        return _split_qkv(args, replace(tensor, name=f"{block}.attn_{{}}.{kind}"))
    if module in _FIRST:
        return _split_first(args, replace(tensor, name=f"{block}.{_FIRST[module]}.{kind}"))
    if expert and expert[2] == "dense_4h_to_h":
        return iter([replace(tensor, name=f"{block}.ffn_down.{int(expert[1])}.{kind}")])
    if expert:
        return _split_first(args, replace(tensor, name=f"{block}.ffn_{{}}.{int(expert[1])}.{kind}"))
    raise _unknown(tensor)


def _unknown(tensor: TensorInfo) -> UnsupportedError:
    return UnsupportedError(f"{tensor.file}: the tensor {tensor.name:.200} is not known for GPT models of Megatron")


def _rows(info: TensorInfo, first: int, count: int, name: str) -> TensorInfo:
    """Some rows of a matrix, or values of a vector."""
    row = info.nbytes // info.shape[0]
    step = row if info.strides is None else info.strides[0] * info.value_bytes
    shape = count, *info.shape[1:]
    return replace(info, name=name, shape=shape, offset=info.offset + first * step, nbytes=count * row)


def _split_first(args: Metadata, info: TensorInfo) -> Iterator[TensorInfo]:
    """The matrix or bias in front of the activation; with SwiGLU the gate's rows come before the others."""
    if not args.flag("swiglu", False):
        yield replace(info, name=info.name.format("up"))
        return
    half = info.shape[0] // 2
    yield _rows(info, 0, half, info.name.format("gate"))
    yield _rows(info, half, half, info.name.format("up"))


def _split_qkv(args: Metadata, info: TensorInfo) -> Iterator[TensorInfo]:
    """Rows of queries, keys and values: for each kv head its queries, its key, its value; or all of each together.

    Versions with --ds-sequence-parallel-fpdt, whatever its value, have the second order.
    """
    heads = args.integer("num_attention_heads", low=1)
    kv_heads = args.integer("num_key_value_heads", heads, low=1)
    head_dim = args.integer("kv_channels", args.integer("hidden_size") // heads, low=1)
    if heads % kv_heads or info.shape[0] != (heads + 2 * kv_heads) * head_dim:
        raise FormatError(
            f"{info.file}: {info.name.format('qkv')} has {info.shape[0]} rows, not {heads} heads of queries and "
            f"{kv_heads} of keys and values of {head_dim} each"
        )
    together = "ds_sequence_parallel_fpdt" in args
    if together and heads != kv_heads:
        raise _unsupported(args, "num_key_value_heads", "this version of the trainer is right without groups only")
    groups = 1 if together else kv_heads
    at, stride, strides = 0, info.nbytes // groups, info.strides
    if strides is not None:
        strides = info.shape[0] // groups * strides[0], *strides
    for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        first = _rows(info, at, count // groups * head_dim, info.name.format(part))
        at += first.shape[0]
        shape, nbytes = (groups, *first.shape), groups * first.nbytes
        yield replace(first, shape=shape, nbytes=nbytes, expert_stride=stride, strides=strides)
