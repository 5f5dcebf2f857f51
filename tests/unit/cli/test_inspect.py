"""`colibri inspect` on what a checkpoint may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_files import VOCABULARY, model_metadata, write_model

from colibri.cli import main

GOLDEN = Path(__file__).parents[2] / "golden"


def test_with_a_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "-m", str(GOLDEN / "qwen3_moe-gqa-f32")]) == 0
    shown = capsys.readouterr().out
    assert "qwen3moe" in shown
    assert "ends with" in shown
    assert main(["inspect", "-m", str(GOLDEN / "qwen3_moe-gqa-f32"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokenizer"]["end_ids"] == [0, 2]


def test_without_a_tokenizer_and_with_a_name_like_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, model_metadata("llama") | {"general.name": "a [/INST] [red]name"})
    assert main(["inspect", "-m", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "a [/INST] [red]name" in shown
    assert f"{VOCABULARY} ids, no tokenizer" in shown
    assert main(["inspect", "-m", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokenizer"] is None
