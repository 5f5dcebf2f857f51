"""Latent attention: early files with keys and values of all heads in one tensor, the cache, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri import ops
from colibri.config import LoadOptions, SamplingParams
from colibri.conversion.convert import Options, convert
from colibri.conversion.gguf_writer import GGUFWriter
from colibri.conversion.imatrix import ImportanceMatrix
from colibri.engine.loading import plan_model
from colibri.engine.model import Model
from colibri.errors import ArgumentError, FormatError, UnsupportedError
from colibri.models.registry import model_spec, open_checkpoint
from colibri.ops import _native
from colibri.spec import LatentAttentionSpec
from colibri.weights.gguf import GGUFFile, read_gguf
from colibri.weights.gguf_writer import TensorSpec
from colibri.weights.quantize import quantize_rows

from .conftest import GOLDEN, distance, golden_of

Load = Callable[..., Model]
FAMILIES = GOLDEN / "families"
LITE = FAMILIES / "deepseek_v2-lite-f32"  # no vector that queries are made from, YaRN
LARGE = FAMILIES / "deepseek_v3-groups-f32"
PATHS = [pytest.param(path, id=path.name) for path in (LITE, LARGE)]


def values_of(file: GGUFFile, name: str) -> np.ndarray[Any, Any]:
    info = file.tensors[name]
    return np.fromfile(info.file, np.float32, info.nbytes // 4, offset=info.offset).reshape(info.shape)


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[TensorSpec, np.ndarray[Any, Any]]) -> None:
    kept = {key: value for key, value in metadata.items() if not key.startswith("colibri.")}
    with GGUFWriter(path, kept, list(tensors)) as writer:
        for spec, values in tensors.items():
            writer.write(spec.name, iter([np.ascontiguousarray(values).view(np.uint8)]))


def early_file(path: Path, folder: Path, kind: str = "F32") -> Path:
    """The same weights as llama.cpp wrote them before April 2025, keys and values of all heads of this type."""
    convert(open_checkpoint(path), folder / "new.gguf", Options("f32"))
    new = read_gguf(folder / "new.gguf")
    tensors: dict[TensorSpec, np.ndarray[Any, Any]] = {}
    for name in new.tensors:
        values = values_of(new, name)
        if name.endswith("attn_v_b.weight"):
            continue
        if name.endswith("attn_k_b.weight"):
            keys = values.transpose(0, 2, 1)
            parts = keys, values_of(new, name.replace("attn_k_b", "attn_v_b"))
            merged = np.ascontiguousarray(np.concatenate(parts, axis=1).reshape(-1, keys.shape[-1]))
            spec = TensorSpec(name.replace("attn_k_b", "attn_kv_b"), kind, merged.shape)
            tensors[spec] = quantize_rows(kind, merged, None, name)
        else:
            tensors[TensorSpec(name, "F32", values.shape)] = values
    lengths = {f"deepseek2.attention.{part}_length": new.metadata[f"deepseek2.attention.{part}_length_mla"]
               for part in ("key", "value")}  # fmt: skip
    kept = {key: value for key, value in new.metadata.items() if not key.endswith("_mla")}
    write(folder / "early.gguf", kept | lengths | {"deepseek2.attention.head_count_kv": 4}, tensors)
    return folder / "early.gguf"


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("path", PATHS)
def test_an_early_file_gives_the_same_bits(load: Load, tmp_path: Path, path: Path, precision: str) -> None:
    ids = golden_of(path)["ids"].tolist()
    early = load(early_file(path, tmp_path), precision=precision)
    np.testing.assert_array_equal(early.infer(ids), load(path, precision=precision).infer(ids))


@pytest.mark.parametrize("path", PATHS)
def test_an_early_file_is_converted_into_a_new_one(load: Load, tmp_path: Path, path: Path) -> None:
    early = early_file(path, tmp_path)
    convert(open_checkpoint(early), tmp_path / "again.gguf", Options("f32"))
    new, again = read_gguf(tmp_path / "new.gguf"), read_gguf(tmp_path / "again.gguf")
    assert {name: info.shape for name, info in again.tensors.items()} == {
        name: info.shape for name, info in new.tensors.items()
    }
    lengths = [key for key in new.metadata if ".attention." in key]
    assert {key: again.metadata[key] for key in lengths} == {key: new.metadata[key] for key in lengths}
    for name in ("attn_k_b", "attn_v_b"):
        found, expected = (values_of(file, f"blk.0.{name}.weight") for file in (again, new))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["Q8_0", "BF16"])
def test_an_early_file_with_other_types(load: Load, tmp_path: Path, kind: str) -> None:
    golden = golden_of(LITE)
    model = load(early_file(LITE, tmp_path, kind), precision="exact")
    assert distance(model.infer(golden["ids"].tolist()), golden["logits"]) < 0.05
    info = open_checkpoint(tmp_path / "early.gguf").tensors["blk.0.attn_k_b.weight"]
    assert info.type == ("F16" if kind == "Q8_0" else kind)


def test_quantised_keys_are_transposed_as_they_are(load: Load, tmp_path: Path) -> None:
    """What an early file of Q8_0 is converted to holds the values of its blocks, rounded to half floats."""
    early = early_file(LITE, tmp_path, "Q8_0")
    convert(open_checkpoint(early), tmp_path / "again.gguf", Options("f32"))
    raw = read_gguf(early).tensors["blk.0.attn_kv_b.weight"]
    blocks = np.fromfile(raw.file, np.uint8, raw.nbytes, offset=raw.offset).reshape(-1, 34)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    merged = (scales * blocks[:, 2:].view(np.int8)).reshape(4, 12 + 16, 32)
    again = read_gguf(tmp_path / "again.gguf")
    keys = merged[:, :12].transpose(0, 2, 1).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(values_of(again, "blk.0.attn_k_b.weight"), keys)
    np.testing.assert_array_equal(values_of(again, "blk.0.attn_v_b.weight"), merged[:, 12:])


def test_importance_of_each_heads_columns(tmp_path: Path) -> None:
    """llama.cpp's importance files have sums for each head."""
    name = "blk.0.attn_v_b.weight"
    weights = np.random.default_rng(1).uniform(0.1, 10, (4, 32)).astype(np.float32) ** 2
    importance = ImportanceMatrix(tmp_path / "i.gguf", {name: weights}, {name: np.full(4, 100, np.float32)})
    convert(open_checkpoint(LITE), tmp_path / "f32.gguf", Options("f32"))
    convert(open_checkpoint(LITE), tmp_path / "q4_0.gguf", Options("q4_0", importance=importance))
    values = values_of(read_gguf(tmp_path / "f32.gguf"), name)
    expected = np.stack([quantize_rows("Q4_0", head, row, name) for head, row in zip(values, weights, strict=True)])
    info = read_gguf(tmp_path / "q4_0.gguf").tensors[name]
    found = np.fromfile(info.file, np.uint8, info.nbytes, offset=info.offset)
    np.testing.assert_array_equal(found, expected.reshape(-1))
    plain = quantize_rows("Q4_0", values.reshape(-1, 32), None, name)
    assert (found != plain.reshape(-1)).any()
    wrong = ImportanceMatrix(tmp_path / "i.gguf", {name: weights[:3]}, {name: np.full(3, 100, np.float32)})
    with pytest.raises(FormatError, match=r"weights of shape \(3, 32\), \(4, 32\) is expected"):
        convert(open_checkpoint(LITE), tmp_path / "wrong.gguf", Options("q4_0", importance=wrong))


