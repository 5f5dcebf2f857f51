"""Makes GGUF files with random weights in the shape of known Mixture-of-Experts models.

For measuring speed and memory without a download. Blocks are drawn at random in their packed form (no float matrix is
ever quantised), so a file is written about as fast as the disk takes it. Weights have a standard deviation near
1/sqrt(k); attention outputs are 10 times smaller so that the routers of deep layers still see different tokens.

    python tools/make_random_moe.py olmoe.gguf --shape olmoe --quantization q4_k_m
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri.conversion.gguf_writer import GGUFWriter
from colibri.weights.block_types import BY_NAME, row_bytes
from colibri.weights.gguf_writer import TensorSpec, Value

Bytes = npt.NDArray[np.uint8]
CHUNK_BYTES = 16 << 20


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


SHAPES = {
    "tiny": Shape("olmoe", 2, 256, 4, 4, 64, 8, 2, 256, 512, 1024, 1e4, 1e-5, "full", "olmo"),
    "olmoe": Shape("olmoe", 16, 2048, 16, 16, 128, 64, 8, 1024, 50304, 4096, 1e4, 1e-5, "full", "olmo"),
    "mixtral": Shape("llama", 32, 4096, 32, 8, 128, 8, 2, 14336, 32000, 32768, 1e6, 1e-5),
    "qwen3moe": Shape("qwen3moe", 48, 2048, 32, 4, 128, 128, 8, 768, 151936, 40960, 1e6, 1e-6, "head", "qwen2"),
}


# --- random blocks: (count, deviation) -> (count, bytes of a block) ---------------------------------------------------


def _half(values: npt.NDArray[np.float64]) -> Bytes:
    return values.astype("<f2").view(np.uint8).reshape(len(values), 2)


def _scales(rng: np.random.Generator, count: int, scale: float, signed: bool) -> npt.NDArray[np.float64]:
    scales = rng.uniform(0.75, 1.25, count) * scale
    return scales * rng.choice([-1.0, 1.0], count) if signed else scales


def _bytes(rng: np.random.Generator, count: int, width: int) -> Bytes:
    return np.frombuffer(rng.bytes(count * width), np.uint8).reshape(count, width)


def _q4_k(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return _four_or_five_bits(rng, count, deviation / (36.4 * 4.61), 7.5, 128)


def _q5_k(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return _four_or_five_bits(rng, count, deviation / (36.4 * 9.23), 15.5, 160)


def _four_or_five_bits(rng: np.random.Generator, count: int, scale: float, middle: float, bits: int) -> Bytes:
    """value = d * s * q - dmin * m with m = s and dmin = d * middle, so that the mean is 0."""
    d = _half(_scales(rng, count, scale, signed=False))
    dmin = _half(d.view("<f2")[:, 0].astype(np.float64) * middle)
    low = _bytes(rng, count, 4)
    high = _bytes(rng, count, 4) & 15
    return np.hstack([d, dmin, low, low, high * np.uint8(17), _bytes(rng, count, bits)])


def _q6_k(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    d = _half(_scales(rng, count, deviation / (18.5 * 74), signed=True))
    return np.hstack([_bytes(rng, count, 128 + 64 + 16), d])


def _q8_0(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return np.hstack([_half(_scales(rng, count, deviation / 73.9, signed=True)), _bytes(rng, count, 32)])


def _q4_0(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return np.hstack([_half(_scales(rng, count, deviation / 4.61, signed=True)), _bytes(rng, count, 16)])


def _mxfp4(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    exponent = 127 + math.log2(deviation / 2.93)
    drawn = np.floor(exponent + rng.uniform(0, 1, count)).astype(np.uint8)
    return np.hstack([drawn[:, None], _bytes(rng, count, 16)])


def _sixteen_bits(rng: np.random.Generator, count: int, deviation: float, mantissa: int, bias: int) -> Bytes:
    """Random sign and mantissa; the exponent is one of two, uniform: values of 1..4 units, rms 2.37 units."""
    raw = np.frombuffer(rng.bytes(2 * count), "<u2")
    exponent = bias + round(math.log2(deviation / 2.37))
    kept = raw & (0x8000 | ((2 << mantissa) - 1))
    bits = kept + np.uint16(0) + (np.uint16(exponent) << np.uint16(mantissa))
    return bits.astype("<u2").view(np.uint8).reshape(count, 2)


def _f16(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return _sixteen_bits(rng, count, deviation, 10, 15)


def _bf16(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return _sixteen_bits(rng, count, deviation, 7, 127)


def _f32(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    return (rng.standard_normal(count, np.float32) * np.float32(deviation)).view(np.uint8).reshape(count, 4)


def _scaled(width: int, at: int, unit: float) -> Callable[[np.random.Generator, int, float], Bytes]:
    """Any bits; the half float at byte `at` is a scale, of which values are `unit` on average."""

    def draw(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
        scale = _half(_scales(rng, count, deviation / unit, signed=True))
        return np.hstack([_bytes(rng, count, at), scale, _bytes(rng, count, width - at - 2)])

    return draw


def _with_minimum(width: int, middle: float, unit: float) -> Callable[[np.random.Generator, int, float], Bytes]:
    """Any bits after a scale and a minimum that makes the mean 0."""

    def draw(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
        scale = _half(_scales(rng, count, deviation / unit, signed=True))
        minimum = _half(scale.view("<f2")[:, 0].astype(np.float64) * -middle)
        return np.hstack([scale, minimum, _bytes(rng, count, width - 4)])

    return draw


def _nvfp4(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    exponent = 7 + math.log2(deviation / 2.93)  # of 4 bits: what is less than 2^-6 is a fraction of it
    drawn = np.clip(np.floor(exponent + rng.uniform(0, 1, (count, 4))), 0, 14).astype(np.uint8)
    smallest = np.uint8(round(deviation / 2.93 * 512)) if exponent < 1 else np.uint8(0)
    scales = np.where(drawn == 0, smallest, drawn << np.uint8(3)).astype(np.uint8)
    return np.hstack([scales, _bytes(rng, count, 32)])


def _iq1_m(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    """A half float in four parts of four bits."""
    blocks = _bytes(rng, count, 56).copy()
    d = _scales(rng, count, deviation / 7.4, signed=True).astype(np.float16).view(np.uint16)
    for part in range(4):
        blocks[:, 49 + 2 * part] = (blocks[:, 49 + 2 * part] & 15) | ((d >> 4 * part & 15) << 4).astype(np.uint8)
    return blocks


def _q2_k(rng: np.random.Generator, count: int, deviation: float) -> Bytes:
    """A scale and the minimum of its 16 values are the same nibble, so that the mean is 0."""
    d = _half(_scales(rng, count, deviation / 9.84, signed=True))
    dmin = _half(d.view("<f2")[:, 0].astype(np.float64) * 1.5)
    scales = (_bytes(rng, count, 16) & 15) * np.uint8(17)
    return np.hstack([scales, _bytes(rng, count, 64), d, dmin])


BLOCKS: dict[str, Callable[[np.random.Generator, int, float], Bytes]] = {
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_0": _q8_0, "Q4_0": _q4_0,
    "MXFP4": _mxfp4, "F16": _f16, "BF16": _bf16, "F32": _f32,
    "Q4_1": _with_minimum(20, 7.5, 4.61), "Q5_1": _with_minimum(24, 15.5, 9.23), "Q5_0": _scaled(22, 0, 9.24),
    "IQ4_NL": _scaled(18, 0, 70.8), "IQ4_XS": _scaled(136, 0, 1310), "Q2_K": _q2_k, "Q3_K": _scaled(110, 108, 43.3),
    "IQ3_S": _scaled(110, 0, 150), "IQ3_XXS": _scaled(98, 0, 150), "IQ2_S": _scaled(82, 0, 58),
    "IQ2_XS": _scaled(74, 0, 58), "IQ2_XXS": _scaled(66, 0, 54), "IQ1_S": _scaled(50, 0, 7.4), "IQ1_M": _iq1_m,
    "TQ1_0": _scaled(54, 52, 0.82), "TQ2_0": _scaled(66, 64, 1.2), "NVFP4": _nvfp4,
}  # fmt: skip


def random_tensor(rng: np.random.Generator, tensor: TensorSpec, deviation: float) -> Iterator[Bytes]:
    """The bytes of a tensor with values of mean 0 and about this deviation, in chunks."""
    block = BY_NAME[tensor.type]
    left = tensor.nbytes // block.bytes
    while left:
        count = min(left, CHUNK_BYTES // block.bytes)
        yield BLOCKS[tensor.type](rng, count, deviation)
        left -= count


# --- quantisation mixes ---


def _more_bits(layer: int, layers: int) -> bool:
    """The layers whose sensitive tensors llama.cpp gives Q6_K in its Q4_K_M mix."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _q4_k_m(part: str, layer: int, shape: Shape) -> str:
    if part == "output":
        return "Q6_K"
    if shape.experts == 8 and part in ("attn_k", "attn_v", "attn_output"):
        return "Q5_K" if part == "attn_output" else "Q8_0"
    if part in ("attn_v", "ffn_down_exps") and _more_bits(layer, shape.layers):
        return "Q6_K"
    return "Q4_K"


