"""config.json and tensor names in GGUF's words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import (
    CONFIGS,
    EXPERTS,
    HIDDEN,
    LAYERS,
    WIDTH,
    directory_config,
    directory_tensors,
    write_directory,
    write_safetensors,
)

from colibri.errors import FormatError, UnsupportedError
from colibri.models.registry import open_checkpoint
from colibri.weights.tensor_info import TensorInfo

FAMILIES = sorted(CONFIGS)


def content(info: TensorInfo) -> np.ndarray[Any, Any]:
    with info.file.open("rb") as file:
        file.seek(info.offset)
        return np.frombuffer(file.read(info.nbytes), np.float32).reshape(info.shape)


def metadata(tmp_path: Path, family: str, **changes: Any) -> dict[str, Any]:
    checkpoint = open_checkpoint(write_directory(tmp_path / "m", family, **changes))
    return {key.removeprefix(checkpoint.architecture + "."): value for key, value in checkpoint.metadata.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_common_metadata(tmp_path: Path, family: str) -> None:
    keys = metadata(tmp_path, family)
    expected = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "attention.head_count": 4, "attention.head_count_kv": 4,
        "attention.key_length": 16, "expert_count": EXPERTS, "expert_used_count": 2,
        "expert_feed_forward_length": WIDTH, "rope.freq_base": 5000.0, "rope.dimension_count": 16,
        "context_length": 128, "attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    }  # fmt: skip
    assert expected.items() <= keys.items()
    assert "rope.scaling.type" not in keys


def test_what_families_differ_in(tmp_path: Path) -> None:
    mixtral = metadata(tmp_path / "a", "mixtral", sliding_window=64)
    assert (mixtral["general.architecture"], mixtral["expert_weights_norm"]) == ("llama", True)
    assert mixtral["attention.sliding_window"] == 64
    qwen = metadata(tmp_path / "b", "qwen3_moe")
    assert (qwen["general.architecture"], qwen["expert_weights_norm"]) == ("qwen3moe", True)
    assert qwen["feed_forward_length"] == 2 * WIDTH
    olmoe = metadata(tmp_path / "c", "olmoe")
    assert (olmoe["expert_weights_norm"], olmoe["attention.clamp_kqv"]) == (False, 8.0)
    assert "attention.clamp_kqv" not in metadata(tmp_path / "d", "olmoe", clip_qkv=None)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_has_its_bytes(tmp_path: Path, family: str) -> None:
    checkpoint = open_checkpoint(write_directory(tmp_path, family))
    given = directory_tensors(family)
    assert len(checkpoint.tensors) == len(given)
    assert {content(info).tobytes() for info in checkpoint.tensors.values()} == {data for _, _, data in given.values()}
    query = given["model.layers.1.self_attn.q_proj.weight"][2]
    assert content(checkpoint.tensors["blk.1.attn_q.weight"]).tobytes() == query
    assert checkpoint.tensors["blk.1.attn_q.weight"].order is None
    module, gate, up, down = "mlp.experts", "gate_proj", "up_proj", "down_proj"
    if family == "mixtral":
        module, gate, up, down = "block_sparse_moe.experts", "w1", "w3", "w2"
    for info, theirs in zip(checkpoint.experts(1)[3].parts, (gate, up, down), strict=True):
        assert content(info).tobytes() == given[f"model.layers.1.{module}.3.{theirs}.weight"][2]


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_experts_are_views(tmp_path: Path, family: str) -> None:
    checkpoint = open_checkpoint(write_directory(tmp_path, family, fused=True))
    given = directory_tensors(family, fused=True)
    merged = np.frombuffer(given["model.layers.1.mlp.experts.gate_up_proj"][2], np.float32)
    merged = merged.reshape(EXPERTS, 2 * WIDTH, HIDDEN)
    for expert, rows in zip(checkpoint.experts(1), merged, strict=True):
        gate, up, down = expert.parts
        assert np.array_equal(content(gate), rows[:WIDTH])
        assert np.array_equal(content(up), rows[WIDTH:])
        assert down.shape == (HIDDEN, WIDTH)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "default"}, {}),
        ({"type": "linear", "factor": 4}, {"type": "linear", "factor": 4.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_beta_fast": 32.0,
             "yarn_beta_slow": 1.0},
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 16, "beta_slow": None},
            {"type": "yarn", "factor": 4.0, "original_context_length": 128, "yarn_beta_fast": 16.0,
             "yarn_beta_slow": 1.0, "yarn_attn_factor": 1.5},
        ),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 64},
            {"type": "llama3", "factor": 8.0, "original_context_length": 64, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0},
        ),
        ({"type": "dynamic", "factor": 2.0}, {"type": "dynamic", "factor": 2.0, "original_context_length": 128}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_rope_scaling(tmp_path: Path, field: str, rope: dict[str, Any], expected: dict[str, Any]) -> None:
    keys = metadata(tmp_path, "qwen3_moe", **{field: rope})
    prefix = "rope.scaling."
    assert {key.removeprefix(prefix): value for key, value in keys.items() if key.startswith(prefix)} == expected


@pytest.mark.parametrize(("rope", "context"), [
    ({"rope_type": "default"}, 128),
    ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, 400),
    ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 128),  # raised by hand: the file's number
    ({"type": "yarn", "factor": 2.5}, 320),
    ({"type": "linear", "factor": 4}, 512),
    ({"type": "dynamic", "factor": 2}, 256),
    ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 64}, 128),
])  # fmt: skip
def test_the_context_is_as_long_as_scaling_makes_it(tmp_path: Path, rope: dict[str, Any], context: int) -> None:
    assert metadata(tmp_path, "qwen3_moe", rope_scaling=rope)["context_length"] == context


def test_rope_parameters_hold_theta(tmp_path: Path) -> None:
    keys = metadata(tmp_path, "olmoe", rope_parameters={"rope_type": "default", "rope_theta": 123.0})
    assert (keys["rope.freq_base"], keys["rope.dimension_count"]) == (123.0, 16)


def test_contradictions_are_settled_as_transformers_does(tmp_path: Path) -> None:
    """rope_scaling wins over rope_parameters, the original length beside them over the one in them."""
    both = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}
    assert metadata(tmp_path / "a", "qwen3_moe", **both)["rope.scaling.type"] == "linear"
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    keys = metadata(tmp_path / "b", "qwen3_moe", rope_parameters=yarn, original_max_position_embeddings=64)
    assert keys["rope.scaling.original_context_length"] == 64


def test_yarn_mscale(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5}
    keys = metadata(tmp_path, "qwen3_moe", rope_parameters=rope)
    expected = (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)
    assert keys["rope.scaling.yarn_attn_factor"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"model_type": "llama", "num_experts": None}, UnsupportedError, "not a Mixture-of-Experts"),
        ({"model_type": "jamba"}, UnsupportedError, "model_type 'jamba'"),
        ({"model_type": 3}, FormatError, "model_type"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act is 'gelu'"),
        ({"quantization_config": {"quant_method": "eetq"}}, UnsupportedError, "quantization_config 'eetq'"),
        ({"rope_scaling": {"type": "longrope", "factor": 4}}, UnsupportedError, "longrope"),
        ({"rope_scaling": {"type": "linear"}}, FormatError, "factor is missing"),
        ({"rope_scaling": {"type": ["linear"]}}, FormatError, "type is list"),
        ({"rope_scaling": "linear"}, FormatError, "rope_scaling is"),
        ({"rope_parameters": "linear"}, FormatError, "rope_parameters is"),
        ({"rope_theta": "10000"}, FormatError, "rope_theta"),
        ({"rope_theta": 10**400}, FormatError, "rope_theta"),
        ({"rms_norm_eps": float("nan")}, FormatError, "rms_norm_eps"),
        ({"hidden_size": None}, FormatError, "hidden_size is missing"),
        ({"hidden_size": "64"}, FormatError, "hidden_size"),
        ({"hidden_size": True}, FormatError, "hidden_size"),
        ({"hidden_size": 128}, FormatError, "token_embd.weight has shape"),
        ({"hidden_size": 65}, FormatError, "hidden_size 65"),
        ({"num_attention_heads": 0}, FormatError, "num_attention_heads"),
        ({"num_experts": 5}, FormatError, "ffn_gate_inp.weight has shape"),
        ({"num_experts": 0}, FormatError, "num_experts is 0"),
        ({"num_experts_per_tok": 5}, FormatError, r"num_experts_per_tok is 5, 1 to 4 is expected"),
        ({"num_hidden_layers": 3}, FormatError, "layer 2"),
        ({"num_hidden_layers": 0}, FormatError, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 1 << 31}, FormatError, "num_hidden_layers"),
        ({"tie_word_embeddings": "no"}, FormatError, "tie_word_embeddings"),
        ({"attention_bias": True}, FormatError, "no q_proj.bias"),
        ({"partial_rotary_factor": 0.5}, UnsupportedError, "partial_rotary_factor is 0.5"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(tmp_path: Path, changes: dict[str, Any], kind: type, message: str) -> None:
    write_directory(tmp_path, "olmoe", **changes)
    with pytest.raises(kind, match=message):
        open_checkpoint(tmp_path)


def test_dense_layers_follow_the_config(tmp_path: Path) -> None:
    write_directory(tmp_path, "qwen3_moe", mlp_only_layers=[0])
    with pytest.raises(FormatError, match="layer 0 a dense layer"):
        open_checkpoint(tmp_path)
    tensors = {name: value for name, value in directory_tensors("qwen3_moe").items() if "layers.0.mlp" not in name}
    for name, shape in (("gate", (HIDDEN, HIDDEN)), ("up", (HIDDEN, HIDDEN)), ("down", (HIDDEN, HIDDEN))):
        tensors[f"model.layers.0.mlp.{name}_proj.weight"] = ("F32", shape, bytes(4 * math.prod(shape)))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    checkpoint = open_checkpoint(tmp_path)
    assert [checkpoint.is_moe(layer) for layer in range(2)] == [False, True]
    assert checkpoint.tensors["blk.0.ffn_gate.weight"].shape == (HIDDEN, HIDDEN)
    (tmp_path / "config.json").write_text(json.dumps(directory_config("qwen3_moe", decoder_sparse_step=2)))
    assert open_checkpoint(tmp_path).is_moe(1)
    (tmp_path / "config.json").write_text(json.dumps(directory_config("qwen3_moe")))
    with pytest.raises(FormatError, match="layer 0 a layer with experts"):
        open_checkpoint(tmp_path)


def test_tied_embeddings(tmp_path: Path) -> None:
    write_directory(tmp_path, "olmoe", tie_word_embeddings=True)
    assert "output.weight" in open_checkpoint(tmp_path).tensors  # as transformers, which does not tie what differs
    tensors = directory_tensors("olmoe")
    del tensors["lm_head.weight"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert "output.weight" not in open_checkpoint(tmp_path).tensors
    (tmp_path / "config.json").write_text(json.dumps(directory_config("olmoe")))
    with pytest.raises(FormatError, match=r"lm_head\.weight"):
        open_checkpoint(tmp_path)


def test_unknown_tensors_are_refused_and_old_buffers_ignored(tmp_path: Path) -> None:
    write_directory(tmp_path, "olmoe")
    tensors = directory_tensors("olmoe") | {"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (8,), bytes(32))}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    open_checkpoint(tmp_path)
    write_safetensors(
        tmp_path / "model.safetensors", tensors | {"model.layers.0.mlp.extra.weight": ("F32", (1,), bytes(4))}
    )
    with pytest.raises(UnsupportedError, match=r"layers\.0\.mlp\.extra\.weight is not known for olmoe models; save"):
        open_checkpoint(tmp_path)
    write_directory(tmp_path, "mixtral")
    tensors = directory_tensors("mixtral") | {"model.layers.0.extra": ("F32", (1,), bytes(4))}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(UnsupportedError, match="for mixtral models"):  # llama only in GGUF files
        open_checkpoint(tmp_path)


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    write_directory(tmp_path, "olmoe")
    tensors = directory_tensors("olmoe") | {"model.norm.weight": ("F8_E4M3", (HIDDEN,), bytes(HIDDEN))}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(UnsupportedError, match=r"model\.norm\.weight is F8_E4M3"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', '{"a": ' + "[" * 99_999])
def test_config_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    write_directory(tmp_path, "olmoe")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FormatError, match=r"config\.json"):
        open_checkpoint(tmp_path)


def test_biases_that_the_config_denies(tmp_path: Path) -> None:
    tensors = directory_tensors("qwen3_moe")
    bias = next(name for name in tensors if name.endswith("layers.0.self_attn.q_proj.weight")).replace("weight", "bias")
    write_directory(tmp_path, "qwen3_moe", attention_bias=False)
    write_safetensors(tmp_path / "model.safetensors", tensors | {bias: ("F32", (64,), np.zeros(64, "<f4").tobytes())})
    with pytest.raises(FormatError, match=r"attention_bias is false, but layer 0 has a q_proj\.bias"):
        open_checkpoint(tmp_path)


def test_clipping_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="clip_qkv is 0"):
        open_checkpoint(write_directory(tmp_path, "olmoe", clip_qkv=0))
