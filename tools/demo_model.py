"""A compact trainable Mixtral: same mathematics and tensor names as transformers.

The experts of a layer are stacked so that one step needs one pair of matrix
products per expert; `save_directory` takes the stacks apart into the
Hugging Face tensor names.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of the demo model; about 28 million parameters."""

    vocabulary: int = 6144
    hidden: int = 256
    layers: int = 7
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    experts: int = 8
    experts_used: int = 2
    intermediate: int = 512
    rope_theta: float = 10000.0
    positions: int = 2048
    norm_epsilon: float = 1e-5


class Permute(torch.autograd.Function):
    """Reorder rows; the gradient is a gather too, much cheaper than index_add."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        """Return `rows[order]`."""
        ctx.save_for_backward(inverse)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient in the original order."""
        (inverse,) = ctx.saved_tensors
        return gradient.index_select(0, inverse), None, None


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding with the two halves of a head as the pair (NeoX layout)."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Map (batch, tokens, hidden) to the same shape."""
        batch, tokens, _ = x.shape
        q, k, v = (
            projection(x).view(batch, tokens, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cosine, sine).to(v.dtype), rotate(k, cosine, sine).to(v.dtype)
        repeats = self.shape.heads // self.shape.kv_heads
        k, v = (t.repeat_interleave(repeats, dim=1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class SparseMoe(nn.Module):
    """Top-k mixture of SwiGLU experts: softmax over all, top-k, renormalised."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.gate = nn.Linear(shape.hidden, shape.experts, bias=False)
        stacked = (shape.experts, shape.intermediate, shape.hidden)
        self.w1 = nn.Parameter(torch.empty(stacked))  # gate
        self.w3 = nn.Parameter(torch.empty(stacked))  # up
        self.w2 = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.intermediate))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (tokens, hidden) to the same shape; return router probabilities too."""
        used, experts = self.shape.experts_used, self.shape.experts
        with torch.autocast("cpu", enabled=False):
            probabilities = self.gate(x.float()).softmax(-1)
        weights, chosen = probabilities.topk(used, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.reshape(-1)
        counts = torch.bincount(flat, minlength=experts)
        order = flat.argsort(stable=True)
        inverse = order.argsort()
        repeated = x.unsqueeze(1).expand(-1, used, -1).reshape(flat.numel(), -1)
        rows = Permute.apply(repeated, order, inverse).split(counts.tolist())
        outputs = [
            F.linear(F.silu(F.linear(part, w1)) * F.linear(part, w3), w2)
            for part, w1, w3, w2 in zip(
                rows, self.w1.unbind(), self.w3.unbind(), self.w2.unbind(), strict=True
            )
        ]
        restored = Permute.apply(torch.cat(outputs), inverse, order)
        mixed = (restored.view(-1, used, x.shape[-1]) * weights.unsqueeze(-1)).sum(1)
        return mixed, probabilities


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.norm_epsilon)
        self.block_sparse_moe = SparseMoe(shape)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, tokens, hidden) to the same shape; return router probabilities too."""
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        flat = self.post_attention_layernorm(x).reshape(-1, x.shape[-1])
        mixed, probabilities = self.block_sparse_moe(flat)
        return x + mixed.view(x.shape), probabilities


class DemoModel(nn.Module):
    """Token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, shape.norm_epsilon)
        self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        half = torch.arange(0, shape.head_dim, 2) / shape.head_dim
        angles = torch.outer(torch.arange(shape.positions), shape.rope_theta**-half)
        angles = torch.cat((angles, angles), dim=-1)  # (positions, head_dim)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        self.initialise()

    def initialise(self) -> None:
        """Draw weights with a standard deviation of 0.02, less for residual outputs."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("o_proj.weight", "w2"))
                scale = (2 * self.shape.layers) ** -0.5 if residual else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and router probabilities (layers, batch * tokens, experts)."""
        tokens = ids.shape[1]
        x, routed = self.embed_tokens(ids), []
        for layer in self.layers:
            x, probabilities = layer(x, self.cosine[:tokens], self.sine[:tokens])
            routed.append(probabilities)
        return self.lm_head(self.norm(x)), torch.stack(routed)

    def published_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight under its Hugging Face name."""
        for name, tensor in self.state_dict().items():
            full = name if name.startswith("lm_head") else f"model.{name}"
            stem, _, last = full.rpartition(".")
            if last in ("w1", "w2", "w3"):
                for expert, part in enumerate(tensor):
                    yield f"{stem}.experts.{expert}.{last}.weight", part.contiguous()
            else:
                yield full, tensor.contiguous()


def expert_shares(routed: Tensor, used: int) -> Tensor:
    """Return the fraction of routed tokens per expert, (layers, experts)."""
    _, tokens, experts = routed.shape
    chosen = routed.topk(used, dim=-1).indices
    return F.one_hot(chosen, experts).sum((1, 2)) / (tokens * used)


def balance_loss(shares: Tensor, routed: Tensor) -> Tensor:
    """Load-balancing loss (Switch Transformer, eq. 4) averaged over layers; 1 is balanced.

    `shares` (layers, experts) may cover more text than `routed`: with shares over many
    batches, an expert is free to serve one domain only.
    """
    return routed.shape[-1] * (shares * routed.mean(1)).sum(-1).mean()


def configuration(shape: Shape) -> dict[str, Any]:
    """Return config.json as MixtralForCausalLM reads it."""
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_local_experts": shape.experts,
        "num_experts_per_tok": shape.experts_used,
        "hidden_act": "silu",
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "router_aux_loss_coef": 0.01,
        "router_jitter_noise": 0.0,
        "output_router_logits": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


def save_directory(model: DemoModel, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors (float32)."""
    directory.mkdir(parents=True, exist_ok=True)
    generation = {"bos_token_id": 0, "eos_token_id": [0, 2], "pad_token_id": 0}
    generation |= {"do_sample": True, "temperature": 0.8, "top_p": 0.95}
    for name, content in (
        ("config.json", configuration(model.shape)),
        ("generation_config.json", generation),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
    tensors = dict(model.published_tensors())
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def load_directory(directory: Path) -> DemoModel:
    """Read what `save_directory` wrote into a model in evaluation mode."""
    tensors = load_file(directory / "model.safetensors")
    model = DemoModel(Shape())
    published = dict(model.published_tensors())
    state = model.state_dict()
    for name in state:
        full = name if name.startswith("lm_head") else f"model.{name}"
        stem, _, last = full.rpartition(".")
        if full in published:
            state[name] = tensors[full]
        else:
            experts = range(model.shape.experts)
            state[name] = torch.stack(
                [tensors[f"{stem}.experts.{e}.{last}.weight"] for e in experts]
            )
    model.load_state_dict(state)
    return model.eval()
