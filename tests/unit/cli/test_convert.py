"""`colibri convert`, `verify` and `perplexity` from end to end on a golden checkpoint with a small tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

import colibri.cli.perplexity as perplexity_command
from colibri.cli import main
from colibri.conversion.convert import Options, convert as write
from colibri.conversion.gguf_writer import GGUFWriter
from colibri.errors import ColibriError
from colibri.models.registry import open_checkpoint
from colibri.observe.perplexity import Perplexity
from colibri.text import load_tokenizer
from colibri.text.embedded_json import JSON
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import TensorSpec, Value
from colibri.weights.metadata import Metadata

pytestmark = pytest.mark.filterwarnings("ignore:.*tokenizer.ggml.pre")  # the way of splitting is not the family's
GOLDEN = Path(__file__).parents[2] / "golden" / "qwen3_moe-gqa-f32"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory with a tokenizer of single bytes."""
    directory = tmp_path_factory.mktemp("source")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, directory / name)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: token for token, piece in enumerate([*alphabet, "th"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return directory


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted") / "m.gguf"
    assert main(["convert", str(source), str(path), "--quantize", "q8_0", "--name", "Tiny"]) == 0
    return path


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def ggml_keys(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer as files have it that hold no tokenizer.json."""
    return {key: value for key, value in metadata.items() if key.startswith("tokenizer.") and key != JSON}


def test_convert_says_what_it_wrote(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(source), str(tmp_path / "m.gguf"), "-q", "q4_0", "--threads", "1"]) == 0
    error = capsys.readouterr().err
    assert "read back and verified" in error
    assert "Q4_0" in error
    assert main(["convert", str(source), str(tmp_path / "m.gguf")]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["convert", str(source), str(tmp_path / "m.gguf"), "--force"]) == 0


def test_a_converted_file_runs_without_the_directory(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "-m", str(converted), "-p", "the", "--max-tokens", "3", "--temperature", "0", "--json"]
    assert main(arguments) == 0
    result = last_json(capsys)
    assert result["model"]["name"] == "Tiny"
    assert len(result["prompt_tokens"]) == 2
    assert len(result["tokens"]) == 3


def test_split_and_one_expert(source: Path, tmp_path: Path) -> None:
    assert main(["convert", str(source), str(tmp_path / "s.gguf"), "-q", "f32", "--split", "200K"]) == 0
    files = sorted(tmp_path.glob("s-*.gguf"))
    assert len(files) > 1
    assert open_checkpoint(files[0]).name == open_checkpoint(source).name
    assert main(["convert", str(source), str(tmp_path / "e.gguf"), "-q", "q8_0", "--only-expert", "1"]) == 0
    assert main(["convert", str(source), str(tmp_path / "x.gguf"), "-q", "q8_0", "--only-expert", "999"]) == 1


def test_another_split_replaces_the_first_whole(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def convert(source: Path, *options: str) -> int:
        return main(["convert", str(source), str(tmp_path / "s.gguf"), "-q", "f32", *options])

    def files() -> list[str]:
        return sorted(file.name for file in tmp_path.iterdir())

    assert convert(source, "--split", "200K") == 0
    first = files()
    assert convert(source, "--split", "100K") == 1
    assert convert(source) == 1
    assert first[0] in capsys.readouterr().err
    assert files() == first
    assert convert(source, "--split", "100K", "--force") == 0
    second = files()
    assert not set(first) & set(second)
    assert convert(tmp_path / second[0]) == 0  # the parts are the source: they stay
    assert files() == [*second, "s.gguf"]
    assert convert(source, "--force") == 0
    assert files() == ["s.gguf"]


def test_verify_tells_its_doubts(converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = open_checkpoint(converted)
    tokenizer = ggml_keys(checkpoint.metadata)
    write(checkpoint, tmp_path / "m.gguf", Options("f32", tokenizer | {"tokenizer.ggml.pre": "of-tomorrow"}))
    assert main(["verify", "-m", str(tmp_path / "m.gguf"), "--json"]) == 0
    assert "of-tomorrow" in last_json(capsys)["doubts"][0]
    assert main(["verify", "-m", str(tmp_path / "m.gguf")]) == 0
    assert "of-tomorrow" in capsys.readouterr().out


def test_the_pre_tokenizer_is_a_known_one_and_used(
    source: Path, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (source, converted, tmp_path / "none"):  # before any work
        assert main(["convert", str(path), str(tmp_path / "m.gguf"), "--pre-tokenizer", "nonsense"]) == 2
        assert "'nonsense' is not one of 'default'" in capsys.readouterr().err
    for path in (source, converted):
        command = ["convert", str(path), str(tmp_path / "m.gguf"), "-q", "q8_0", "--force", "--pre-tokenizer", "tekken"]
        assert main(command) == 0
        assert open_checkpoint(tmp_path / "m.gguf").metadata["tokenizer.ggml.pre"] == "tekken"
        assert main([*command, "--only-expert", "1"]) == 1
        assert "--pre-tokenizer is for" in capsys.readouterr().err


def test_rules_that_llama_cpp_has_no_keys_for_are_kept_and_told(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "lower", tmp_path / "m.gguf"
    shutil.copytree(source, folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.normalizer = normalizers.Lowercase()
    backend.save(str(folder / "tokenizer.json"))
    assert main(["convert", str(folder), str(file), "-q", "q8_0"]) == 0
    assert "llama.cpp's keys cannot say all rules of this tokenizer" in capsys.readouterr().err
    assert load_tokenizer(open_checkpoint(file).metadata).encode("THE") == backend.encode("the").ids
    assert main(["verify", "-m", str(file), "--json"]) == 0
    assert last_json(capsys)["tokenizer"] == []
    again = tmp_path / "again.gguf"
    assert main(["convert", str(file), str(again), "-q", "q4_0"]) == 0
    assert load_tokenizer(open_checkpoint(again).metadata).encode("THE") == backend.encode("the").ids


def test_verify_finds_a_flipped_bit(converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "-m", str(converted), "--json"]) == 0
    whole = last_json(capsys)
    assert whole["damages"] == []
    assert whole["checksums"] == whole["tensors_and_experts"] > 0
    data = bytearray(converted.read_bytes())
    part = open_checkpoint(converted).tensors["blk.0.ffn_down_exps.weight"].expert(1)
    data[part.offset + 10] ^= 1
    (tmp_path / "m.gguf").write_bytes(data)
    assert main(["verify", "-m", str(tmp_path / "m.gguf")]) == 1
    assert "blk.0.ffn_down_exps.weight[1]" in capsys.readouterr().out
    (tmp_path / "m.gguf").write_bytes(data[:-100_000])
    assert main(["verify", "-m", str(tmp_path / "m.gguf")]) == 1
    assert "m.gguf" in capsys.readouterr().err


def test_perplexity(converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text("the cat and the dog, " * 10)
    arguments = ["perplexity", "-m", str(converted), "-f", str(tmp_path / "t.txt"), "--window", "32", "--json"]
    assert main(arguments) == 0
    result = last_json(capsys)
    assert result["tokens"] == result["windows"] * 15
    assert result["perplexity"] > 1
    assert main(["perplexity", "-m", str(converted), "-f", str(tmp_path / "none.txt")]) == 1
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    assert main(["perplexity", "-m", str(converted), "-f", str(tmp_path / "bytes.txt")]) == 1
    assert main(["perplexity", "-m", str(converted), "-f", str(tmp_path / "t.txt")]) == 1
    assert "two windows" in capsys.readouterr().err


def test_perplexity_takes_control_tokens_in_a_text_as_text(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As llama.cpp's tool does."""
    seen: list[int] = []

    def watch(model: Any, ids: list[int], *_: Any) -> Perplexity:
        seen.extend(ids)
        return Perplexity(1.0, 0.0, 1, 1)

    monkeypatch.setattr(perplexity_command, "perplexity", watch)
    (tmp_path / "t.txt").write_text("a<|endoftext|>b")
    assert main(["perplexity", "-m", str(converted), "-f", str(tmp_path / "t.txt")]) == 0
    assert len(seen) == len("a<|endoftext|>b")


def test_a_missing_folder_is_named_before_any_work(
    source: Path, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, text = str(tmp_path / "none" / "m.gguf"), tmp_path / "t.txt"
    text.write_text("the thing " * 40)
    for command in (
        ["convert", str(source), target],
        ["swap", "-m", str(converted), "--expert", "1", "--export", target],
        ["calibrate", "-m", str(converted), "-f", str(text), "-o", target, "--window", "32"],
    ):
        assert main(command) == 1
        assert f"{tmp_path / 'none'}: no such directory; make it first" in capsys.readouterr().err


def test_the_advice_about_a_doubtful_label_helps(source: Path, converted: Path, tmp_path: Path) -> None:
    """A label that was found by the way words are split comes back when the checkpoint is only converted again."""
    checkpoint = open_checkpoint(converted)
    assert load_tokenizer(checkpoint.metadata).notes == ()  # nothing is doubtful where tokenizer.json is in the file
    architecture = {"general.architecture": checkpoint.architecture}
    expected = checkpoint.family.pre_tokenizers
    (note,) = load_tokenizer(Metadata(converted, ggml_keys(checkpoint.metadata) | architecture), expected).notes
    assert "tokenizer.ggml.pre is" in note
    assert "--pre-tokenizer NAME" in note
    assert main(["convert", str(source), str(tmp_path / "m.gguf"), "-q", "q8_0", "--pre-tokenizer", "qwen2"]) == 0
    labelled = ggml_keys(open_checkpoint(tmp_path / "m.gguf").metadata) | architecture
    assert load_tokenizer(Metadata(converted, labelled), expected).notes == ()


@pytest.mark.parametrize(("changes", "found"), [
    ({"head_dim": 15}, "rope.rotary: found 15"),
    ({"num_attention_heads": 2}, "blk.0.attn_q.weight has shape (64, 64), (32, 64) is expected"),
    ({"num_key_value_heads": 3}, "kv_heads: found 3, expected a divisor of heads"),
])  # fmt: skip
def test_a_configuration_that_makes_no_model_is_refused_before_any_work(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], found: str
) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    assert main(["convert", str(folder), str(tmp_path / "m.gguf")]) == 1
    assert found in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["bad"]


@pytest.mark.parametrize(("key", "value", "found"), [
    ("tokenizer.ggml.merges", ["t h", "t nothing"], "without a token 'nothing'"),
    ("tokenizer.ggml.token_type", np.ones(3, np.int32), "token_type"),
    ("tokenizer.ggml.model", "rwkv", "only gemma4, gpt2 and llama tokenizers"),
])  # fmt: skip
def test_a_tokenizer_that_would_not_load_is_refused_before_any_work(
    converted: Path, tmp_path: Path, key: str, value: Any, found: str
) -> None:
    checkpoint = open_checkpoint(converted)
    tokenizer = ggml_keys(checkpoint.metadata)
    with pytest.raises(ColibriError, match=found):
        write(checkpoint, tmp_path / "m.gguf", Options("q8_0", tokenizer | {key: value}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
@pytest.mark.parametrize("linked", [False, True])
def test_no_file_of_the_source_is_replaced(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, linked: bool
) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "folder"
    shutil.copytree(source, blobs)
    (blobs / "chat_template.jinja").write_text("{{ messages[0].content }}")
    if linked:  # as the cache of huggingface_hub has them
        folder.mkdir()
        for file in blobs.iterdir():
            (folder / file.name).symlink_to(file)
    else:
        blobs.rename(folder)
    before = (folder / name).read_bytes()
    assert main(["convert", str(folder), str(folder / name), "-q", "q8_0", "--force"]) == 1
    assert "the model is read from this file" in capsys.readouterr().err
    assert main(["calibrate", "-m", str(folder), "-f", __file__, "-o", str(folder / name), "--force"]) == 1
    assert main(["swap", "-m", str(folder), "-e", "0", "--export", str(folder / name), "--force"]) == 1
    assert (folder / name).read_bytes() == before
    assert (folder / name).is_symlink() == linked
    for _ in range(2):  # what a conversion made may lie there
        assert main(["convert", str(folder), str(folder / "m.gguf"), "-q", "q8_0", "--force"]) == 0


def test_a_part_of_a_split_without_tensors_is_kept(
    converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """llama.cpp's gguf-split can put the metadata alone into the first file; parts lie where another split would."""
    whole = read_gguf(converted)
    metadata = {key: Value(kind, whole.metadata[key]) for key, kind in whole.kinds.items() if "qwen3moe." in key}
    metadata["general.architecture"] = Value("string", "qwen3moe")
    split = {"split.count": Value("uint16", 2), "split.tensors.count": Value("int32", len(whole.tensors))}
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    specs = [TensorSpec(info.name, info.type, info.shape) for info in whole.tensors.values()]
    with GGUFWriter(parts[0], metadata | split | {"split.no": Value("uint16", 0)}, []):
        pass
    with GGUFWriter(parts[1], split | {"split.no": Value("uint16", 1)}, specs) as writer:
        for spec, info in zip(specs, whole.tensors.values(), strict=True):
            writer.write(spec.name, [np.fromfile(info.file, np.uint8, info.nbytes, offset=info.offset)])
    before = [part.read_bytes() for part in parts]
    for source in parts:
        assert main(["convert", str(source), str(tmp_path / "m.gguf"), "-q", "q8_0", "--force"]) == 0
        assert [part.read_bytes() for part in parts] == before
    assert main(["convert", str(parts[1]), str(parts[0]), "-q", "q8_0", "--force"]) == 1
    assert "the model is read from this file" in capsys.readouterr().err


def test_other_files_are_replaced_only_when_told(
    source: Path, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, target = tmp_path / "t.txt", tmp_path / "notes"
    text.write_text("the thing " * 40)
    target.write_text("mine")
    calibrate = ["calibrate", "-m", str(converted), "-f", str(text), "--window", "32", "--windows", "1", "-o"]
    export = ["swap", "-m", str(converted), "-e", "1", "--export"]
    for command in (calibrate, export):
        target.write_text("mine")
        assert main([*command, str(target)]) == 1
        assert "notes: exists; give --force" in capsys.readouterr().err
        assert target.read_text() == "mine"
        assert main([*command, str(target), "--force"]) == 0
        assert target.read_bytes().startswith(b"GGUF")
    assert main([*calibrate, str(text), "--force"]) == 1
    assert "is read by this command" in capsys.readouterr().err
    importance = tmp_path / "imatrix.gguf"
    assert main([*calibrate, str(importance)]) == 0
    before = importance.read_bytes()
    capsys.readouterr()
    assert main(["convert", str(source), str(importance), "--imatrix", str(importance), "--force"]) == 1
    assert "is read by this command" in capsys.readouterr().err
    assert importance.read_bytes() == before


def test_a_place_where_nothing_can_be_written_is_named_before_any_work(
    source: Path, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri.cli.calibrate.open_model", None)  # would be called
    for target in (tmp_path / ("x" * 254), Path("/proc/x")):
        for command in (
            ["convert", str(source), str(target)],
            ["swap", "-m", str(converted), "--expert", "1", "--export", str(target)],
            ["calibrate", "-m", str(converted), "-f", __file__, "-o", str(target)],
        ):
            assert main(command) == 1, command
            assert "cannot be written: " in (error := capsys.readouterr().err), error
            assert "give another name or folder" in error


@pytest.mark.parametrize("name", ["m.gguf.partial", "m.gguf.journal", "m-00001-of-00002.gguf.partial"])
def test_files_that_no_conversion_left_are_kept(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("mine\n")
    for _ in range(2):
        assert main(["convert", str(source), str(tmp_path / "m.gguf"), "-q", "q8_0", "--force"]) == 1
        assert "is not replaced" in (error := capsys.readouterr().err)
        assert name in error
        assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "mine\n")]


def test_nothing_is_written_over_the_model_or_what_is_not_a_file(
    source: Path, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the thing " * 40)
    model = tmp_path / "m.gguf"
    shutil.copy(converted, model)
    before = model.read_bytes()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("m.gguf", "the model is read from"), ("folder", "is not a file"), ("pipe", "is not a file")):
        target = str(tmp_path / name)
        commands = (
            ["convert", str(model), target, "--quantize", "q4_0", "--force"],
            ["swap", "-m", str(model), "--expert", "1", "--export", target, "--force"],
            ["calibrate", "-m", str(model), "-f", str(text), "-o", target, "--window", "32", "--force"],
        )
        for command in commands:
            assert main(command) == 1, command
            assert reason in capsys.readouterr().err, command
    assert model.read_bytes() == before
    weights = source / "model.safetensors"
    assert main(["convert", str(source), str(weights), "--quantize", "q8_0", "--force"]) == 1
    assert open_checkpoint(source).files == (weights,)
