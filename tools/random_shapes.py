"""The shapes of known Mixture-of-Experts models, for tools/make_random_moe.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Latent:
    """Sizes of latent attention: of the vector queries are made from (0: none), the shared one, rope, values."""

    query: int
    shared: int
    rope: int
    value: int


@dataclass(frozen=True)
class Hybrid:
    """Of layers with states: heads of values and of keys, the size of both; each `interval`th has gated attention.

    rotary: how many values of a head of attention turn.
    """

    interval: int
    heads: int
    key_heads: int
    size: int
    rotary: int
    taps: int = 4

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.heads) * self.size


@dataclass(frozen=True)
class Sliding:
    """Of layers that see `window` tokens, all but each `interval`th: size of a head, heads of keys and values.

    rotary: how many values of a head turn in the others. beside: width of the dense network beside the experts.
    """

    interval: int
    window: int
    head_dim: int
    kv_heads: int
    rotary: int
    beside: int

    def __contains__(self, layer: int) -> bool:
        return (layer + 1) % self.interval != 0


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, in the words of its GGUF metadata."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    used: int
    intermediate: int
    vocabulary: int
    context: int
    theta: float
    epsilon: float
    qk_norm: str = "none"  # "none", "head" or "full"
    pre_tokenizer: str = "gpt-2"
    latent: Latent | None = None
    shared: int = 0  # experts that every token goes to
    dense: tuple[int, int] = (0, 0)  # how many of the first layers have no experts, and their width
    routing: Mapping[str, Any] = field(default_factory=dict)  # keys of GGUF
    corrected: bool = False  # a bias for the choice of experts
    hybrid: Hybrid | None = None  # its shared expert has a gate
    sliding: Sliding | None = None  # with norms of answers and scales of layers
    biased: bool = False  # all products have a bias, attention has sinks


V3 = {"expert_gating_func": 2, "expert_weights_norm": True}
SHAPES = {
    "tiny": Shape("olmoe", 2, 256, 4, 4, 64, 8, 2, 256, 512, 1024, 1e4, 1e-5, "full", "olmo"),
    "olmoe": Shape("olmoe", 16, 2048, 16, 16, 128, 64, 8, 1024, 50304, 4096, 1e4, 1e-5, "full", "olmo"),
    "mixtral": Shape("llama", 32, 4096, 32, 8, 128, 8, 2, 14336, 32000, 32768, 1e6, 1e-5),
    "qwen3moe": Shape("qwen3moe", 48, 2048, 32, 4, 128, 128, 8, 768, 151936, 40960, 1e6, 1e-6, "head", "qwen2"),
    "qwen3.6": Shape("qwen35moe", 40, 2048, 16, 2, 256, 256, 8, 512, 248320, 262144, 1e7, 1e-6, "head", "qwen35",
                     shared=1, hybrid=Hybrid(4, 32, 16, 128, 64)),
    "qwen3next": Shape("qwen3next", 48, 2048, 16, 2, 256, 512, 10, 512, 151936, 262144, 1e7, 1e-6, "head", "qwen2",
                       shared=1, hybrid=Hybrid(4, 32, 16, 128, 64)),
    "deepseek-v2-lite": Shape(
        "deepseek2", 27, 2048, 16, 1, 192, 64, 6, 1408, 102400, 32768, 1e4, 1e-6, pre_tokenizer="deepseek-llm",
        latent=Latent(0, 512, 64, 128), shared=2, dense=(1, 10944), routing={"expert_gating_func": 1},
    ),
    "deepseek-v3": Shape(
        "deepseek2", 61, 7168, 128, 1, 192, 256, 8, 2048, 129280, 32768, 1e4, 1e-6, pre_tokenizer="deepseek-v3",
        latent=Latent(1536, 512, 64, 128), shared=1, dense=(3, 18432), corrected=True,
        routing=V3 | {"expert_weights_scale": 2.5, "expert_group_count": 8, "expert_group_used_count": 4},
    ),
    "glm-4.7-flash": Shape(
        "deepseek2", 47, 2048, 20, 1, 256, 64, 4, 1536, 154880, 202752, 1e6, 1e-5, pre_tokenizer="glm4",
        latent=Latent(768, 512, 64, 256), shared=1, dense=(1, 10240), corrected=True,
        routing=V3 | {"expert_weights_scale": 1.8},
    ),
    "gpt-oss": Shape(
        "gpt-oss", 24, 2880, 64, 8, 64, 32, 4, 2880, 201088, 131072, 1.5e5, 1e-5, pre_tokenizer="gpt-4o", biased=True,
        routing={"attention.sliding_window": 128, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
                 "rope.scaling.original_context_length": 4096},
    ),
    "gemma-4": Shape(
        "gemma4", 30, 2816, 16, 2, 512, 128, 8, 704, 262144, 262144, 1e6, 1e-6, "head",
        sliding=Sliding(6, 1024, 256, 8, 128, 2112),
    ),
}  # fmt: skip
