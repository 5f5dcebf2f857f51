"""`colibri inspect` on what a checkpoint may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_files import HIDDEN, VOCABULARY, WIDTH, model_metadata, model_tensors, write_model

from colibri.cli import main
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import TensorSpec, write_gguf

GOLDEN = Path(__file__).parents[2] / "golden"


def test_with_a_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "-m", str(GOLDEN / "qwen3_moe-gqa-f32")]) == 0
    shown = capsys.readouterr().out
    assert "qwen3moe" in shown
    assert "ends with" in shown
    assert main(["inspect", "-m", str(GOLDEN / "qwen3_moe-gqa-f32"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokenizer"]["end_ids"] == [0, 2]


def test_wider_blocks_count_as_they_are_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tile of IQ2_XXS takes 104 bytes where the file's block has 66, of 16 rows each."""
    specs = [
        TensorSpec(spec.name, "IQ2_XXS" if "_exps" in spec.name else spec.type,
                   tuple(256 if size in (HIDDEN, WIDTH) else size for size in spec.shape))
        for spec in model_tensors()
    ]  # fmt: skip
    write_model(tmp_path / "m.gguf", model_metadata(embedding_length=256, feed_forward_length=256), specs)
    assert main(["inspect", "-m", str(tmp_path / "m.gguf"), "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["sizes"]
    assert sizes["expert_bytes"] == [3 * 256 * 66] * 2
    assert sizes["expert_memory_bytes"] == [3 * 256 * 104] * 2
    routers = 2 * 12 * 256 * 4  # have four rows, and tiles sixteen
    assert sizes["memory_bytes"] == sizes["dense_bytes"] + sizes["routed_bytes"] // 66 * 104 + routers


def test_without_a_tokenizer_and_with_a_name_like_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, model_metadata("llama") | {"general.name": "a [/INST] [red]name"})
    assert main(["inspect", "-m", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "a [/INST] [red]name" in shown
    assert f"{VOCABULARY} ids, no tokenizer" in shown
    assert main(["inspect", "-m", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokenizer"] is None


@pytest.mark.parametrize("made_by", ["convert", "swap"])
def test_a_file_of_one_expert_is_described_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made_by: str
) -> None:
    source, model, path = str(GOLDEN / "qwen3_moe-gqa-f32"), str(tmp_path / "m.gguf"), tmp_path / "e.gguf"
    if made_by == "convert":
        assert main(["convert", source, str(path), "-q", "q8_0", "--only-expert", "2"]) == 0
    else:
        assert main(["convert", source, model, "-q", "q8_0"]) == 0
        assert main(["swap", "-m", model, "-e", "2", "--export", str(path)]) == 0
    capsys.readouterr()
    assert main(["inspect", "-m", str(path)]) == 0
    assert "gate 24 x 64" in capsys.readouterr().out
    assert main(["inspect", "-m", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["expert"], shown["layers"], shown["shapes"]["down"]) == (2, [0, 1], [64, 24])
    assert main(["verify", "-m", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["checksums"], result["header_checksum"], result["damages"]) == (6, True, [])
    data = bytearray(path.read_bytes())
    data[read_gguf(path).tensors["blk.1.ffn_up.2.weight"].offset + 3] ^= 1
    path.write_bytes(data)
    assert main(["verify", "-m", str(path)]) == 1
    assert "blk.1.ffn_up.2.weight: checksum" in capsys.readouterr().out


def test_a_file_that_only_says_that_it_holds_one_expert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = {TensorSpec("blk.0.ffn_up.1.weight", "F32", (4,)): [bytes(16)]}
    write_gguf(tmp_path / "e.gguf", {"general.type": "expert"}, specs)
    for command in ("inspect", "verify"):
        assert main([command, "-m", str(tmp_path / "e.gguf")]) == 1
        assert "matrices blk.<layer>" in capsys.readouterr().err
