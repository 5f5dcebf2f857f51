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
from random_blocks import Bytes, random_tensor
from random_mixes import AT_ODD_WIDTHS, MIXES
from random_shapes import SHAPES, Hybrid, Latent, Shape, Sliding

from colibri.conversion.gguf_writer import GGUFWriter
from colibri.weights.block_types import BY_NAME, row_bytes
from colibri.weights.gguf_writer import TensorSpec, Value


@dataclass(frozen=True)
class Part:
    """A tensor and how it is drawn: deviation of its values around `mean`."""

    spec: TensorSpec
    deviation: float
    mean: float = 0.0
    values: npt.NDArray[np.float64] | None = None  # in place of drawn ones


class Parts:
    """Tensors of a model in file order."""

    def __init__(self, shape: Shape, mix: Callable[[str, int, Shape], str]) -> None:
        self.made: list[Part] = []
        self._shape, self._mix = shape, mix

    def matrix(self, part: str, layer: int, dims: tuple[int, ...], gain: float = 1.0) -> None:
        """Outputs are as large as inputs, times `gain`. A layer below 0: beside the layers."""
        name = f"{part}.weight" if layer < 0 else f"blk.{layer}.{part}.weight"
        chosen = self._mix(part, layer, self._shape)
        fits = dims[-1] % BY_NAME[chosen].values == 0
        spec = TensorSpec(name, chosen if fits else AT_ODD_WIDTHS[chosen], dims)
        self.made.append(Part(spec, gain / math.sqrt(dims[-1])))

    def product(self, part: str, layer: int, dims: tuple[int, ...], gain: float = 1.0) -> None:
        """A matrix, and its bias where the shape has biases."""
        self.matrix(part, layer, dims, gain)
        if self._shape.biased:
            self.plain(f"blk.{layer}.{part}.bias", dims[:-1], 0.02, 0.0)

    def plain(
        self, name: str, dims: tuple[int, ...], deviation: float = 0.02, mean: float = 1.0,
        values: npt.NDArray[np.float64] | None = None,
    ) -> None:  # fmt: skip
        """A tensor of floats, by default the weight of a norm."""
        self.made.append(Part(TensorSpec(name, "F32", dims), deviation, mean, values))


