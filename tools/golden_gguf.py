"""GGUF files for tests/golden, written with the gguf package from a Hugging Face directory or from random blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from golden_cases import Case
from golden_text import add_tokenizer
from safetensors.torch import load_file

ARCHITECTURES = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "olmoe": "olmoe"}
TYPES = {torch.float32: Type.F32, torch.float16: Type.F16, torch.bfloat16: Type.BF16}
DENSE = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}  # fmt: skip
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}  # fmt: skip
EXPERT = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of half-split pairs -> rows of adjacent pairs, head by head, as llama.cpp's converter stores q and k."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def translate(name: str) -> str:
    """The GGUF name of a Hugging Face tensor; `...ffn_gate.3.weight` for experts."""
    if name in DENSE:
        return DENSE[name]
    words = name.split(".")  # model.layers.N.<part>.weight
    part, kind = ".".join(words[3:-1]), words[-1]
    if "experts" in words:
        return f"blk.{words[2]}.ffn_{EXPERT[words[-2]]}.{words[-3]}.{kind}"
    return f"blk.{words[2]}.{LAYER[part]}.{kind}"


def collect(directory: Path, kind: str, config: dict[str, Any], layout: str) -> dict[str, torch.Tensor]:
    """All tensors under their GGUF names, experts merged or apart."""
    tensors = {translate(name): tensor for name, tensor in load_file(directory / "model.safetensors").items()}
    if kind == "mixtral":
        for name, tensor in tensors.items():
            if name.endswith(("attn_q.weight", "attn_k.weight")):
                heads = config["num_attention_heads" if "attn_q" in name else "num_key_value_heads"]
                tensors[name] = interleave(tensor, heads)
    if layout == "per_expert":
        return tensors
    merged = {name: tensor for name, tensor in tensors.items() if len(name.split(".")) != 5}
    experts = config.get("num_experts") or config["num_local_experts"]
    for layer in range(config["num_hidden_layers"]):
        for part in ("gate", "up", "down"):
            parts = [tensors[f"blk.{layer}.ffn_{part}.{expert}.weight"] for expert in range(experts)]
            merged[f"blk.{layer}.ffn_{part}_exps.weight"] = torch.stack(parts)
    return merged


def add_metadata(writer: gguf.GGUFWriter, kind: str, config: dict[str, Any]) -> None:
    """What llama.cpp's converter writes for these architectures."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_name(f"tiny {kind}")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6 if kind == "qwen3_moe" else 1e-5)
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    if kind == "qwen3_moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    else:
        writer.add_rope_dimension_count(head_dim)
    if kind == "olmoe" and config.get("clip_qkv") is not None:
        writer.add_clamp_kqv(config["clip_qkv"])
    if kind == "olmoe" and config.get("norm_topk_prob"):
        writer.add_expert_weights_norm(True)
    add_rope(writer, kind, config.get("rope_parameters"))


def add_rope(writer: gguf.GGUFWriter, kind: str, rope: dict[str, Any] | None) -> None:
    """theta and the scaling; llama3 scaling is a tensor of factors in GGUF."""
    default = 1e6 if kind == "mixtral" else 1e4
    writer.add_rope_freq_base(rope["rope_theta"] if rope else default)
    if rope and rope["rope_type"] in ("yarn", "linear"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    """One tensor in its own type; vectors are F32 as llama.cpp wants them."""
    if tensor.ndim == 1 or "ffn_gate_inp" in name:
        tensor = tensor.float()
    tensor = tensor.contiguous()
    raw = tensor.view(torch.uint8).numpy()
    writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=TYPES[tensor.dtype])


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(directory: Path, kind: str, config: dict[str, Any], layout: str, frequencies: np.ndarray) -> None:
    """Add model.gguf (experts merged) or model-per-expert.gguf (the naming of early Mixtral files)."""
    path = directory / ("model.gguf" if layout == "merged" else "model-per-expert.gguf")
    writer = gguf.GGUFWriter(path, ARCHITECTURES[kind])
    add_metadata(writer, kind, config)
    if (directory / "tokenizer.json").exists():
        add_tokenizer(writer, directory)
    for name, tensor in collect(directory, kind, config, layout).items():
        add_tensor(writer, name, tensor)
    rope = config.get("rope_parameters")
    if rope and rope["rope_type"] == "llama3":
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        plain = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / frequencies).astype(np.float32))
    close(writer)


# ---- a checkpoint in every block format: random bytes are valid blocks once their scales are sane ---------------

