"""Write tests/golden: tiny random checkpoints and what Hugging Face transformers computes for them.

    PYTHONPATH=<a folder with the gguf package> python tools/make_golden.py [NAME ...]

Needs torch, transformers, tokenizers and gguf; the test suite needs none of torch and transformers. Every case is a
directory with config.json, model.safetensors and golden.npz: ids, logits of a float32 eager forward pass, the experts
that each layer chose, and the logits with keys and values rounded to float16 as the engine's cache does (logits_half),
which allows a sharp comparison; for a longer text (long_ids) the last rows of that. A name ends with the type of the
weights. Some older cases add the weights as model.gguf, mapped here by hand so that the engine's own reader and writer
are not their own judge. Seeds are searched until no choice of experts and no first place among the logits is close.

A family is added by a case in golden_cases.py: its model_type, the fields of its configuration, what differs.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from golden_cases import CASES, FAMILIES, Case
from golden_gguf import write_gguf, write_quantized
from golden_text import write_tokenizer

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
LONG_TOKENS, LONG_ROWS = 530, 3  # more than two blocks of the cache; only the last rows are stored
NOISE = 1e-3  # of a router's input, which must change no choice
LONG_NOISE = 2e-5  # the same for the longer text, where so many choices cannot all be clear
LAST_BITS, STEADY = 1e-6, 1e-4  # of keys and values before they are rounded, and how far the last rows may move then
LOGIT_GAP = 3e-3  # smallest difference between first and second logit, as a part of the logits' range
ROUNDING = 9e-4  # what a float16 cache may move the logits, as a part of their range: tests allow 1e-3
SEEDS = 5000


DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def build(case: Case) -> torch.nn.Module:
    """The float32 model of a case, eager attention, default initialisation."""
    config = transformers.AutoConfig.for_model(case.kind, **case.config, pad_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    return model.float().eval()


def randomize(model: torch.nn.Module, seed: int, case: Case) -> None:
    """Weights large enough for decisive routing and varied logits, rounded to what the file can hold."""
    generator = torch.Generator().manual_seed(seed)
    persistent = model.state_dict()  # with the routers' correction biases, which are no parameters
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name not in persistent:
            continue
        values = torch.randn(tensor.shape, generator=generator)
        if "norm" in name or name.endswith(("per_expert_scale", "layer_scalar")):
            values = 1 + 0.3 * values
        elif name.endswith("router.scale"):  # which is divided by sqrt(hidden)
            values = (1 + 0.3 * values) * tensor.shape[-1] ** 0.5
        elif name.endswith("correction_bias"):
            values = 0.1 * values
        elif name.endswith("bias"):
            values = 0.5 * values
        elif "embed_tokens" not in name:
            gain = case.router if name.endswith(("gate.weight", "router.weight", "router.proj.weight")) else 1.7
            values = values * gain / tensor.shape[-1] ** 0.5
        tensor.data = values.to(DTYPES[case.dtype]).float()


@contextmanager
def watched_routers(model: torch.nn.Module, noise: float = 0.0) -> Iterator[list[np.ndarray]]:
    """Gathers the ids that each router chooses, (tokens, k) sorted, its input multiplied by 1 + noise."""
    seen: list[np.ndarray] = []
    generator = torch.Generator().manual_seed(1)

    def disturb(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return inputs[0] * (1 + noise * torch.randn(inputs[0].shape, generator=generator)), *inputs[1:]

    def note(_: torch.nn.Module, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
        ids = next(part for part in outputs if not part.is_floating_point())
        seen.append(ids.reshape(-1, ids.shape[-1]).sort(-1).values.numpy())

    routers = [module for module in model.modules() if "Router" in type(module).__name__]
    hooks = [module.register_forward_hook(note) for module in routers]
    hooks += [module.register_forward_pre_hook(disturb) for module in routers if noise]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def choices(model: torch.nn.Module, ids: torch.Tensor, noise: float = 0.0) -> np.ndarray:
    """The experts of every layer that has any, (layers, tokens, k), ascending."""
    with watched_routers(model, noise) as seen:
        model(ids)
    return np.stack(seen).astype(np.int16)


def decisive(model: torch.nn.Module, ids: torch.Tensor, noise: float = NOISE) -> bool:
    """Whether a little noise changes no router's choice."""
    return bool((choices(model, ids, noise) == choices(model, ids)).all())


def longer_ids(vocab_size: int) -> torch.Tensor:
    """The ids of the longer text, (1, LONG_TOKENS)."""
    return torch.randint(3, vocab_size, (1, LONG_TOKENS), generator=torch.Generator().manual_seed(LONG_TOKENS))


