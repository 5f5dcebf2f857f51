"""`colibri plan`, `route` and `swap` from end to end on golden checkpoints."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from colibri.cli import EXIT_ERROR, main
from colibri.engine import loading
from colibri.machine import MachineMemory

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model file of its own, so that its overlay folder is, too."""
    return Path(shutil.copy(GOLDEN / "qwen3_moe-quantized" / "model.gguf", tmp_path / "m.gguf"))


def test_plan(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", str(model), "--ram", "1G", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"]
    assert plan["budget_bytes"] == 1 << 30
    assert sum(plan["parts"].values()) < plan["budget_bytes"]
    assert plan["expected"][0]["tokens_per_s"] > 0
    assert main(["plan", "-m", str(model)]) == 0
    assert "key-value cache" in capsys.readouterr().out


def test_hit_rates_of_a_plan_are_in_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the embedded model, of whose experts about two thirds have room; the rate of even routing is marked."""
    monkeypatch.setattr(loading, "detect_memory", lambda: MachineMemory(8 << 30, 16 << 30, 60 << 20))

    def plan(*options: str) -> str:
        assert main(["plan", *options]) == 0
        return capsys.readouterr().out

    budget = str(json.loads(plan("--ram", "1G", "--json"))["floor_bytes"] + (5 << 20))
    rows = json.loads(plan("--ram", budget, "--json"))["expected"]
    rates = [row["hit_rate"] for row in rows]
    assert rates == sorted(rates)
    assert [row["even_routing"] for row in rows] == [False, True, False, False]
    shown = re.findall(r"^(\d+)%( \(even routing\))?  ", plan("--ram", budget), re.MULTILINE)
    assert [(f"{rate:.0%}"[:-1], " (even routing)" if 0.5 < rate < 0.75 else "") for rate in rates] == shown


def test_plan_below_the_floor(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", str(model), "--ram", "5M"]) == EXIT_ERROR
    assert "use --ram" in capsys.readouterr().err


def test_route_replays_a_kept_trace(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.npy"
    np.save(
        trace, np.random.default_rng(0).permuted(np.tile(np.arange(3, dtype=np.int16), (50, 2, 1)), axis=2)[..., :2]
    )
    assert main(["route", "-m", str(model), "--trace", str(trace), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tokens"] == 50
    assert np.sum(result["counts"]) == 200
    assert main(["route", "-m", str(model), "--trace", str(trace), "--replay"]) == 0
    assert "belady" in capsys.readouterr().out


def test_route_refuses_what_is_no_trace(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "t.npy", np.zeros((4, 9, 9), np.int16))
    assert main(["route", "-m", str(model), "--trace", str(tmp_path / "t.npy")]) == EXIT_ERROR
    assert main(["route", "-m", str(model), "--trace", str(model)]) == EXIT_ERROR
    assert main(["route", "-m", str(model)]) == EXIT_ERROR
    assert "--prompt or a --trace" in capsys.readouterr().err
    assert main(["route", "-m", str(model), "--prompt", "a", "--trace", str(tmp_path / "t.npy")]) == EXIT_ERROR
    assert "--prompt and --trace contradict" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "found"), [
    (200, "layer 1: found expert 200, expected 0.."), (-1, "layer 1: found expert -1, expected 0.."),
    (-5, "layer 1: found expert -5, expected 0.."), (None, "found 0 tokens, expected at least 1"),
])  # fmt: skip
def test_route_refuses_traces_of_other_models(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: int | None, found: str
) -> None:
    trace = np.zeros((0 if value is None else 4, 2, 2), np.int16)
    trace[2:3, 1, 1] = value or 0
    np.save(tmp_path / "t.npy", trace)
    assert main(["route", "-m", str(model), "--trace", str(tmp_path / "t.npy"), "--replay"]) == EXIT_ERROR
    assert found in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"\x93NUMPY", b"PK\x03\x04 no archive", b"text"])
def test_route_names_a_trace_that_cannot_be_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "t.npy").write_bytes(content)
    assert main(["route", "-m", str(model), "--trace", str(tmp_path / "t.npy")]) == EXIT_ERROR
    said = capsys.readouterr().err
    assert f"{tmp_path / 't.npy'}: " in said
    assert ("is no trace kept by --save" in said) == (content is not None)
    assert "Errno" not in said


def test_route_keeps_a_trace_where_it_is_told_to(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = model.read_bytes()
    for save, said in ((tmp_path / "none" / "t.npy", "no such directory"), (model, "not replaced")):
        assert main(["route", "-m", str(model), "--prompt", "a b", "--save", str(save)]) == EXIT_ERROR
        assert said in capsys.readouterr().err
    assert model.read_bytes() == whole
    with_words = ["route", "-m", str(GOLDEN / "qwen3_moe-gqa-f32")]
    assert main([*with_words, "--prompt", "a b", "--save", str(tmp_path / "kept")]) == 0
    assert main([*with_words, "--trace", str(tmp_path / "kept"), "--replay"]) == 0
    assert main([*with_words, "--prompt", ""]) == EXIT_ERROR
    assert "the prompt has no tokens" in capsys.readouterr().err


def test_swap(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = str(tmp_path / "zero.gguf")
    assert main(["swap", "-m", str(model), "-e", "0", "--export", exported]) == 0
    assert main(["swap", "-m", str(model), "-e", "1", exported]) == 0
    assert (tmp_path / "m.gguf.experts" / "expert-1.gguf").exists()
    capsys.readouterr()
    assert main(["swap", "-m", str(model)]) == 0
    assert "expert-1.gguf" in capsys.readouterr().out
    assert main(["swap", "-m", str(model), "-e", "1", "--revert"]) == 0
    assert main(["swap", "-m", str(model), "-e", "1", "--revert"]) == 0
    assert "was not replaced" in capsys.readouterr().out
    assert main(["swap", "-m", str(model), "-e", "1", str(model)]) == EXIT_ERROR
    assert main(["swap", "-m", str(model), "-e", "99", exported]) == EXIT_ERROR
    assert main(["swap", "-m", str(model), exported]) == EXIT_ERROR


def test_swap_says_when_the_file_is_named_for_another_expert(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = str(tmp_path / "zero.gguf")
    assert main(["swap", "-m", str(model), "-e", "0", "--export", exported]) == 0
    assert main(["swap", "-m", str(model), "-e", "0", exported]) == 0
    assert capsys.readouterr().err == ""
    assert main(["swap", "-m", str(model), "-e", "1", exported]) == 0
    assert "named 0; it is in the place of 1" in capsys.readouterr().err


def test_swap_refuses_contradictions(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = tmp_path / "zero.gguf"
    assert main(["swap", "-m", str(model), "-e", "0", "--export", str(exported)]) == 0
    assert main(["swap", "-m", str(model), "-e", "0", str(exported)]) == 0
    assert main(["swap", "-m", str(model), "-e", "0", "--revert", str(exported)]) == EXIT_ERROR
    assert f"--revert and FILE ({exported})" in capsys.readouterr().err
    assert main(["swap", "-m", str(model), "-e", "0", "--revert", "--export", str(tmp_path / "x.gguf")]) == EXIT_ERROR
    assert "--revert and --export" in capsys.readouterr().err
    assert (tmp_path / "m.gguf.experts" / "expert-0.gguf").exists()
    assert not (tmp_path / "x.gguf").exists()


def test_swap_lists_without_what_a_killed_one_left(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m.gguf.experts"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left = folder / f"expert-3.gguf.{ended.pid}.partial"
    left.write_text("half an expert")
    assert main(["swap", "-m", str(model)]) == 0
    assert not left.exists()


def test_route_says_what_is_even_what_repeats_and_what_two_texts_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, texts = str(tmp_path / "a.npy"), ("And the king said unto him, Go. " * 4, "def f(x):\n    return x\n" * 8)
    assert main(["route", "--prompt", texts[0], "--save", kept]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "Jain" in shown and "common" not in shown
    found = []
    for text in texts:
        assert main(["route", "--prompt", text, "--compare", kept, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["in_common"] == pytest.approx([1] * 7)
    assert all(part < 1 for part in found[1]["in_common"])
    trace = np.load(kept)
    repeated = [(trace[1:, layer, :, None] == trace[:-1, layer, None]).any(2).mean() for layer in range(7)]
    assert [layer["next_token"] for layer in found[0]["layers"]] == pytest.approx(repeated)
    assert [layer["layer"] for layer in found[0]["layers"]] == list(range(7))
    assert main(["route", "--prompt", "a", "--compare", str(tmp_path / "none.npy")]) == 1
    assert "none.npy: cannot be opened" in capsys.readouterr().err
