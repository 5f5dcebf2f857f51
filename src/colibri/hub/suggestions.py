"""Known mixtures with what they take: a table in the package, no network.

Shapes are those of each repository's config.json; sizes follow from them and the Q4_K_M mix, whose rules publishers of
GGUF files share. The test holds the parameters counted here to those that the authors name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from colibri.conversion.mixes import Context, mix, tensor_type
from colibri.observe.forecast import decode_seconds
from colibri.weights.gguf_writer import TensorSpec

QUANTISATION: Final = "Q4_K_M"
RAM_SIZES: Final = (8, 16, 32, 64, 128)  # GiB
_CONTEXT: Final = 4096
_SYSTEM_BYTES: Final = 1 << 30  # what the system and other programs take of the memory
_PROCESS_BYTES: Final = 200 << 20
_RESERVE_SHARE: Final = 16  # of what is left, as at a load


@dataclass(frozen=True)
class Known:
    """A mixture: where GGUF files of it are, what it is for, whose config.json has the shape, and the shape."""

    reference: str
    purpose: str
    source: str
    parameters: float  # as its authors name them, in billions
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    used: int
    width: int  # of an expert


KNOWN: Final = (
    Known("allenai/OLMoE-1B-7B-0125-Instruct-GGUF", "small and open, data included",
          "allenai/OLMoE-1B-7B-0125-Instruct", 6.9, 16, 2048, 50304, 16, 16, 128, 64, 8, 1024),
    Known("unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF", "general, many languages, tools",
          "Qwen/Qwen3-30B-A3B-Instruct-2507", 30.5, 48, 2048, 151936, 32, 4, 128, 128, 8, 768),
    Known("unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", "programs, tools",
          "Qwen/Qwen3-Coder-30B-A3B-Instruct", 30.5, 48, 2048, 151936, 32, 4, 128, 128, 8, 768),
    Known("TheBloke/Mixtral-8x7B-Instruct-v0.1-GGUF", "general, European languages",
          "mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, 32, 4096, 32000, 32, 8, 128, 8, 2, 14336),
    Known("MaziyarPanahi/Mixtral-8x22B-Instruct-v0.1-GGUF", "general, European languages",
          "mistralai/Mixtral-8x22B-Instruct-v0.1", 141, 56, 6144, 32768, 48, 8, 128, 8, 2, 16384),
    Known("unsloth/Qwen3-235B-A22B-Instruct-2507-GGUF", "general, many languages, tools",
          "Qwen/Qwen3-235B-A22B-Instruct-2507", 235, 94, 4096, 151936, 64, 4, 128, 128, 8, 1536),
    Known("unsloth/Qwen3-Coder-480B-A35B-Instruct-GGUF", "programs, tools",
          "Qwen/Qwen3-Coder-480B-A35B-Instruct", 480, 62, 6144, 151936, 96, 8, 128, 160, 8, 2560),
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Bytes of the file, of what must be in memory (with keys and values), of all experts and of those of a token."""

    file: int
    dense: int
    experts: int
    token_experts: int
    token: int  # all that a token reads, experts included


def shapes(known: Known) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Its matrices, by GGUF's names; vectors are too small to count."""
    hidden, queries, keys = known.hidden, known.heads * known.head_dim, known.kv_heads * known.head_dim
    yield "token_embd.weight", (known.vocabulary, hidden)
    yield "output.weight", (known.vocabulary, hidden)
    for layer in range(known.layers):
        block = f"blk.{layer}."
        yield f"{block}attn_q.weight", (queries, hidden)
        yield f"{block}attn_k.weight", (keys, hidden)
        yield f"{block}attn_v.weight", (keys, hidden)
        yield f"{block}attn_output.weight", (hidden, queries)
        yield f"{block}ffn_gate_inp.weight", (known.experts, hidden)
        yield f"{block}ffn_gate_exps.weight", (known.experts, known.width, hidden)
        yield f"{block}ffn_up_exps.weight", (known.experts, known.width, hidden)
        yield f"{block}ffn_down_exps.weight", (known.experts, hidden, known.width)


def parameters(known: Known) -> int:
    """Counted from the shapes."""
    return sum(math.prod(shape) for _, shape in shapes(known))


def sizes(known: Known) -> Sizes:
    """What it takes in Q4_K_M with keys and values of 4096 tokens."""
    chosen, context = mix(QUANTISATION), Context(known.layers, known.experts, tied=False)
    dense = experts = embedding = 0
    for name, shape in shapes(known):
        nbytes = TensorSpec(name, tensor_type(chosen, name, shape, context), shape).nbytes
        if "_exps." in name:
            experts += nbytes
        else:
            dense += nbytes
            embedding += nbytes if name == "token_embd.weight" else 0
    cache = 2 * 2 * known.layers * known.kv_heads * known.head_dim * _CONTEXT
    token_experts = experts * known.used // known.experts
    return Sizes(dense + experts, dense + cache, experts, token_experts, dense - embedding + token_experts)


def speed(known: Known, taken: Sizes, ram: int, memory_rate: float, disk_rate: float | None) -> float | None:
    """Tokens a second to expect with `ram` bytes of memory when experts are routed to evenly; None: it does not run.

    Beside the dense part there must be room for the experts that a token needs in one layer.
    """
    left = ram - _SYSTEM_BYTES
    room = left - left // _RESERVE_SHARE - _PROCESS_BYTES - taken.dense
    if room < taken.token_experts // known.layers:
        return None
    missing = max(0.0, 1.0 - room / taken.experts) * taken.token_experts
    if missing and disk_rate is None:
        return None
    return 1.0 / sum(decode_seconds(taken.token, missing, memory_rate, disk_rate or 1.0))