def logit_gap(logits: np.ndarray) -> float:
    """The smallest lead of a first place, as a part of the range of the logits."""
    best = np.sort(logits, axis=-1)
    return float((best[:, -1] - best[:, -2]).min() / (logits.max() - logits.min()))


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, as a part of the range of the logits."""
    return float(np.abs(found - expected).max() / np.ptp(expected))


def search(model: torch.nn.Module, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Ids and logits of the first seed that will do; the model holds its weights."""
    for seed in range(SEEDS):
        randomize(model, seed, case)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, case.config["vocab_size"], (1, case.tokens), generator=generator)
        logits = model(ids).logits[0].numpy()
        if logit_gap(logits) < LOGIT_GAP or not decisive(model, ids):
            continue
        if not decisive(model, longer_ids(case.config["vocab_size"]), LONG_NOISE):
            continue
        ids = ids[0].numpy().astype(np.int32)
        if not case.half or (distance(half_cache_logits(model, ids), logits) < ROUNDING and steady(model)):
            return ids, logits
    raise SystemExit(f"{case.kind}: no seed of {SEEDS} will do; take fewer tokens, or another size of the routers")


@contextmanager
def half_cache(model: torch.nn.Module, noise: float = 0.0) -> Iterator[None]:
    """Attention on keys and values, or what both are expanded from, through float16; multiplied by 1 + noise before."""
    generator = torch.Generator().manual_seed(1)
    module: Any = sys.modules[type(model).__module__]
    latent: Any = next((type(part) for part in model.modules() if hasattr(part, "expand_kv")), None)
    owner, name, arguments = latent, "expand_kv", (1, 2)
    if latent is None:
        owner, name, arguments = module, "eager_attention_forward", (2, 3)
    plain = getattr(owner, name)

    def rounded(*given: Any, **named: Any) -> Any:
        halves = (round_half(value) if at in arguments else value for at, value in enumerate(given))
        return plain(*halves, **named)

    def round_half(value: torch.Tensor) -> torch.Tensor:
        return (value * (1 + noise * torch.randn(value.shape, generator=generator))).half().float()

    setattr(owner, name, rounded)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def half_cache_logits(model: torch.nn.Module, ids: np.ndarray, noise: float = 0.0) -> np.ndarray:
    """Logits with a float16 cache."""
    with half_cache(model, noise):
        return model(torch.from_numpy(ids)[None].long()).logits[0].numpy()


def steady(model: torch.nn.Module) -> bool:
    """Whether the last bits of keys and values hardly matter after a long text, though they decide on roundings."""
    ids = longer_ids(model.config.vocab_size)[0].numpy()
    exact, moved = (half_cache_logits(model, ids, noise)[-LONG_ROWS:] for noise in (0.0, LAST_BITS))
    return distance(moved, exact) < STEADY


def expected(model: torch.nn.Module, ids: np.ndarray, half: bool = True) -> dict[str, np.ndarray]:
    """What is kept beside ids and logits: experts, logits with a float16 cache, the last rows of a longer text."""
    longer = longer_ids(model.config.vocab_size)
    long_ids = longer[0].numpy().astype(np.int32)
    found = {"long_ids": long_ids, "chosen": choices(model, torch.from_numpy(ids)[None].long())}
    if not half:
        return found | {"long_logits_plain": model(longer).logits[0, -LONG_ROWS:].numpy()}
    long_logits = half_cache_logits(model, long_ids)[-LONG_ROWS:]
    return found | {"logits_half": half_cache_logits(model, ids), "long_logits": long_logits}


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


def inverse_frequencies(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Where all layers turn alike: inverse frequencies, and the factor on cosine and sine."""
    rotary = getattr(model.model, "rotary_emb", None)
    if not hasattr(rotary, "inv_freq"):
        return {}
    factor = np.float64(rotary.attention_scaling)
    return {"inverse_frequencies": rotary.inv_freq.numpy(), "attention_factor": factor}


def write(name: str, case: Case) -> None:
    """Write one case's directory."""
    model = build(case)
    ids, logits = search(model, case)
    directory = GOLDEN / "families" / name if name in FAMILIES else GOLDEN / name
    shutil.rmtree(directory, ignore_errors=True)
    arrays = expected(model, ids, case.half) | inverse_frequencies(model)
    model.to(DTYPES[case.dtype]).save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(directory / "golden.npz", ids=ids, logits=logits, **arrays)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(legacy(config) if case.legacy_config else config, indent=1) + "\n")
    if case.tokenizer:
        write_tokenizer(directory, case.config["vocab_size"])
    for layout in case.gguf:
        write_gguf(directory, case.kind, case.config, layout, arrays["inverse_frequencies"])
    (directory / "model.safetensors").chmod(0o644)
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{name}: {size / 1000:.0f} kB, logits {logits.min():.2f}..{logits.max():.2f}, lead {logit_gap(logits):.4f}")


def main(names: list[str]) -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    cases = CASES | FAMILIES
    for name in names or cases:
        if name in cases:
            write(name, cases[name])
    if not names or "quantized" in names:
        write_quantized(GOLDEN / "qwen3_moe-quantized")


if __name__ == "__main__":
    sys.modules["make_golden"] = sys.modules["__main__"]  # golden_gguf asks for it by name
    main(sys.argv[1:])
