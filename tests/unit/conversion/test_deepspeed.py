"""What is read from training states of DeepSpeed, and what is refused by name."""

from __future__ import annotations

import argparse
import contextlib
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_files import permuted, save, write_zip

from colibri.conversion.convert import Options, convert
from colibri.conversion.deepspeed import DENSE, deepspeed_folder, open_deepspeed
from colibri.conversion.source import open_source
from colibri.errors import ArgumentError, ColibriError, FileError, FormatError, UnsupportedError
from colibri.models.registry import open_checkpoint

GOLDEN = Path(__file__).parents[2] / "golden"
HIDDEN, WIDTH, ROWS, HEADS = 16, 12, 16, 2
OPTIONS: dict[str, Any] = {
    "num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "ffn_hidden_size": WIDTH,
    "max_position_embeddings": 32, "padded_vocab_size": ROWS, "num_experts": [2], "topk": 1, "bias_gelu_fusion": True,
    "zero_stage": 1, "kv_channels": None,
}  # fmt: skip


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def write(folder: Path, options: dict[str, Any] | None = None, **layer: Any) -> Path:
    """A state of one layer; `layer` replaces its tensors, None removes one."""
    folder.mkdir(exist_ok=True)
    parts = {
        "input_layernorm.weight": numbers(HIDDEN), "input_layernorm.bias": numbers(HIDDEN),
        "post_attention_layernorm.weight": numbers(HIDDEN), "post_attention_layernorm.bias": numbers(HIDDEN),
        "attention.query_key_value.weight": numbers(3 * HIDDEN, HIDDEN),
        "attention.query_key_value.bias": numbers(3 * HIDDEN),
        "attention.dense.weight": numbers(HIDDEN, HIDDEN), "attention.dense.bias": numbers(HIDDEN),
        "mlp.deepspeed_moe.gate.wg.weight": numbers(2, HIDDEN),
    } | layer  # fmt: skip
    encoder = {f"layers.0.{name}": value for name, value in parts.items() if value is not None}
    encoder |= {"final_layernorm.weight": numbers(HIDDEN), "final_layernorm.bias": numbers(HIDDEN)}
    sizes = {"word_embeddings": ROWS, "position_embeddings": 32}
    embedding = {name: {"weight": numbers(rows, HIDDEN)} for name, rows in sizes.items()}
    module = {"language_model": {"embedding": embedding, "transformer": encoder}}
    save(folder / DENSE, {"module": module, "args": argparse.Namespace(**(OPTIONS | (options or {})))})
    for expert in range(2):
        name = f"language_model.encoder.layers.0.mlp.deepspeed_moe.experts.deepspeed_experts.{expert}."
        shapes = {"dense_h_to_4h": (WIDTH, HIDDEN), "dense_4h_to_h": (HIDDEN, WIDTH)}
        save(
            folder / f"layer_0_expert_{expert}_mp_rank_00_model_states.pt",
            {f"{name}{part}.{kind}": numbers(*shape[: 2 if kind == "weight" else 1])
             for part, shape in shapes.items() for kind in ("weight", "bias")},
        )  # fmt: skip
    return folder


def test_the_names_become_ggufs(tmp_path: Path) -> None:
    checkpoint = open_source(write(tmp_path / "old"))
    assert checkpoint.metadata.text("deepspeedmoe.feed_forward_activation") == "gelu_tanh"
    assert checkpoint.tensors["blk.0.ffn_up.1.bias"].shape == (WIDTH,)
    assert checkpoint.tensors["blk.0.attn_q.weight"].shape == (HEADS, 8, HIDDEN)
    assert checkpoint.tensors["blk.0.attn_k.weight"].expert(1).offset == (
        checkpoint.tensors["blk.0.attn_q.weight"].offset + 16 * 8 * HIDDEN
    )


def test_the_folder_that_latest_names(tmp_path: Path) -> None:
    write(tmp_path / "step")
    assert deepspeed_folder(tmp_path) is None
    (tmp_path / "latest").write_text("step\n")
    assert deepspeed_folder(tmp_path) == tmp_path / "step"
    with pytest.raises(FileError, match="colibri convert"):
        open_checkpoint(tmp_path / "step")
    (tmp_path / "step" / "tokenizer.json").write_text("{}")
    for file in (tmp_path / "latest", tmp_path / "step" / "tokenizer.json", tmp_path / "step" / DENSE):
        with pytest.raises(ArgumentError, match="the model is read from this file"):
            convert(open_source(tmp_path), file, Options("f32", replace=True))