def _mxfp4_mix(part: str, layer: int, shape: Shape) -> str:
    return "MXFP4" if part.endswith("_exps") else "Q8_0"


MIXES: dict[str, tuple[int, Callable[[str, int, Shape], str]]] = {  # name -> (general.file_type, part -> type)
    "q4_k_m": (15, _q4_k_m),
    "q5_k": (17, lambda part, layer, shape: "Q5_K"),
    "q6_k": (18, lambda part, layer, shape: "Q6_K"),
    "q8_0": (7, lambda part, layer, shape: "Q8_0"),
    "q4_0": (2, lambda part, layer, shape: "Q4_0"),
    "mxfp4": (38, _mxfp4_mix),
    "q4_1": (3, lambda part, layer, shape: "Q4_1"),
    "q5_0": (8, lambda part, layer, shape: "Q5_0"),
    "q5_1": (9, lambda part, layer, shape: "Q5_1"),
    "q2_k": (10, lambda part, layer, shape: "Q2_K"),
    "q3_k": (12, lambda part, layer, shape: "Q3_K"),
    "iq4_nl": (25, lambda part, layer, shape: "IQ4_NL"),
    "iq4_xs": (30, lambda part, layer, shape: "IQ4_XS"),
    "iq3_s": (26, lambda part, layer, shape: "IQ3_S"),
    "iq3_xxs": (23, lambda part, layer, shape: "IQ3_XXS"),
    "iq2_s": (28, lambda part, layer, shape: "IQ2_S"),
    "iq2_xs": (20, lambda part, layer, shape: "IQ2_XS"),
    "iq2_xxs": (19, lambda part, layer, shape: "IQ2_XXS"),
    "iq1_s": (24, lambda part, layer, shape: "IQ1_S"),
    "iq1_m": (31, lambda part, layer, shape: "IQ1_M"),
    "tq1_0": (36, lambda part, layer, shape: "TQ1_0"),
    "tq2_0": (37, lambda part, layer, shape: "TQ2_0"),
    "nvfp4": (39, lambda part, layer, shape: "NVFP4"),
    "f16": (1, lambda part, layer, shape: "F16"),
    "bf16": (32, lambda part, layer, shape: "BF16"),
}


