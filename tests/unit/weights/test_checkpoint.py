"""One view of GGUF files: what a model must have is there, and what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import (
    EXPERTS,
    HEAD_DIM,
    HIDDEN,
    LAYERS,
    VOCABULARY,
    WIDTH,
    model_metadata,
    model_tensors,
    write_directory,
    write_model,
)

import colibri
from colibri.errors import FileError, FormatError, UnsupportedError
from colibri.models.registry import open_checkpoint
from colibri.weights.gguf_writer import TensorSpec, Value
from colibri.weights.metadata import Metadata
from colibri.weights.row_order import adjacent_pairs


def test_a_file(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert (checkpoint.format, checkpoint.architecture, checkpoint.name) == ("gguf", "olmoe", "m")
    assert checkpoint.layers == LAYERS
    assert checkpoint.tokenizer_source is checkpoint.metadata
    assert checkpoint.require("output.weight", (VOCABULARY, -1)).type == "F32"
    assert checkpoint.optional("output.bias", (VOCABULARY,)) is None
    with pytest.raises(FormatError, match=r"output\.bias"):
        checkpoint.require("output.bias", (VOCABULARY,))
    with pytest.raises(FormatError, match=r"output\.weight has shape"):
        checkpoint.optional("output.weight", (VOCABULARY, 1))


def test_a_split_and_a_directory(tmp_path: Path) -> None:
    files = write_model(tmp_path / "m.gguf", split_bytes=60_000)
    assert open_checkpoint(files[-1]).files == tuple(files)
    checkpoint = open_checkpoint(write_directory(tmp_path / "d", "olmoe"))
    assert (checkpoint.format, checkpoint.name) == ("huggingface", "d")
    assert checkpoint.tokenizer_source == tmp_path / "d" / "tokenizer.json"


def test_experts_merged_and_one_by_one(tmp_path: Path) -> None:
    for per_expert in (False, True):
        write_model(tmp_path / "m.gguf", specs=model_tensors(per_expert))
        experts = open_checkpoint(tmp_path / "m.gguf").experts(1)
        assert len(experts) == EXPERTS
        shapes = [(name, info.shape) for expert in experts for name, info in expert.by_name.items()]
        assert shapes == [("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))] * EXPERTS
        offsets = [expert.by_name["up"].offset for expert in experts]
        assert np.diff(offsets).tolist() == [WIDTH * HIDDEN * 4] * (EXPERTS - 1)


def test_gate_and_up_in_one_tensor(tmp_path: Path) -> None:
    specs = [spec for spec in model_tensors() if "ffn_up_exps" not in spec.name]
    specs = [
        TensorSpec(s.name.replace("gate_exps", "gate_up_exps"), s.type, (EXPERTS, 2 * WIDTH, HIDDEN))
        if "ffn_gate_exps" in s.name
        else s
        for s in specs
    ]
    write_model(tmp_path / "m.gguf", specs=specs)
    first, second = (expert.by_name for expert in open_checkpoint(tmp_path / "m.gguf").experts(0)[:2])
    assert first["up"].offset - first["gate"].offset == WIDTH * HIDDEN * 4
    assert second["gate"].offset - first["gate"].offset == 2 * WIDTH * HIDDEN * 4


def test_row_order_of_llama_files(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", model_metadata("llama"))
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors
    for name, info in tensors.items():
        permuted = name.endswith(("attn_q.weight", "attn_k.weight"))
        assert info.order == (adjacent_pairs(HEAD_DIM) if permuted else None)
    write_model(tmp_path / "n.gguf")
    assert {info.order for info in open_checkpoint(tmp_path / "n.gguf").tensors.values()} == {None}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"expert_count": None}, UnsupportedError, "expert_count is missing, so this is a dense model"),
        ({"expert_count": 0}, FormatError, "expert_count is 0"),
        ({"expert_count": "4"}, FormatError, "expert_count is str"),
        ({"expert_count": 5}, FormatError, "ffn_gate_inp.weight has shape"),
        ({"expert_used_count": 0}, FormatError, "expert_used_count is 0"),
        ({"expert_used_count": EXPERTS + 1}, FormatError, "expert_used_count is 5"),
        ({"expert_used_count": None}, FormatError, "expert_used_count is missing"),
        ({"block_count": None}, FormatError, "block_count is missing"),
        ({"block_count": 0}, FormatError, "block_count is 0"),
        ({"block_count": 513}, FormatError, "blk.2.attn_norm.weight"),
        ({"block_count": 1 << 31}, FormatError, "block_count is 2147483648"),
        ({"block_count": Value("int32", -1)}, FormatError, "block_count is -1"),
        ({"block_count": 2.0}, FormatError, "block_count is float"),
        ({"block_count": [2, 2]}, FormatError, "block_count is an array of int32"),
        ({"embedding_length": 63}, FormatError, "token_embd.weight has shape"),
        ({"vocab_size": VOCABULARY + 1}, FormatError, "token_embd.weight has shape"),
        ({"vocab_size": Value("int32", -1)}, FormatError, "vocab_size is -1"),
        ({"feed_forward_length": WIDTH + 1}, FormatError, "blk.0.ffn_gate_exps.weight has shape"),
        ({"feed_forward_length": None}, FormatError, "feed_forward_length"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, changes: dict[str, Any], kind: type, message: str) -> None:
    write_model(tmp_path / "m.gguf", model_metadata(**changes))
    with pytest.raises(kind, match=message) as caught:
        open_checkpoint(tmp_path / "m.gguf")
    assert str(tmp_path / "m.gguf") in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["token_embd.weight", "output_norm.weight", "blk.1.attn_norm.weight", "blk.1.ffn_down_exps.weight"],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    write_model(tmp_path / "m.gguf", specs=[spec for spec in model_tensors() if spec.name != name])
    with pytest.raises(FormatError, match=name):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    specs = [spec for spec in model_tensors(per_expert=True) if spec.name != "blk.1.ffn_up.3.weight"]
    write_model(tmp_path / "m.gguf", specs=specs)
    with pytest.raises(FormatError, match=r"blk\.1\.ffn_up\.3\.weight"):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_known_type_that_is_not_run_is_named(tmp_path: Path) -> None:
    specs = [replace(spec, type="F64") if spec.name == "token_embd.weight" else spec for spec in model_tensors()]
    write_model(tmp_path / "m.gguf", specs=specs)
    with pytest.raises(UnsupportedError, match=r"token_embd\.weight is of type F64"):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("architecture", "changes", "kind", "message"),
    [
        ("llama", {"rope.dimension_count": 8}, UnsupportedError, "llama.rope.dimension_count is 8"),
        ("llama", {"attention.key_length": 15}, UnsupportedError, "rope"),
        ("llama", {"attention.key_length": 48}, FormatError, "not whole heads of 48"),
        ("llama", {"attention.head_count": 0}, FormatError, "head_count is 0"),
    ],
)
def test_heads_of_llama_files(
    tmp_path: Path, architecture: str, changes: dict[str, Any], kind: type, message: str
) -> None:
    write_model(tmp_path / "m.gguf", model_metadata(architecture, **changes))
    with pytest.raises(kind, match=message):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ({"general.architecture": 3}, FormatError, "general.architecture is int"),
        ({"general.type": "mmproj"}, UnsupportedError, "sees or hears"),
        ({"general.name": ["a"]}, FormatError, "general.name"),
    ],
)
def test_wrong_general_keys(tmp_path: Path, keys: dict[str, Any], kind: type, message: str) -> None:
    write_model(tmp_path / "m.gguf", model_metadata() | keys)
    with pytest.raises(kind, match=message):
        open_checkpoint(tmp_path / "m.gguf")


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", "a\0b", "x" * 5000):
        with pytest.raises(FileError):
            open_checkpoint(path)
    write_model(tmp_path / "m.gguf")
    with pytest.raises(FileError, match=r"no config\.json.*m\.gguf"):
        open_checkpoint(tmp_path)


def test_fingerprint(tmp_path: Path) -> None:
    for name in ("m.gguf", "other/m.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_model(tmp_path / name)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.fingerprint() == open_checkpoint(tmp_path / "other/m.gguf").fingerprint()
    before = checkpoint.fingerprint()
    with (tmp_path / "m.gguf").open("r+b") as file:
        file.seek(checkpoint.tensors["blk.0.attn_q.weight"].offset)
        file.write(b"\1\2\3\4")
    assert open_checkpoint(tmp_path / "m.gguf").fingerprint() != before
    write_model(tmp_path / "m.gguf", model_metadata() | {"general.name": "x"})
    assert open_checkpoint(tmp_path / "m.gguf").fingerprint() != before


def test_typed_metadata_names_the_key() -> None:
    metadata = Metadata(
        Path("x.gguf"),
        {"scores": np.zeros(3, np.uint8), "tokens": [1], "flag": 1, "text": 1, "number": float("inf"), "big": 10**400},
    )
    wrong = [
        (metadata.floats, "scores"), (metadata.strings, "tokens"), (metadata.strings, "text"), (metadata.flag, "flag"),
        (metadata.text, "text"), (metadata.number, "number"), (metadata.number, "big"), (metadata.integers, "text"),
        (metadata.integer, "scores"), (metadata.floats, "absent"),
    ]  # fmt: skip
    for getter, key in wrong:
        with pytest.raises(FormatError, match=rf"x\.gguf: .*{key}"):
            getter(key)
    assert metadata.integers("scores").tolist() == [0, 0, 0]
    assert metadata.integer("absent", 5) == 5


def test_tensors_that_no_layer_takes_are_named(tmp_path: Path) -> None:
    extra = TensorSpec("blk.0.indexer.weight", "F32", (HIDDEN, HIDDEN))
    write_model(tmp_path / "m.gguf", model_metadata("olmoe"), [*model_tensors(), extra])
    with pytest.raises(UnsupportedError, match=r"blk\.0\.indexer\.weight are not known for olmoe models"):
        colibri.load(tmp_path / "m.gguf")


def test_layers_that_predict_more_than_one_token_are_left_out_with_a_note(tmp_path: Path) -> None:
    metadata = model_metadata("olmoe")
    blocks = metadata["olmoe.block_count"]
    extra = TensorSpec(f"blk.{blocks}.nextn.eh_proj.weight", "F32", (HIDDEN, HIDDEN))
    more = {"olmoe.block_count": blocks + 1, "olmoe.nextn_predict_layers": 1}
    write_model(tmp_path / "m.gguf", metadata | more, [*model_tensors(), extra])
    with colibri.load(tmp_path / "m.gguf") as model:
        assert len(model.spec.layers) == blocks
        assert any("predicts more than one token (MTP) is not used" in note for note in model.notes)