QUANTIZED = {
    "vocab_size": 64, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "max_position_embeddings": 640, "tie_word_embeddings": False, "moe_intermediate_size": 256,
    "intermediate_size": 256, "num_experts": 3, "num_experts_per_tok": 2, "norm_topk_prob": True,
}  # fmt: skip
BLOCKS = {  # tensor -> type, by layer
    "token_embd": ("Q6_K",), "output": ("Q8_0",), "attn_q": ("Q4_K", "Q5_K"), "attn_k": ("Q8_0", "Q4_0"),
    "attn_v": ("Q6_K", "MXFP4"), "attn_output": ("Q4_0", "Q4_0"), "ffn_gate_exps": ("Q4_K", "MXFP4"),
    "ffn_up_exps": ("Q4_K", "MXFP4"), "ffn_down_exps": ("Q6_K", "Q4_0"),
}  # fmt: skip
SCALES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # offsets of float16 scales


def random_blocks(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random blocks whose values have about the spread 1.5 / sqrt(k): (..., row bytes) uint8."""
    values, size = gguf.GGML_QUANT_SIZES[Type[name]]
    blocks = generator.integers(0, 256, (int(np.prod(shape)) // values, size), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = 122
    for offset in SCALES.get(name, ()):
        blocks[:, offset : offset + 2] = np.frombuffer(np.float16(1e-3).tobytes(), np.uint8)
    spread = gguf.dequantize(blocks, Type[name]).std()
    wanted = 1.5 / np.sqrt(shape[-1])
    for offset in SCALES.get(name, ()):
        blocks[:, offset : offset + 2] = np.frombuffer(np.float16(1e-3 * wanted / spread).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, experts, wide = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
    q, kv = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    return {
        "token_embd": (config["vocab_size"], hidden), "output": (config["vocab_size"], hidden), "attn_q": (q, hidden),
        "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, q),
        "ffn_gate_exps": (experts, wide, hidden), "ffn_up_exps": (experts, wide, hidden),
        "ffn_down_exps": (experts, hidden, wide),
    }  # fmt: skip


def quantized_tensors(seed: int) -> dict[str, tuple[np.ndarray, str]]:
    """GGUF name -> (raw blocks, type) of every weight, and the F32 vectors."""
    generator, sizes = np.random.default_rng(seed), shapes(QUANTIZED)
    tensors: dict[str, tuple[np.ndarray, str]] = {}
    for part, types in BLOCKS.items():
        for layer, name in enumerate(types):
            key = f"{part}.weight" if len(types) == 1 else f"blk.{layer}.{part}.weight"
            tensors[key] = random_blocks(generator, name, sizes[part]), name
    vectors = {"attn_norm": 256, "ffn_norm": 256, "attn_q_norm": 32, "attn_k_norm": 32}
    for layer in range(QUANTIZED["num_hidden_layers"]):
        for part, size in vectors.items():
            tensors[f"blk.{layer}.{part}.weight"] = generator.normal(1, 0.3, size).astype(np.float32), "F32"
        router = generator.normal(0, 3 / 16, (QUANTIZED["num_experts"], 256)).astype(np.float32)
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = router, "F32"
    tensors["output_norm.weight"] = generator.normal(1, 0.3, 256).astype(np.float32), "F32"
    return tensors


def fill(model: torch.nn.Module, tensors: dict[str, tuple[np.ndarray, str]]) -> None:
    """Give a transformers model the dequantised values."""
    values = {
        name: torch.from_numpy(np.ascontiguousarray(data if kind == "F32" else gguf.dequantize(data, Type[kind])))
        for name, (data, kind) in tensors.items()
    }
    for name, parameter in model.named_parameters():
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            both = [values[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up")]
            parameter.data = torch.cat(both, dim=1)
        elif name.endswith("experts.down_proj"):
            parameter.data = values[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"]
        else:
            parameter.data = values[translate(name)]


def write_quantized(directory: Path) -> None:
    """model.gguf in mixed block formats, with the logits of its dequantised weights."""
    from make_golden import LOGIT_GAP, build, decisive, expected, logit_gap

    case = Case("qwen3_moe", config=QUANTIZED)
    model = build(case)
    for seed in range(2000):
        tensors = quantized_tensors(seed)
        fill(model, tensors)
        ids = torch.randint(0, QUANTIZED["vocab_size"], (1, case.tokens), generator=torch.Generator().manual_seed(seed))
        logits = model(ids).logits[0].numpy()
        if logit_gap(logits) >= LOGIT_GAP and decisive(model, ids):
            break
    directory.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(directory / "model.gguf", "qwen3moe")
    add_metadata(writer, "qwen3_moe", QUANTIZED)
    for name, (data, kind) in tensors.items():
        raw = data if kind != "F32" else data.view(np.uint8)
        writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=Type[kind])
    close(writer)
    found = ids[0].numpy().astype(np.int32)
    np.savez_compressed(directory / "golden.npz", ids=found, logits=logits, **expected(model, found))
    size = (directory / "model.gguf").stat().st_size
    print(f"{directory.name}: {size / 1000:.0f} kB, logits {logits.min():.2f} to {logits.max():.2f}")
