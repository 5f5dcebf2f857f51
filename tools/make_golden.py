"""Write tests/golden: tiny random checkpoints and the logits that Hugging Face transformers gives for them.

    PYTHONPATH=<a folder with the gguf package> python tools/make_golden.py [NAME ...]

Needs torch, transformers, tokenizers and gguf; the test suite needs none of torch and transformers. Every case is a
directory with config.json, model.safetensors and golden.npz: ids, logits of a float32 eager forward pass, and the same
with keys and values rounded to float16 as the engine's cache does (logits_half), which allows a sharp comparison; for a
longer text (long_ids) the last rows of that. Some add the weights as model.gguf, mapped here by hand so that the
engine's own reader and writer are not their own judge.
Seeds are searched until no router decision and no first place among the logits is close.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from golden_gguf import write_gguf, write_quantized
from golden_text import write_tokenizer

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
TOKENS = 24
LONG_TOKENS, LONG_ROWS = 530, 3  # more than two blocks of the cache; only the last rows are stored
ROUTER_GAP = 1e-3  # smallest difference between the last chosen and the first refused probability
LOGIT_GAP = 3e-3  # smallest difference between first and second logit, as a part of the logits' range


@dataclass(frozen=True)
class Case:
    """One checkpoint: the transformers class, its config and what else is written beside it."""

    kind: str  # mixtral | qwen3_moe | olmoe
    dtype: str = "F32"
    config: dict[str, Any] = field(default_factory=dict)
    gguf: tuple[str, ...] = ()  # layouts of GGUF files to add: "merged", "per_expert"
    tokenizer: bool = False
    legacy_config: bool = False  # config.json with rope_theta and rope_scaling as files before transformers 5 have


BASE: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 640, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = BASE | {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = BASE | {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 40}
OLMOE = BASE | {"intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

CASES: dict[str, Case] = {
    "mixtral-gqa-f32": Case("mixtral", config=MIXTRAL, gguf=("merged", "per_expert")),
    "mixtral-tied-bf16": Case(
        "mixtral", "BF16", MIXTRAL | {"num_key_value_heads": 4, "num_local_experts": 8, "tie_word_embeddings": True},
        legacy_config=True,
    ),
    "mixtral-window-f16": Case("mixtral", "F16", MIXTRAL | {"sliding_window": 7, "head_dim": 32, "vocab_size": 101}),
    "mixtral-llama3-bf16": Case("mixtral", "BF16", MIXTRAL | {"rope_parameters": LLAMA3}, gguf=("merged",)),
    "qwen3_moe-gqa-f32": Case(
        "qwen3_moe", config=QWEN | {"norm_topk_prob": True, "head_dim": 16, "vocab_size": 272, "num_experts": 3},
        gguf=("merged",), tokenizer=True,
    ),
    "qwen3_moe-yarn-bf16": Case(
        "qwen3_moe", "BF16",
        QWEN | {"norm_topk_prob": True, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3,
                "tie_word_embeddings": True, "rope_parameters": YARN},
        gguf=("merged",), legacy_config=True,
    ),
    "qwen3_moe-bias-f32": Case(
        "qwen3_moe", config=QWEN | {"norm_topk_prob": False, "head_dim": 16, "attention_bias": True, "num_experts": 5,
                                    "num_key_value_heads": 1},
    ),
    "qwen3_moe-dense-bf16": Case(
        "qwen3_moe", "BF16", QWEN | {"norm_topk_prob": True, "head_dim": 16, "num_hidden_layers": 3,
                                     "mlp_only_layers": [0], "num_experts": 6},
    ),
    "olmoe-mha-f32": Case("olmoe", config=OLMOE, gguf=("merged",)),
    "olmoe-clip-bf16": Case(
        "olmoe", "BF16", OLMOE | {"clip_qkv": 1.1, "num_key_value_heads": 2, "norm_topk_prob": True, "num_experts": 6,
                                  "num_experts_per_tok": 3},
        gguf=("merged",), legacy_config=True,
    ),
    "olmoe-linear-f32": Case(
        "olmoe", config=OLMOE | {"tie_word_embeddings": True, "rope_parameters": LINEAR, "vocab_size": 150},
    ),
}  # fmt: skip

CLASSES = {
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
}
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def build(case: Case) -> torch.nn.Module:
    """The float32 model of a case, eager attention, default initialisation."""
    config_class, model_class = CLASSES[case.kind]
    config = config_class(**case.config, pad_token_id=None, attn_implementation="eager")
    return model_class(config).float().eval()


def randomize(model: torch.nn.Module, seed: int, dtype: torch.dtype) -> None:
    """Weights large enough for decisive routing and varied logits, rounded to what the file can hold."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            values = 1 + 0.3 * values
        elif name.endswith("bias"):
            values = 0.5 * values
        elif "embed_tokens" not in name:
            gain = 3.0 if name.endswith("gate.weight") else 1.7
            values = values * gain / parameter.shape[-1] ** 0.5
        parameter.data = values.to(dtype).float()