def test_a_file_that_holds_keys_twice(tmp_path: Path) -> None:
    file = read_gguf(early_file(LITE, tmp_path))
    tensors = {TensorSpec(name, info.type, info.shape): values_of(file, name) for name, info in file.tensors.items()}
    tensors[TensorSpec("blk.0.attn_k_b.weight", "F32", (4, 32, 12))] = np.zeros((4, 32, 12), np.float32)
    write(tmp_path / "both.gguf", file.metadata, tensors)
    with pytest.raises(FormatError, match=r"holds both blk.0.attn_kv_b.weight and blk.0.attn_k_b.weight"):
        open_checkpoint(tmp_path / "both.gguf")


def test_layers_that_predict_more_tokens_are_left_out(load: Load, tmp_path: Path) -> None:
    """A file of GLM-4.7-Flash counts them as layers."""
    (tmp_path / "early").mkdir()
    file = read_gguf(early_file(LARGE, tmp_path / "early"))
    tensors = {TensorSpec(name, info.type, info.shape): values_of(file, name) for name, info in file.tensors.items()}
    tensors |= {
        replace(spec, name=spec.name.replace("blk.2.", "blk.3.")): values
        for spec, values in tensors.items()
        if spec.name.startswith("blk.2.")
    }
    tensors[TensorSpec("blk.3.nextn.enorm.weight", "F32", (32,))] = np.ones(32, np.float32)
    counts = {"deepseek2.block_count": 4, "deepseek2.nextn_predict_layers": 1}
    write(tmp_path / "m.gguf", dict(file.metadata) | counts, tensors)
    ids = golden_of(LARGE)["ids"].tolist()
    np.testing.assert_array_equal(load(tmp_path / "m.gguf").infer(ids), load(LARGE).infer(ids))
    (note,) = open_checkpoint(tmp_path / "m.gguf").notes
    assert "more than one token" in note


# ---- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kv_type", "key_bytes"), [("f16", 2 * 40), ("q8_0", 40 + 2 * 2)])
def test_the_cache_holds_one_key_a_token(load: Load, kv_type: Any, key_bytes: int) -> None:
    """32 values that heads share and 8 that positions turn; the plan counts exactly that."""
    prepared = plan_model(LoadOptions(path=LARGE, kv_type=kv_type, context=512, sequences=2))
    assert prepared.cache.token_bytes == 3 * key_bytes
    assert prepared.plan.needs.cache == prepared.cache.nbytes == 3 * key_bytes * 2 * 512
    assert all(layer.values is None for layer in prepared.cache.paged)


