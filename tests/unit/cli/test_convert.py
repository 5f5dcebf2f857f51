"""`colibri convert`, `verify` and `perplexity` from end to end on a golden checkpoint with a small tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import colibri.cli.perplexity as perplexity_command
from colibri.cli import main
from colibri.conversion.convert import Options
from colibri.conversion.convert import convert as write
from colibri.observe.perplexity import Perplexity
from colibri.weights.checkpoint import open_checkpoint

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
    tokenizer = {key: value for key, value in checkpoint.metadata.items() if key.startswith("tokenizer.")}
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
            ["swap", "-m", str(model), "--expert", "1", "--export", target],
            ["calibrate", "-m", str(model), "-f", str(text), "-o", target, "--window", "32", "--windows", "1"],
        )
        for command in commands:
            assert main(command) == 1, command
            assert reason in capsys.readouterr().err, command
    assert model.read_bytes() == before
    weights = source / "model.safetensors"
    assert main(["convert", str(source), str(weights), "--quantize", "q8_0", "--force"]) == 1
    assert open_checkpoint(source).files == (weights,)