def router_gap(model: torch.nn.Module, ids: torch.Tensor, chosen: int) -> float:
    """The smallest distance between the probabilities of a chosen and a refused expert."""
    logits = model(ids, output_router_logits=True).router_logits
    probabilities = torch.cat([torch.softmax(layer, -1) for layer in logits]).sort(-1, descending=True).values
    return float((probabilities[:, chosen - 1] - probabilities[:, chosen]).min())


def logit_gap(logits: np.ndarray) -> float:
    """The smallest lead of a first place, as a part of the range of the logits."""
    best = np.sort(logits, axis=-1)
    return float((best[:, -1] - best[:, -2]).min() / (logits.max() - logits.min()))


def search(model: torch.nn.Module, case: Case) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and logits for seed after seed; the model holds the weights of the last one yielded."""
    for seed in range(5000):
        randomize(model, seed, DTYPES[case.dtype])
        ids = torch.randint(3, case.config["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(seed))
        if router_gap(model, ids, case.config["num_experts_per_tok"]) < ROUTER_GAP:
            continue
        logits = model(ids).logits[0].numpy()
        if logit_gap(logits) >= LOGIT_GAP:
            yield ids[0].numpy().astype(np.int32), logits


@contextmanager
def half_cache(kind: str) -> Iterator[None]:
    """Attention on keys and values that went through float16."""
    module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    plain = module.eager_attention_forward

    def rounded(owner: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
        return plain(owner, query, key.half().float(), value.half().float(), *rest, **named)

    module.eager_attention_forward = rounded
    try:
        yield
    finally:
        module.eager_attention_forward = plain


def half_cache_logits(model: torch.nn.Module, kind: str, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Logits with a float16 cache: of the ids, and the last rows of a longer text."""
    generator = torch.Generator().manual_seed(LONG_TOKENS)
    long_ids = torch.randint(3, model.config.vocab_size, (1, LONG_TOKENS), generator=generator)
    with half_cache(kind):
        logits = model(torch.from_numpy(ids)[None].long()).logits[0].numpy()
        long_logits = model(long_ids).logits[0, -LONG_ROWS:].numpy()
    return {"logits_half": logits, "long_ids": long_ids[0].numpy().astype(np.int32), "long_logits": long_logits}


def legacy(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration as files written before transformers 5 have it."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    if rope.pop("rope_type") == "yarn":
        config["rope_scaling"] = {"type": "yarn"} | rope
    config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    return config


def inverse_frequencies(model: torch.nn.Module) -> tuple[np.ndarray, float]:
    """What transformers rotates with: inverse frequencies and the factor on cosine and sine."""
    rotary = model.model.rotary_emb
    return rotary.inv_freq.numpy(), float(rotary.attention_scaling)


def write(name: str, case: Case) -> None:
    """Write one case's directory."""
    model = build(case)
    ids, logits = next(search(model, case))
    directory = GOLDEN / name
    shutil.rmtree(directory, ignore_errors=True)
    half = half_cache_logits(model, case.kind, ids)
    frequencies, factor = inverse_frequencies(model)
    model.to(DTYPES[case.dtype]).save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(
        directory / "golden.npz", ids=ids, logits=logits, **half, inverse_frequencies=frequencies,
        attention_factor=factor,
    )  # fmt: skip
    path = directory / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(legacy(config) if case.legacy_config else config, indent=1) + "\n")
    if case.tokenizer:
        write_tokenizer(directory, case.config["vocab_size"])
    for layout in case.gguf:
        write_gguf(directory, case.kind, case.config, layout, frequencies)
    (directory / "model.safetensors").chmod(0o644)
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{name}: {size / 1000:.0f} kB, logits {logits.min():.2f}..{logits.max():.2f}, lead {logit_gap(logits):.4f}")


def main(names: list[str]) -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    for name in names or CASES:
        if name in CASES:
            write(name, CASES[name])
    if not names or "quantized" in names:
        write_quantized(GOLDEN / "qwen3_moe-quantized", CLASSES["qwen3_moe"], TOKENS)


if __name__ == "__main__":
    sys.modules["make_golden"] = sys.modules["__main__"]  # golden_gguf asks for it by name
    main(sys.argv[1:])