# What llama.cpp takes where 256 does not divide a row.
AT_ODD_WIDTHS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "IQ3_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL", "IQ2_S": "IQ4_NL", "IQ2_XS": "IQ4_NL", "IQ2_XXS": "IQ4_NL",
    "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
}  # fmt: skip


# --- the model ---


@dataclass(frozen=True)
class Part:
    """A tensor and how it is drawn: deviation of its values around `mean`."""

    spec: TensorSpec
    deviation: float
    mean: float = 0.0


def parts(shape: Shape, mix: Callable[[str, int, Shape], str]) -> list[Part]:
    """All tensors of the model in file order."""
    hidden, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    result: list[Part] = []

    def matrix(part: str, layer: int, dims: tuple[int, ...], deviation: float) -> None:
        name = f"{part}.weight" if layer < 0 else f"blk.{layer}.{part}.weight"
        chosen = mix(part, layer, shape)
        fits = dims[-1] % BY_NAME[chosen].values == 0
        result.append(Part(TensorSpec(name, chosen if fits else AT_ODD_WIDTHS[chosen], dims), deviation))

    def norm(name: str, size: int) -> None:
        result.append(Part(TensorSpec(name, "F32", (size,)), 0.02, 1.0))

    unit = 1 / math.sqrt(hidden)
    matrix("token_embd", -1, (shape.vocabulary, hidden), 0.5)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight", hidden)
        matrix("attn_q", layer, (q, hidden), unit)
        matrix("attn_k", layer, (kv, hidden), unit)
        matrix("attn_v", layer, (kv, hidden), unit)
        matrix("attn_output", layer, (hidden, q), 0.1 / math.sqrt(q))
        if shape.qk_norm != "none":
            norm(block + "attn_q_norm.weight", q if shape.qk_norm == "full" else shape.head_dim)
            norm(block + "attn_k_norm.weight", kv if shape.qk_norm == "full" else shape.head_dim)
        norm(block + "ffn_norm.weight", hidden)
        router = TensorSpec(block + "ffn_gate_inp.weight", "F32", (shape.experts, hidden))
        result.append(Part(router, 1.5 * unit))
        matrix("ffn_gate_exps", layer, (shape.experts, shape.intermediate, hidden), unit)
        matrix("ffn_up_exps", layer, (shape.experts, shape.intermediate, hidden), unit)
        matrix("ffn_down_exps", layer, (shape.experts, hidden, shape.intermediate), 1 / math.sqrt(shape.intermediate))
    norm("output_norm.weight", hidden)
    matrix("output", -1, (shape.vocabulary, hidden), unit)
    return result