REFUSED: list[tuple[dict[str, Any], type, str]] = [
    ({"tensor_model_parallel_size": 2}, UnsupportedError, "--tensor-model-parallel-size is 2"),
    ({"apply_residual_connection_post_layernorm": True}, UnsupportedError, "post-layernorm"),
    ({"squared_relu": True}, UnsupportedError, "--squared-relu"),
    ({"zero_stage": 3}, UnsupportedError, "--zero-stage is 3"),
    ({"num_experts": [2, 4]}, UnsupportedError, "pyramid"),
    ({"num_experts": 2}, FormatError, "num_experts"),
    ({"num_experts": [3]}, FormatError, "ffn_gate_inp.weight has shape"),
    ({"hidden_size": None}, FormatError, "hidden_size"),
    ({"num_attention_heads": 3}, FormatError, "attn_qkv.bias has 48 rows"),
    ({"use_rotary_position_embeddings": True}, FormatError, "position_embd.weight is there"),
    ({"untie_embeddings_and_output_weights": True}, FormatError, "output.weight is missing"),
    ({"num_attention_heads": 4, "num_key_value_heads": 2, "kv_channels": 6, "ds_sequence_parallel_fpdt": False},
     UnsupportedError, "num-key-value-heads"),
    ({"swiglu": True}, FormatError, "has shape"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED)
def test_options_that_are_not_run_are_named(tmp_path: Path, options: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        open_source(write(tmp_path / "s", options))


def test_tensors_that_are_not_known_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="inter_attention"):
        open_source(write(tmp_path / "s", **{"inter_attention.dense.weight": numbers(HIDDEN, HIDDEN)}))
    with pytest.raises(FormatError, match="attn_norm"):
        open_source(write(tmp_path / "s", **{"input_layernorm.weight": None}))


def test_files_of_other_ranks_and_missing_experts(tmp_path: Path) -> None:
    folder = write(tmp_path / "s")
    (folder / "layer_0_expert_1_mp_rank_00_model_states.pt").rename(folder / "mp_rank_01_model_states.pt")
    with pytest.raises(UnsupportedError, match="mp_rank_01"):
        open_source(folder)
    (folder / "mp_rank_01_model_states.pt").unlink()
    with pytest.raises(FormatError, match=r"ffn_up\.1"):
        open_source(folder)


class Call:
    """A pickle of this calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_nothing_of_a_state_is_called(tmp_path: Path) -> None:
    """Objects of the trainer's libraries become stand-ins, everything else is refused."""
    mark = tmp_path / "mark"
    state = {"module": {}, "args": argparse.Namespace(**OPTIONS), "rng": Call(np.save, str(mark), 1)}
    write_zip(tmp_path / DENSE, pickle.dumps(state, 2), [])
    with pytest.raises(FormatError, match="missing"):
        open_deepspeed(tmp_path, "x")
    write_zip(tmp_path / DENSE, pickle.dumps(state | {"rng": Call(eval, f"open({str(mark)!r}, 'w')")}, 2), [])
    with pytest.raises(UnsupportedError, match="eval"):
        open_deepspeed(tmp_path, "x")
    write_zip(tmp_path / DENSE, pickle.dumps({"module": {}}, 2), [])
    with pytest.raises(UnsupportedError, match="args"):
        open_deepspeed(tmp_path, "x")
    assert not list(tmp_path.glob("mark*"))


def test_mutations_give_typed_errors_only(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "deepspeed-residual" / "global_step7", tmp_path / "s")
    whole = (tmp_path / "s" / DENSE).read_bytes()
    random = np.random.default_rng(3)
    start = whole.index(b"\x80\x02")
    for _ in range(60):
        data = bytearray(whole)
        for at in random.integers(start, start + 6000, 3):
            data[at] = random.integers(256)
        (tmp_path / "s" / DENSE).write_bytes(data)
        with contextlib.suppress(ColibriError):
            open_source(tmp_path / "s")


def test_tensors_that_are_not_contiguous(tmp_path: Path) -> None:
    """Parts of rows are taken from transposed matrices and from vectors with gaps, too."""
    shapes = {
        "attention.query_key_value.weight": (3 * HIDDEN, HIDDEN), "attention.query_key_value.bias": (3 * HIDDEN,),
        "attention.dense.weight": (HIDDEN, HIDDEN), "input_layernorm.bias": (HIDDEN,),
    }  # fmt: skip
    layer = {name: permuted(numbers(*shape), (1, 0)[2 - len(shape) :], step=2) for name, shape in shapes.items()}
    for name, changes in (("plain", {}), ("strided", layer)):
        source = open_source(write(tmp_path / name, **changes))
        convert(source, tmp_path / f"{name}.gguf", Options("f32", name="same"))
    assert source.tensors["blk.0.attn_q.bias"].strides == (48, 2)
    assert (tmp_path / "plain.gguf").read_bytes() == (tmp_path / "strided.gguf").read_bytes()


def test_an_option_that_would_take_for_ever_to_show(tmp_path: Path) -> None:
    """Sixty lists of which each holds the next one twice."""
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    for name in ("num_layers", "num_experts", "zero_stage", "squared_relu"):
        with pytest.raises(ColibriError, match="a list"):
            open_source(write(tmp_path / name, {name: value}))
