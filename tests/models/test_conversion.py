"""A converted file gives the logits of the checkpoint that it came from: the same bits where nothing is rounded, and
for every format and architecture those of the values that the file stands for (other tests compare plain values with
transformers)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from colibri.conversion.convert import Options, convert
from colibri.conversion.gguf_writer import GGUFWriter
from colibri.conversion.mixes import MIXES
from colibri.conversion.source import open_source
from colibri.engine.model import Model
from colibri.models.registry import open_checkpoint
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import TensorSpec, Value

from .conftest import GOLDEN, golden_of

Load = Callable[..., Model]


@pytest.mark.parametrize("name", ["mixtral-gqa-f32", "qwen3_moe-gqa-f32", "olmoe-mha-f32"])
@pytest.mark.parametrize(("quantization", "near"), [("q8_0", 0.1), ("bf16", 0.05), ("q4_k_m", 0.4), ("mxfp4_moe", 0.6)])
def test_a_quantised_file_stays_near(load: Load, tmp_path: Path, name: str, quantization: str, near: float) -> None:
    golden = golden_of(GOLDEN / name)
    convert(open_checkpoint(GOLDEN / name), tmp_path / "m.gguf", Options(quantization))
    logits = load(tmp_path / "m.gguf", precision="exact").infer(golden["ids"].tolist())
    difference = np.sqrt(np.mean(np.square(logits - golden["logits"]))) / golden["logits"].std()
    assert difference < near


WIDE, HEAD = 256, 64  # what the K formats need: rows of 256 values


def widened(name: str, folder: Path) -> Path:
    """A golden checkpoint's architecture with random weights and wider rows."""
    convert(open_source(GOLDEN / name), folder / "narrow.gguf", Options("f32"))
    narrow = read_gguf(folder / "narrow.gguf")
    prefix = f"{narrow.metadata['general.architecture']}."
    old = {key.removeprefix(prefix): value for key, value in narrow.metadata.items() if key.startswith(prefix)}
    hidden, kv, head = old["embedding_length"], old["attention.head_count_kv"], old["attention.key_length"]
    heads, wide = old["attention.head_count"], old["feed_forward_length"]
    new_kv = WIDE // HEAD if kv == heads else kv
    sizes = {hidden: WIDE, heads * head: WIDE, kv * head: new_kv * HEAD, head: HEAD, wide: WIDE}
    sizes[old["expert_feed_forward_length"]] = WIDE
    new: dict[str, Any] = {
        "embedding_length": WIDE, "attention.head_count": WIDE // HEAD, "attention.head_count_kv": new_kv,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "feed_forward_length": WIDE,
        "expert_feed_forward_length": WIDE,
    }  # fmt: skip
    if "rope.dimension_count" in old:
        new["rope.dimension_count"] = HEAD * old["rope.dimension_count"] // head
    metadata = {key: Value(kind, narrow.metadata[key]) for key, kind in narrow.kinds.items() if "array" not in kind}
    metadata = {key: value for key, value in metadata.items() if not key.startswith(("colibri", "tokenizer"))}
    rng, tensors = np.random.default_rng(7), {}
    for info in narrow.tensors.values():
        shape = tuple(sizes.get(size, size) for size in info.shape)
        values = rng.standard_normal(shape, np.float32)
        if info.name.endswith("norm.weight"):
            values = 1 + 0.3 * values
        elif info.name.endswith(".bias"):
            values *= 0.3
        else:
            values *= (3.0 if "gate_inp" in info.name else 1.5) / shape[-1] ** 0.5
        tensors[info.name] = values
    write(folder / "wide.gguf", metadata | {prefix + key: value for key, value in new.items()}, tensors)
    return folder / "wide.gguf"


def write(path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    specs = [TensorSpec(name, "F32", values.shape) for name, values in tensors.items()]
    with GGUFWriter(path, metadata, specs) as writer:
        for name, values in tensors.items():
            writer.write(name, [np.ascontiguousarray(values, np.float32)])


def of_the_values(path: Path, plain: Path) -> None:
    """The same model with what llama.cpp's package makes of the blocks, in float32."""
    kinds = read_gguf(path).kinds
    metadata = {key: Value(kind, read_gguf(path).metadata[key]) for key, kind in kinds.items() if "array" not in kind}
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = values.reshape([int(size) for size in tensor.shape[::-1]])
    write(plain, metadata, tensors)


@pytest.mark.parametrize("name", [
    "mixtral-gqa-f32", "qwen3_moe-gqa-f32", "qwen3_moe-bias-f32", "qwen3_moe-dense-bf16", "olmoe-mha-f32",
    "deepspeed-top1", "deepspeed-residual", "deepspeed-newer",
])  # fmt: skip
def test_every_format_of_every_architecture(load: Load, tmp_path: Path, name: str) -> None:
    source = widened(name, tmp_path)
    ids = np.random.default_rng(3).integers(3, 90, 24).tolist()
    original = load(source, precision="exact").infer(ids)
    seen: set[str] = set()
    for quantization in MIXES:
        path, plain = tmp_path / f"{quantization}.gguf", tmp_path / f"{quantization}-plain.gguf"
        seen |= convert(open_checkpoint(source), path, Options(quantization)).by_type.keys()
        of_the_values(path, plain)
        converted = load(path, precision="exact").infer(ids)
        assert np.abs(converted - load(plain, precision="exact").infer(ids)).max() < 2e-3 * np.ptp(converted)
        if quantization == "f32":
            np.testing.assert_array_equal(converted, original)
    blocks = {mix.type for mix in MIXES.values()}
    assert blocks | {"F32"} <= seen <= blocks | {"MXFP4"}