def router_scales(shape: Shape, skew: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """(experts,) factors of the router's rows that make the experts' use fall as 1 / rank ** skew.

    Found by drawing logits and correcting the factors. An expert whose logits are symmetric around 0 is hardly
    chosen more than half of the time, so frequencies are capped at 0.45.
    """
    scales = np.ones(shape.experts)
    if not skew:
        return scales
    target = np.arange(1, shape.experts + 1, dtype=np.float64) ** -skew
    for _ in range(20):
        target = np.minimum(target * shape.used / target.sum(), 0.45)
    drawn = rng.standard_normal((4096, shape.experts))
    for _ in range(80):
        chosen = np.argpartition(-drawn * scales, shape.used, axis=1)[:, : shape.used]
        found = np.bincount(chosen.ravel(), minlength=shape.experts) / len(drawn)
        scales *= ((target + 1e-3) / (found + 1e-3)) ** 0.25
        scales /= scales.mean()
    return scales


def metadata(shape: Shape, name: str, file_type: int) -> dict[str, object]:
    """GGUF metadata, tokenizer included."""
    prefix = shape.architecture + "."
    keys: dict[str, object] = {
        "general.architecture": shape.architecture,
        "general.name": name,
        "general.type": "model",
        "general.quantization_version": 2,
        "general.file_type": file_type,
        prefix + "block_count": shape.layers,
        prefix + "context_length": shape.context,
        prefix + "embedding_length": shape.hidden,
        prefix + "feed_forward_length": shape.intermediate,
        prefix + "expert_feed_forward_length": shape.intermediate,
        prefix + "attention.head_count": shape.heads,
        prefix + "attention.head_count_kv": shape.kv_heads,
        prefix + "attention.key_length": shape.head_dim,
        prefix + "attention.value_length": shape.head_dim,
        prefix + "attention.layer_norm_rms_epsilon": shape.epsilon,
        prefix + "rope.dimension_count": shape.head_dim,
        prefix + "rope.freq_base": shape.theta,
        prefix + "expert_count": shape.experts,
        prefix + "expert_used_count": shape.used,
        prefix + "vocab_size": shape.vocabulary,
    }
    return keys | tokenizer(shape)


MERGES = ("Ġ t", "h e", "i n", "r e", "Ġ a", "Ġt he", "o n", "e r", "Ġ s", "a t", "n d", "o u", "Ġ w", "i t", "in g")


def tokenizer(shape: Shape) -> dict[str, object]:
    """A byte-level BPE vocabulary: 256 bytes, a few merges, one end token, and words that no text encodes to."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    tokens = [letters[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in MERGES]
    end = len(tokens)
    tokens.append("<|endoftext|>")
    tokens += [f"Ġw{number}" for number in range(shape.vocabulary - len(tokens))]
    types = np.ones(len(tokens), np.int32)
    types[end] = 3  # control
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": shape.pre_tokenizer,
        "tokenizer.ggml.tokens": Value("string", tokens),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": Value("string", list(MERGES)),
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.padding_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def chunks(part: Part, rng: np.random.Generator, row_scales: npt.NDArray[np.float64]) -> Iterator[Bytes]:
    """The bytes of one part; routers get their rows scaled, in an order of their own for every layer."""
    spec = part.spec
    if "ffn_gate_inp" in spec.name or part.mean:
        values = rng.standard_normal(spec.shape) * part.deviation + part.mean
        if "ffn_gate_inp" in spec.name:
            values *= rng.permutation(row_scales)[:, None]
        return iter([values.astype("<f4").view(np.uint8)])
    return random_tensor(rng, spec, part.deviation)


def check_rows(all_parts: list[Part]) -> None:
    """Every row must be a whole number of blocks; raises ValueError."""
    for part in all_parts:
        row_bytes(part.spec.type, part.spec.shape[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--quantization", choices=MIXES, default="q4_k_m")
    for field in ("layers", "experts", "used", "hidden", "intermediate", "vocabulary", "context"):
        parser.add_argument(f"--{field}", type=int, help="instead of the shape's own")
    parser.add_argument("--skew", type=float, default=0.0, help="experts are used as 1 / rank ** SKEW (0: evenly)")
    parser.add_argument("--split", type=float, help="write files of at most about this many GB")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    changes: dict[str, Any] = {
        field: value for field, value in vars(options).items() if field in Shape.__annotations__ and value is not None
    }
    shape = replace(SHAPES[options.shape], **changes)
    file_type, mix = MIXES[options.quantization]
    all_parts = parts(shape, mix)
    check_rows(all_parts)
    rng = np.random.Generator(np.random.SFC64(options.seed))
    row_scales = router_scales(shape, options.skew, rng)
    name = f"random-{options.shape}-{shape.layers}x{shape.experts}-{options.quantization}"
    split = None if options.split is None else int(options.split * 1e9)
    started = time.perf_counter()
    keys = metadata(shape, name, file_type)
    with GGUFWriter(options.output, keys, [part.spec for part in all_parts], split_bytes=split) as writer:
        for part in all_parts:
            writer.write(part.spec.name, chunks(part, rng, row_scales))
    seconds = time.perf_counter() - started
    parameters = sum(math.prod(part.spec.shape) for part in all_parts)
    print(f"{', '.join(map(str, writer.files))}: {writer.nbytes / 1e9:.2f} GB, {parameters / 1e9:.2f} B parameters, "
          f"{len(all_parts)} tensors, {seconds:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
