"""The bench's object has the documented form, whatever the speed; two of them compare as ratios."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import colibri
from colibri import ops
from colibri.cli import main
from colibri.errors import FileError, FormatError
from colibri.observe import bench
from colibri.observe.compare import compare, read_result
from colibri.observe.limits import Meter

MODEL = Path(__file__).resolve().parents[2] / "golden" / "olmoe-mha-f32"


RATES = {"median", "min", "max"}


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """What a short bench prints as JSON, on a machine that reads 3 GB/s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "LIMIT_SECONDS", 0.01)
        patch.setattr(ops, "measure_read", lambda memory, seconds: (2e9, 4e9))
        with colibri.load(MODEL) as model:
            meter = Meter()
            meter.measure(0.01)
            options = bench.BenchOptions(prompt_tokens=(20, 5), new_tokens=6, depth=3, repeat=2)
            report = bench.Bench(model, options, meter, lambda what: None).report()
    return json.loads(json.dumps(report))  # type: ignore[no-any-return]


def test_documented_fields(result: dict[str, Any]) -> None:
    assert set(result) >= {"model", "machine", "prefill", "decode", "limits", "memory"}
    assert set(result["machine"]) >= {"cpu", "isa", "threads", "read_gb_s"}
    assert result["machine"]["handover_us"] > 0
    assert result["machine"]["read_gb_s"] == 3
    assert [run["tokens"] for run in result["prefill"]] == [20, 5]
    assert all(set(run["tokens_per_s"]) == RATES for run in (*result["prefill"], *result["decode"]))
    for times in ("latency_ms", "reading_ms"):
        assert list(result["decode"][0][times]) == ["p50", "p90", "p99", "p99_9", "max"]
        assert 0 < result["decode"][0][times]["p50"] <= result["decode"][0][times]["max"]
    assert result["decode"][0]["tokens"] == 6
    assert 0 < result["limits"]["python_fraction"] < 1
    assert result["memory"]["peak_rss_bytes"] > 0


def test_fraction_of_bandwidth(result: dict[str, Any]) -> None:
    limits, rate = result["limits"], result["decode"][0]["tokens_per_s"]["median"]
    assert limits["decode_fraction_of_bandwidth"] == pytest.approx(
        rate * limits["active_bytes_per_token"] / 3e9, rel=1e-3
    )
    assert limits["prefill_fraction_of_peak"] == result["prefill"][0]["fraction_of_peak"]


def test_a_result_is_itself(result: dict[str, Any]) -> None:
    ratios = compare(result, result)
    assert [ratio.metric for ratio in ratios][:3] == [
        "prefill 20 tokens/s", "prefill 5 tokens/s", "decode 6 after 3 tokens/s",
    ]  # fmt: skip
    assert {"memory read GB/s", "multiply GMAC/s", "handover us"} < {ratio.metric for ratio in ratios}
    assert all(ratio.median == 1 and ratio.low <= 1 <= ratio.high for ratio in ratios)


def test_ratios_keep_the_worst_and_the_best(result: dict[str, Any]) -> None:
    faster = copy.deepcopy(result)
    result["prefill"][0]["tokens_per_s"] = {"median": 10, "min": 8, "max": 16}
    faster["prefill"][0]["tokens_per_s"] = {"median": 20, "min": 16, "max": 24}
    ratio = compare(result, faster)[0]
    assert (ratio.median, ratio.low, ratio.high) == (2, 1, 3)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "measure_read", lambda memory, seconds: (2e9,))
    monkeypatch.setattr(ops, "measure_dot", lambda seconds: (2e9,))
    short = ["bench", "-m", str(MODEL), "--prompt-tokens", "9", "--new-tokens", "3", "--repeat", "1"]
    assert main([*short, "--json"]) == 0
    file = tmp_path / "of_another_commit.json"
    file.write_text(capsys.readouterr().out)
    assert main(["bench", "--compare", str(file), str(file)]) == 0
    printed = capsys.readouterr().out
    assert "prefill 9 tokens/s" in printed
    assert "at most" in printed  # as wide as it has to be
    assert main(["bench", "--json", "--compare", str(file), str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["ratios"][0]["median"] == 1
    assert main(short) == 0
    assert "Python's share" in capsys.readouterr().out


def test_a_file_that_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with pytest.raises(FileError, match="cannot be read"):
        read_result(file)
    for text, problem in (("{", "no JSON"), ("{}", "has no decode, limits"), ("3", "has no decode")):
        file.write_text(text)
        with pytest.raises(FormatError, match=problem):
            read_result(file)
    file.write_text('{"machine": {}, "prefill": [{}], "decode": [], "limits": {}}')
    with pytest.raises(FormatError, match="not of the form"):
        compare(read_result(file), read_result(file))


def test_the_budget_holds_for_the_measurement_of_the_machine_too() -> None:
    command = [sys.executable, "-m", "colibri.cli", "bench", "-m", str(MODEL), "--ram", "180M", "--prompt-tokens", "9"]
    done = subprocess.run([*command, "--new-tokens", "3", "--repeat", "1", "--json"], capture_output=True, check=True)
    memory = json.loads(done.stdout)["memory"]
    assert 140 << 20 < memory["peak_rss_bytes"] < 1.03 * (180 << 20)  # the buffer is part of it
