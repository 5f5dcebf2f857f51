"""Small checkpoints for the tests: GGUF bytes built by hand, a tiny GGUF model, a tiny Hugging Face directory."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from colibri import ops
from colibri.conversion.gguf_writer import GGUFWriter
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf_writer import TensorSpec, Value
from colibri.weights.load import read_tiles
from colibri.weights.tensor_info import TensorInfo

HIDDEN, HEADS, HEAD_DIM, WIDTH, EXPERTS, LAYERS, VOCABULARY = 64, 4, 16, 32, 4, 2, 96
NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")


def string(text: bytes | str) -> bytes:
    """A GGUF string."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: bytes | str, kind: int, value: bytes) -> bytes:
    """One metadata entry with the value's bytes as given."""
    return string(name) + struct.pack("<I", kind) + value


def tensor(name: str, dims: Sequence[int], kind: int, offset: int, n_dims: int | None = None) -> bytes:
    """One entry of the tensor table; dims fastest first."""
    return (
        string(name)
        + struct.pack("<I", len(dims) if n_dims is None else n_dims)
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: int = 0,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file whose counts may lie; `data` bytes of zeros follow the header."""
    count = len(tensors) if n_tensors is None else n_tensors
    head = magic + struct.pack("<IQQ", version, count, len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + bytes(data)


def model_metadata(architecture: str = "olmoe", **changes: Any) -> dict[str, Any]:
    """Metadata of the tiny model; `changes` replace keys (without architecture), None removes one."""
    values: dict[str, Any] = {
        "block_count": LAYERS, "context_length": 128, "embedding_length": HIDDEN, "feed_forward_length": WIDTH,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS, "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5, "expert_count": EXPERTS, "expert_used_count": 2,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    values |= changes
    keys = {f"{architecture}.{name}": value for name, value in values.items() if value is not None}
    tokens = [f"t{number}" for number in range(VOCABULARY)]
    return {"general.architecture": architecture, "tokenizer.ggml.tokens": Value("string", tokens)} | keys


def model_tensors(per_expert: bool = False, kind: str = "F32") -> list[TensorSpec]:
    """Tensors of the tiny model."""
    specs = [TensorSpec("token_embd.weight", kind, (VOCABULARY, HIDDEN))]
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        specs += [TensorSpec(f"{block}{name}.weight", "F32", (HIDDEN,)) for name in NORMS]
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            specs.append(TensorSpec(f"{block}{name}.weight", kind, (HIDDEN, HIDDEN)))
        specs.append(TensorSpec(f"{block}ffn_gate_inp.weight", "F32", (EXPERTS, HIDDEN)))
        for name, rows, k in (("gate", WIDTH, HIDDEN), ("up", WIDTH, HIDDEN), ("down", HIDDEN, WIDTH)):
            if per_expert:
                specs += [TensorSpec(f"{block}ffn_{name}.{e}.weight", kind, (rows, k)) for e in range(EXPERTS)]
            else:
                specs.append(TensorSpec(f"{block}ffn_{name}_exps.weight", kind, (EXPERTS, rows, k)))
    return [
        *specs,
        TensorSpec("output_norm.weight", "F32", (HIDDEN,)),
        TensorSpec("output.weight", kind, (VOCABULARY, HIDDEN)),
    ]


def values_of(spec: TensorSpec, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random bytes for a tensor: finite numbers for F32, F16 and BF16."""
    rng = np.random.default_rng([seed, *spec.name.encode()])
    numbers = rng.standard_normal(spec.shape, np.float32)
    if spec.type == "F32":
        return numbers.view(np.uint8)
    if spec.type == "F16":
        return numbers.astype(np.float16).view(np.uint8)
    if spec.type == "BF16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return rng.integers(0, 255, spec.nbytes, np.uint8)


def write_model(
    path: Path,
    metadata: Mapping[str, Any] | None = None,
    specs: Sequence[TensorSpec] | None = None,
    split_bytes: int | None = None,
    alignment: int = 32,
) -> list[Path]:
    """Write the tiny model; returns its files. Without specs a llama has no norms of queries and keys."""
    keys = model_metadata() if metadata is None else metadata
    chosen = model_tensors() if specs is None else specs
    if specs is None and keys.get("general.architecture") == "llama":
        chosen = [spec for spec in chosen if "_q_norm" not in spec.name and "_k_norm" not in spec.name]
    with GGUFWriter(path, keys, chosen, split_bytes=split_bytes, alignment=alignment) as writer:
        for spec in chosen:
            writer.write(spec.name, [values_of(spec)])
    return writer.files


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """tensors: name -> (dtype, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(data for _, _, data in tensors.values()))


CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": EXPERTS, "intermediate_size": WIDTH},
    "qwen3_moe": {
        "num_experts": EXPERTS, "intermediate_size": 2 * WIDTH, "moe_intermediate_size": WIDTH, "head_dim": HEAD_DIM,
        "norm_topk_prob": True,
    },
    "olmoe": {"num_experts": EXPERTS, "intermediate_size": WIDTH, "norm_topk_prob": False, "clip_qkv": 8.0},
}  # fmt: skip


def directory_config(family: str, **changes: Any) -> dict[str, Any]:
    """config.json of the tiny model."""
    return {
        "model_type": family, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 2, "hidden_act": "silu", "rope_theta": 5000.0, "tie_word_embeddings": False,
    } | CONFIGS[family] | changes  # fmt: skip


def directory_tensors(family: str, fused: bool = False) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors of the tiny model under their Hugging Face names; fused as transformers 5 holds them."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    router, gate, up, down = "mlp.gate", "gate_proj", "up_proj", "down_proj"
    module = "mlp.experts"
    if family == "mixtral" and not fused:
        router, module, gate, up, down = "block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        shapes |= {f"{block}self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"{block}{norm}.weight": (HIDDEN,) for norm in ("input_layernorm", "post_attention_layernorm")}
        if family != "mixtral":
            size = HIDDEN if family == "olmoe" else HEAD_DIM
            shapes |= {f"{block}self_attn.{part}_norm.weight": (size,) for part in "qk"}
        shapes[f"{block}{router}.weight"] = (EXPERTS, HIDDEN)
        if fused:
            shapes[f"{block}{module}.gate_up_proj"] = (EXPERTS, 2 * WIDTH, HIDDEN)
            shapes[f"{block}{module}.down_proj"] = (EXPERTS, HIDDEN, WIDTH)
            continue
        for expert in range(EXPERTS):
            shapes[f"{block}{module}.{expert}.{gate}.weight"] = (WIDTH, HIDDEN)
            shapes[f"{block}{module}.{expert}.{up}.weight"] = (WIDTH, HIDDEN)
            shapes[f"{block}{module}.{expert}.{down}.weight"] = (HIDDEN, WIDTH)
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    return {name: ("F32", shape, values_of(TensorSpec(name, "F32", shape)).tobytes()) for name, shape in shapes.items()}


def write_directory(path: Path, family: str, fused: bool = False, **changes: Any) -> Path:
    """Write the tiny model as a Hugging Face directory."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(directory_config(family, **changes)))
    write_safetensors(path / "model.safetensors", directory_tensors(family, fused))
    return path


def load_matrix(info: TensorInfo, reader: FileReader) -> ops.Tensor:
    """A matrix of a checkpoint, tiled."""
    tensor = ops.tensor(info.type, info.shape, tiled=True)
    read_tiles(info, tensor, reader)
    return tensor
