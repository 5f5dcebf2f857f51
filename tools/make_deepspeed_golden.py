"""Write tests/golden/deepspeed-*: tiny training states that DeepSpeed itself saved, and the logits of the model.

    DS_ACCELERATOR=cpu python tools/make_deepspeed_golden.py [NAME ...]

Needs torch and deepspeed (pip install deepspeed; one process on the CPU, the first start compiles its communication).
The mixtures are DeepSpeed's own modules; what Megatron-DeepSpeed puts around them (GPT with LayerNorm or RMSNorm,
learned or rotary positions) is written down here from its options, as that trainer does not run without GPUs. Tokens
are not dropped and second experts not drawn at random, as in the engine. golden.npz is as make_golden.py has it.
"""

from __future__ import annotations

import argparse
import enum
import os
import random
import shutil
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

os.environ |= {
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"
} | os.environ  # fmt: skip
import deepspeed
from deepspeed.moe.layer import MoE

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
TOKENS, LONG_TOKENS, LONG_ROWS = 24, 530, 3
ROUTER_GAP, LOGIT_GAP = 1e-3, 3e-3
VOCABULARY = 112

CLASSIC: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 48, "num_attention_heads": 3, "kv_channels": 16, "ffn_hidden_size": 40,
    "max_position_embeddings": 640, "padded_vocab_size": VOCABULARY, "layernorm_epsilon": 1e-5, "num_experts": [4],
    "expert_interval": 2, "topk": 1, "mlp_type": "standard", "bias_gelu_fusion": True, "openai_gelu": False,
    "onnx_safe": None, "apply_residual_connection_post_layernorm": False, "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1, "zero_stage": 1, "add_bias_linear": True,
}  # fmt: skip
NEWER = CLASSIC | {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "expert_interval": 1,
    "topk": 2, "use_rotary_position_embeddings": True, "rotary_percent": 0.5, "rope_theta": 5000, "swiglu": True,
    "normalization": "rmsnorm", "untie_embeddings_and_output_weights": True, "add_bias_linear": False,
    "bias_gelu_fusion": False, "squared_relu": False, "apply_layernorm_1p": False, "num_experts": [6],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The trainer's options and the type that the weights are saved in."""

    options: dict[str, Any]
    dtype: torch.dtype = torch.float32
    extra: dict[str, Any] = field(default_factory=dict)  # of the state, beside the model


CASES = {
    "deepspeed-top1": Case(CLASSIC),
    "deepspeed-residual": Case(
        CLASSIC | {"mlp_type": "residual", "topk": 2, "bias_gelu_fusion": False, "ds_sequence_parallel_fpdt": False},
        torch.float16,
    ),
    "deepspeed-newer": Case(NEWER, torch.bfloat16),
}


class Network(nn.Module):
    """Megatron's feed-forward network; DeepSpeed takes the first of what it returns."""

    def __init__(self, o: dict[str, Any]) -> None:
        super().__init__()
        gated, bias = o.get("swiglu", False), o["add_bias_linear"]
        self.dense_h_to_4h = nn.Linear(o["hidden_size"], o["ffn_hidden_size"] * (1 + gated), bias)
        self.dense_4h_to_h = nn.Linear(o["ffn_hidden_size"], o["hidden_size"], bias)
        self.gated, self.approximate = gated, "tanh" if o["bias_gelu_fusion"] else "none"

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        h = self.dense_h_to_4h(x)
        if self.gated:
            gate, up = h.chunk(2, -1)
            return self.dense_4h_to_h(F.silu(gate) * up), None
        return self.dense_4h_to_h(F.gelu(h, approximate=self.approximate)), None


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def norm(o: dict[str, Any]) -> nn.Module:
    kind = RMSNorm if o.get("normalization") == "rmsnorm" else nn.LayerNorm
    return kind(o["hidden_size"], eps=o["layernorm_epsilon"])


class Attention(nn.Module):
    def __init__(self, o: dict[str, Any]) -> None:
        super().__init__()
        self.o, self.heads = o, o["num_attention_heads"]
        self.kv, self.dim = o.get("num_key_value_heads", self.heads), o["kv_channels"]
        self.query_key_value = nn.Linear(o["hidden_size"], (self.heads + 2 * self.kv) * self.dim, o["add_bias_linear"])
        self.dense = nn.Linear(self.heads * self.dim, o["hidden_size"], o["add_bias_linear"])
        self.half = False

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(tokens, rows) -> queries (tokens, heads, dim), keys and values (tokens, kv, dim)."""
        if "ds_sequence_parallel_fpdt" in self.o:
            return tuple(part.view(len(mixed), -1, self.dim) for part in mixed.chunk(3, -1))
        groups = mixed.view(len(mixed), self.kv, -1, self.dim)
        return groups[:, :, :-2].flatten(1, 2), groups[:, :, -2], groups[:, :, -1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.query_key_value(x))
        if self.o.get("use_rotary_position_embeddings"):
            q, k = (rotate(part, int(self.dim * self.o["rotary_percent"]), self.o["rope_theta"]) for part in (q, k))
        if self.half:
            k, v = k.half().float(), v.half().float()
        k, v = (part.repeat_interleave(self.heads // self.kv, 1) for part in (k, v))
        scores = torch.einsum("nhd,thd->hnt", q, k) / self.dim**0.5
        masked = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), -torch.inf)
        return self.dense(torch.einsum("hnt,thd->nhd", masked.softmax(-1), v).flatten(1))


def rotate(x: torch.Tensor, rotary: int, theta: float) -> torch.Tensor:
    """x (tokens, heads, dim): pairs (i, i + rotary/2) of the first `rotary` values turn."""
    angles = torch.outer(torch.arange(len(x)).float(), theta ** -(torch.arange(0, rotary, 2).float() / rotary))
    cos, sin = (part.repeat(1, 2)[:, None].to(x.dtype) for part in (angles.cos(), angles.sin()))
    turned, rest = x[..., :rotary], x[..., rotary:]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)


class Layer(nn.Module):
    def __init__(self, o: dict[str, Any], routed: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(o), norm(o)
        self.self_attention = Attention(o)
        self.mlp = Network(o)
        if routed:
            self.mlp = MoE(
                o["hidden_size"], self.mlp, o["num_experts"][0], ep_size=int(os.environ["WORLD_SIZE"]), k=o["topk"],
                drop_tokens=False, use_residual=o["mlp_type"] == "residual", use_rts=False,
                top2_2nd_expert_sampling=False, min_capacity=0,
            )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))[0]


class GPT(nn.Module):
    """Named as Megatron's modules are, so that the states are those of its checkpoints."""

    def __init__(self, o: dict[str, Any]) -> None:
        super().__init__()
        self.o = o
        hidden, interval = o["hidden_size"], o["expert_interval"]
        model = self.language_model = nn.Module()
        model.embedding, model.encoder = nn.Module(), nn.Module()
        model.embedding.word_embeddings = nn.Embedding(VOCABULARY, hidden)
        if not o.get("use_rotary_position_embeddings"):
            model.embedding.position_embeddings = nn.Embedding(o["max_position_embeddings"], hidden)
        layers = [Layer(o, (number + 1) % interval == 0) for number in range(o["num_layers"])]
        model.encoder.layers, model.encoder.final_layernorm = nn.ModuleList(layers), norm(o)
        if o.get("untie_embeddings_and_output_weights"):
            model.output_layer = nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        model = self.language_model
        x = model.embedding.word_embeddings(ids)
        if hasattr(model.embedding, "position_embeddings"):
            x = x + model.embedding.position_embeddings(torch.arange(len(ids)))
        for layer in model.encoder.layers:
            x = layer(x)
        x = model.encoder.final_layernorm(x)
        return x @ (model.output_layer if hasattr(model, "output_layer") else model.embedding.word_embeddings).weight.T

    def state_dict_for_save_checkpoint(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nested as Megatron saves it, with copies of the experts at the top, which DeepSpeed takes out or leaves."""
        model = self.language_model
        encoder = nn.Module.state_dict(model.encoder)
        experts = {name: encoder.pop(name) for name in list(encoder) if "expert" in name and "gate.wg" not in name}
        embedding = {name: OrderedDict(part.state_dict()) for name, part in model.embedding.named_children()}
        parts = {"embedding": embedding, "encoder": encoder}
        if hasattr(model, "output_layer"):
            parts["output_layer"] = OrderedDict(model.output_layer.state_dict())
        return {f"encoder{name}": tensor for name, tensor in experts.items()} | {"language_model": parts}


def randomize(model: nn.Module, seed: int, dtype: torch.dtype) -> None:
    """Weights large enough for decisive routing and varied logits, rounded to what the file can hold."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            values = 1 + 0.3 * values
        elif name.endswith("bias"):
            values = 0.5 * values
        elif "embeddings" not in name:
            values = values * (3.0 if "gate" in name else 1.7) / parameter.shape[-1] ** 0.5
        parameter.data = values.to(dtype).float()


def smallest_gap(model: GPT, ids: torch.Tensor) -> float:
    """The smallest distance between the probabilities of a chosen and a refused expert."""
    gaps: list[float] = []

    def watch(gate: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        best = F.linear(arguments[0], gate.wg.weight).softmax(-1).sort(-1, descending=True).values
        gaps.append(float((best[:, gate.k - 1] - best[:, gate.k]).min()))

    hooks = [m.deepspeed_moe.gate.register_forward_pre_hook(watch) for m in model.modules() if isinstance(m, MoE)]
    model(ids)
    for hook in hooks:
        hook.remove()
    return min(gaps)


def search(model: GPT, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, np.ndarray]]:
    """Ids and logits for seed after seed; the model holds the weights of the last one yielded."""
    for seed in range(5000):
        randomize(model, seed, dtype)
        ids = torch.randint(3, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(seed))
        if smallest_gap(model, ids) < ROUTER_GAP:
            continue
        logits = model(ids).numpy()
        best = np.sort(logits, axis=-1)
        if (best[:, -1] - best[:, -2]).min() / np.ptp(logits) >= LOGIT_GAP:
            yield ids, logits


def client_state(options: dict[str, Any]) -> dict[str, Any]:
    """What Megatron saves beside the model: its options with objects of its own among them, and random states."""
    for name in ("megatron", "megatron.core", "megatron.core.enums"):
        module = sys.modules[name] = types.ModuleType(name)
    module.ModelType = enum.Enum("ModelType", ["encoder_or_decoder"], module="megatron.core.enums")
    args = argparse.Namespace(**options, params_dtype=torch.float16, model_type=module.ModelType.encoder_or_decoder)
    return {
        "args": args, "checkpoint_version": 3.0, "iteration": 7, "random_rng_state": random.getstate()[:1],
        "np_rng_state": ("MT19937", np.arange(3, dtype=np.uint32), 3),
        "torch_rng_state": torch.zeros(8, dtype=torch.uint8),
    }  # fmt: skip


def write(name: str, case: Case) -> None:
    model = GPT(case.options).eval()
    ids, logits = next(search(model, case.dtype))
    long_ids = torch.randint(3, VOCABULARY, (LONG_TOKENS,), generator=torch.Generator().manual_seed(LONG_TOKENS))
    for layer in model.language_model.encoder.layers:
        layer.self_attention.half = True
    half, long_logits = model(ids).numpy(), model(long_ids)[-LONG_ROWS:].numpy()
    directory = GOLDEN / name
    shutil.rmtree(directory, ignore_errors=True)
    engine, *_ = deepspeed.initialize(model=model.to(case.dtype), config={"train_micro_batch_size_per_gpu": 1})
    model.state_dict = model.state_dict_for_save_checkpoint
    engine.save_checkpoint(str(directory), tag="global_step7", client_state=client_state(case.options))
    for unused in directory.glob("**/*optim_states.pt"):
        unused.unlink()
    np.savez_compressed(
        directory / "golden.npz", ids=ids.numpy().astype(np.int32), logits=logits, logits_half=half,
        long_ids=long_ids.numpy().astype(np.int32), long_logits=long_logits,
    )  # fmt: skip
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    print(f"{name}: {size / 1000:.0f} kB, logits {logits.min():.2f}..{logits.max():.2f}")


def main(names: list[str]) -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    for name in names or CASES:
        write(name, CASES[name])


if __name__ == "__main__":
    main(sys.argv[1:])