def parts(shape: Shape, mix: Callable[[str, int, Shape], str]) -> list[Part]:
    """All tensors of the model in file order."""
    made, hidden = Parts(shape, mix), shape.hidden
    tied = shape.sliding is not None  # and scaled by sqrt(hidden)
    made.matrix("token_embd", -1, (shape.vocabulary, hidden), 1.0 if tied else 0.5 * math.sqrt(hidden))
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        made.plain(block + "attn_norm.weight", (hidden,))
        _mixer(shape, layer)(made, shape, layer)
        if shape.sliding is not None:
            _beside(made, shape, shape.sliding, layer)
        after = "ffn_norm" if shape.hybrid is None and not shape.biased else "post_attention_norm"
        made.plain(f"{block}{after}.weight", (hidden,))
        if layer < shape.dense[0]:
            _network(made, layer, "ffn_{}", shape.dense[1], hidden)
            continue
        made.plain(block + "ffn_gate_inp.weight", (shape.experts, hidden), 1.5 / math.sqrt(hidden), 0.0)
        if shape.biased:
            made.plain(block + "ffn_gate_inp.bias", (shape.experts,), 0.02, 0.0)
        if shape.corrected:
            made.plain(block + "exp_probs_b.bias", (shape.experts,), 0.01, 0.0)
        _network(made, layer, "ffn_{}_exps", shape.intermediate, hidden, shape.experts)
        if shape.shared:
            _network(made, layer, "ffn_{}_shexp", shape.shared * shape.intermediate, hidden)
        if shape.hybrid is not None:
            made.plain(block + "ffn_gate_inp_shexp.weight", (hidden,), 1 / math.sqrt(hidden), 0.0)
    made.plain("output_norm.weight", (hidden,))
    if not tied:
        made.matrix("output", -1, (shape.vocabulary, hidden))
    if shape.sliding is not None:
        turning = np.arange(shape.head_dim // 2) < shape.sliding.rotary // 2
        made.plain("rope_freqs.weight", turning.shape, values=np.where(turning, 1, 1e30))
    return made.made


def _beside(made: Parts, shape: Shape, sliding: Sliding, layer: int) -> None:
    """Norms of answers, the scales of a layer and of its router, the dense network."""
    block, hidden = f"blk.{layer}.", shape.hidden
    made.plain(block + "post_attention_norm.weight", (hidden,), mean=0.1)
    for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2", "post_ffw_norm"):
        made.plain(f"{block}{name}.weight", (hidden,))
    made.plain(block + "layer_output_scale.weight", (1,))
    made.plain(block + "ffn_gate_inp.scale", (hidden,), 0.1, math.sqrt(hidden))
    made.plain(block + "ffn_down_exps.scale", (shape.experts,))
    _network(made, layer, "ffn_{}", sliding.beside, hidden)


def _mixer(shape: Shape, layer: int) -> Callable[[Parts, Shape, int], None]:
    if shape.hybrid is not None and (layer + 1) % shape.hybrid.interval:
        return _delta_net
    return _attention if shape.latent is None else _latent_attention


def _network(made: Parts, layer: int, name: str, width: int, hidden: int, *experts: int) -> None:
    made.product(name.format("gate"), layer, (*experts, width, hidden))
    made.product(name.format("up"), layer, (*experts, width, hidden))
    made.product(name.format("down"), layer, (*experts, hidden, width))


def _attention(made: Parts, shape: Shape, layer: int) -> None:
    keys = layer not in shape.sliding if shape.sliding is not None else False  # are values, too
    if shape.sliding is not None and not keys:
        shape = replace(shape, head_dim=shape.sliding.head_dim, kv_heads=shape.sliding.kv_heads)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    made.product("attn_q", layer, (q if shape.hybrid is None else 2 * q, shape.hidden))
    made.product("attn_k", layer, (kv, shape.hidden))
    if not keys:
        made.product("attn_v", layer, (kv, shape.hidden))
    made.product("attn_output", layer, (shape.hidden, q), 0.1)
    if shape.qk_norm != "none":
        made.plain(f"blk.{layer}.attn_q_norm.weight", (q if shape.qk_norm == "full" else shape.head_dim,))
        made.plain(f"blk.{layer}.attn_k_norm.weight", (kv if shape.qk_norm == "full" else shape.head_dim,))
    if shape.biased:
        made.plain(f"blk.{layer}.attn_sinks.weight", (shape.heads,), 1.0, 0.0)


def _delta_net(made: Parts, shape: Shape, layer: int) -> None:
    sizes, block, hidden = shape.hybrid, f"blk.{layer}.", shape.hidden
    assert sizes is not None
    values = sizes.heads * sizes.size
    made.matrix("attn_qkv", layer, (sizes.channels, hidden))
    made.matrix("attn_gate", layer, (values, hidden))
    for part in ("ba",) if shape.architecture == "qwen3next" else ("beta", "alpha"):
        rows = sizes.heads * (2 if part == "ba" else 1)
        made.plain(f"{block}ssm_{part}.weight", (rows, hidden), 1 / math.sqrt(hidden), 0.0)
    made.plain(block + "ssm_conv1d.weight", (sizes.channels, sizes.taps), 0.5, 0.0)
    made.plain(block + "ssm_a", (sizes.heads,), 0.2, -1.0)
    made.plain(block + "ssm_dt.bias", (sizes.heads,), 1.0, -2.0)
    made.plain(block + "ssm_norm.weight", (sizes.size,))
    made.matrix("ssm_out", layer, (hidden, values), 0.1)


def _latent_attention(made: Parts, shape: Shape, layer: int) -> None:
    latent, heads = shape.latent, shape.heads
    assert latent is not None
    if latent.query:
        made.matrix("attn_q_a", layer, (latent.query, shape.hidden))
        made.plain(f"blk.{layer}.attn_q_a_norm.weight", (latent.query,))
    made.matrix("attn_q_b" if latent.query else "attn_q", layer, (heads * shape.head_dim, latent.query or shape.hidden))
    made.matrix("attn_kv_a_mqa", layer, (latent.shared + latent.rope, shape.hidden))
    made.plain(f"blk.{layer}.attn_kv_a_norm.weight", (latent.shared,))
    made.matrix("attn_k_b", layer, (heads, latent.shared, shape.head_dim - latent.rope))
    made.matrix("attn_v_b", layer, (heads, latent.value, latent.shared))
    made.matrix("attn_output", layer, (shape.hidden, heads * latent.value), 0.1)


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
    more = dict(shape.routing)
    if shape.hybrid is not None:
        more |= _states(shape, shape.hybrid)
    elif shape.shared:
        more["expert_shared_count"] = shape.shared
    if shape.dense[0]:
        more |= {"leading_dense_block_count": shape.dense[0], "feed_forward_length": shape.dense[1]}
    if shape.latent is not None:
        more |= _latent_lengths(shape, shape.latent)
    if shape.sliding is not None:
        more |= _windows(shape, shape.sliding)
    return keys | {prefix + key: value for key, value in more.items()} | tokenizer(shape)


def _states(shape: Shape, hybrid: Hybrid) -> dict[str, object]:
    return {
        "expert_shared_feed_forward_length": shape.shared * shape.intermediate,
        "rope.dimension_count": hybrid.rotary,
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "full_attention_interval": hybrid.interval,
        "ssm.conv_kernel": hybrid.taps,
        "ssm.state_size": hybrid.size,
        "ssm.group_count": hybrid.key_heads,
        "ssm.time_step_rank": hybrid.heads,
        "ssm.inner_size": hybrid.heads * hybrid.size,
    }


def _windows(shape: Shape, sliding: Sliding) -> dict[str, object]:
    pattern = [layer in sliding for layer in range(shape.layers)]
    heads = np.where(pattern, sliding.kv_heads, shape.kv_heads)
    return {
        "feed_forward_length": sliding.beside,
        "attention.head_count_kv": heads.astype(np.int32),
        "attention.key_length_swa": sliding.head_dim,
        "attention.value_length_swa": sliding.head_dim,
        "attention.sliding_window": sliding.window,
        "attention.sliding_window_pattern": np.array(pattern),
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "rope.dimension_count_swa": sliding.head_dim,
        "rope.freq_base_swa": 1e4,
        "final_logit_softcapping": 30.0,
    }


def _latent_lengths(shape: Shape, latent: Latent) -> dict[str, object]:
    return {
        "attention.key_length": latent.shared + latent.rope,
        "attention.value_length": latent.shared,
        "attention.key_length_mla": shape.head_dim,
        "attention.value_length_mla": latent.value,
        "attention.kv_lora_rank": latent.shared,
        "rope.dimension_count": latent.rope,
        **({"attention.q_lora_rank": latent.query} if latent.query else {}),
    }


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
    if part.values is not None:
        return iter([part.values.astype("<f4").view(np.uint8)])
    if spec.type == "F32" and (len(spec.shape) == 1 or "ffn_gate_inp" in spec.name):
        values = rng.standard_normal(spec.shape) * part.deviation + part.mean
        if spec.name.endswith("ffn_gate_inp.weight"):
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
    for size in ("layers", "experts", "used", "hidden", "intermediate", "vocabulary", "context"):
        parser.add_argument(f"--{size}", type=int, help="instead of the shape's own")
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