@pytest.mark.parametrize("path", PATHS)
def test_int8_keys(load: Load, path: Path) -> None:
    ids = golden_of(path)["long_ids"].tolist()[:300]
    half, int8 = load(path).infer(ids), load(path, kv_type="q8_0").infer(ids)
    assert not (half == int8).all()
    assert np.median(np.abs(half - int8)) < 0.05 * half.std()
    for options in ({"chunk": 1}, {"threads": 3}):
        np.testing.assert_array_equal(load(path, kv_type="q8_0", **options).infer(ids), int8)


def test_a_block_that_is_shared_is_copied(load: Load) -> None:
    """Two prompts that differ within a block, the second while the first runs."""
    ids = golden_of(LARGE)["long_ids"].tolist()
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    prompts = [ids[:300], ids[:290] + ids[:10]]
    alone = load(LARGE)
    expected = [[token.id for token in alone.generate(prompt, greedy)] for prompt in prompts]
    together = load(LARGE, sequences=2, share_prefixes=True)
    running = [together.generate(prompt, greedy) for prompt in prompts]
    steps = list(zip(*running, strict=True))
    assert [[token.id for token in tokens] for tokens in zip(*steps, strict=True)] == expected


@pytest.mark.parametrize("isa", ops.isas())
def test_instruction_sets(load: Load, isa: str) -> None:
    ids = golden_of(LITE)["ids"].tolist()
    expected = load(LITE).infer(ids)
    best = ops.isa()
    _native.use_isa(isa)
    try:
        np.testing.assert_array_equal(load(LITE).infer(ids), expected)
    finally:
        _native.use_isa(best)


# ---- what directories say --------------------------------------------------------------------------------------------


def changed(path: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a directory whose config.json says something else; None takes a field out."""
    shutil.copytree(path, folder / "model")
    config = json.loads((path / "config.json").read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None}
    (folder / "model" / "config.json").write_text(json.dumps(kept))
    return folder / "model"


def mixer_of(path: Path) -> LatentAttentionSpec:
    mixer = model_spec(open_checkpoint(path)).layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    return mixer


def test_kimi_k2_is_read_as_deepseek_v3(load: Load, tmp_path: Path) -> None:
    kimi = changed(LARGE, tmp_path, model_type="kimi_k2", scoring_func="sigmoid", topk_method="noaux_tc")
    ids = golden_of(LARGE)["ids"].tolist()
    np.testing.assert_array_equal(load(kimi).infer(ids), load(LARGE).infer(ids))


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(("rope", "scale", "cosines"), [
    ({}, 1.0, None),
    ({"mscale": 0.707, "mscale_all_dim": 0.707}, 0.0707 * np.log(4) + 1, 1.0),
    ({"mscale_all_dim": 1.0}, 0.1 * np.log(4) + 1, 0.1 * np.log(4) + 1),
    ({"mscale_all_dim": 1.0, "mscale": None, "attention_factor": 1.25}, 0.1 * np.log(4) + 1, 1.25),
])  # fmt: skip
def test_what_yarn_scales(tmp_path: Path, rope: dict[str, Any], scale: float, cosines: float | None) -> None:
    """As transformers does: the products by the square of one stretch, cosines and sines by the quotient of two."""
    mixer = mixer_of(changed(LARGE, tmp_path, rope_parameters=YARN | rope))
    assert mixer.scale == pytest.approx(20**-0.5 * scale**2, rel=1e-6)
    assert mixer.rope.attention_factor == (None if cosines is None else pytest.approx(cosines, rel=1e-6))


@pytest.mark.parametrize(("path", "changes", "named"), [
    (LARGE, {"rope_interleave": False}, "rope_interleave is False"),
    (LARGE, {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    (LARGE, {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    (LARGE, {"quantization_config": {"quant_method": "eetq"}}, "'eetq'"),
    (LITE, {"norm_topk_prob": True}, "norm_topk_prob is True"),
    (LITE, {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
])  # fmt: skip
def test_what_is_not_run_is_named(tmp_path: Path, path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        open_checkpoint(changed(path, tmp_path, **changes))


@pytest.mark.parametrize(("changes", "named"), [
    ({"v_head_dim": 24}, "kv_b_proj.*whole heads of 12 [+] 24 rows"),
    ({"qk_nope_head_dim": 16, "v_head_dim": 12}, "attn_q_b.weight has 80 rows, not whole heads of 24"),
    ({"first_k_dense_replace": 0}, "layer 0"),
    ({"kv_lora_rank": None}, "kv_lora_rank"),
    ({"qk_rope_head_dim": 7}, "rope.dimension_count"),
])  # fmt: skip
def test_sizes_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(FormatError, match=named):
        model_spec(open_checkpoint(changed(LARGE, tmp_path, **changes)))


def test_sizes_that_the_kernels_do_not_take(tmp_path: Path) -> None:
    mixer = mixer_of(LARGE)
    for name, value, expected in (("kv_rank", 40, 32), ("value_dim", 24, 16), ("query_rank", -1, 0)):
        with pytest.raises(ArgumentError, match=f"{name}.*{value}.*{expected}"):
            replace(mixer, **{name: value})
    with pytest.raises(ArgumentError, match=r"rope.rotary.*12.*a multiple of 8"):
        replace(mixer, rope=replace(mixer.rope, rotary=12))
