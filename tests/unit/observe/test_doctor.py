"""The doctor's findings on machines and models that are in order and on ones that are not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from colibri import ops
from colibri.cli import main
from colibri.config import LoadOptions
from colibri.machine import cpus
from colibri.observe import doctor
from colibri.observe.doctor import Finding, examine_machine, examine_model

GOLDEN = Path(__file__).parents[2] / "golden" / "mixtral-gqa-f32"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MEASURE_SECONDS", 0.02)
    monkeypatch.setattr(doctor, "measure_reading", lambda store, misses, cached: 1e9)


def machine(tmp_path: Path, **files: str) -> dict[str, Finding]:
    """Findings on a machine whose /proc and /sys hold these files."""
    contents = {
        "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n",
        "proc/self/statm": "100 50 1 1 1 1 1",
        "proc/loadavg": "0.10 0.1 0.1 1/100 5",
        "proc/cpuinfo": "model name\t: Some CPU 1234\n\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    } | {name.replace("__", "/"): text for name, text in files.items()}
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return {finding.subject: finding for finding in examine_machine(tmp_path)}


def test_a_machine_in_order(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert found["memory"].level == found["huge pages"].level == found["load"].level == "ok"
    assert "Some CPU 1234" in found["processor"].found
    assert "GiB/s" in found["speed"].found


def test_faults_of_a_machine(tmp_path: Path) -> None:
    pages = "always madvise [never]"
    memory = "MemTotal: 8000000 kB\nMemAvailable: 60000 kB\n"
    found = machine(
        tmp_path, proc__loadavg="99.0 1 1 1/1 1", proc__meminfo=memory,
        sys__kernel__mm__transparent_hugepage__enabled=pages,
    )  # fmt: skip
    assert {found[name].level for name in ("load", "huge pages", "memory")} == {"slow"}
    assert "madvise" in found["huge pages"].advice
    assert all(finding.advice for finding in found.values() if finding.level != "ok")
    broken = machine(tmp_path, proc__meminfo="nothing", proc__loadavg="")
    assert broken["memory"].level == "fault"
    assert broken["load"].level == "ok"


def test_too_many_threads(tmp_path: Path) -> None:
    before = ops.threads()
    ops.set_threads(cpus() + 1)
    try:
        assert machine(tmp_path)["threads"].level == "slow"
    finally:
        ops.set_threads(before)


def test_a_model_that_cannot_be_opened_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finding,) = examine_model(LoadOptions(path=tmp_path / "none.gguf"))
    assert finding.level == "fault"
    assert "none.gguf" in finding.found
    assert main(["doctor", "-m", str(tmp_path / "[b]none.gguf"), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert findings[-1]["level"] == "fault"
    assert main(["doctor", "-m", str(tmp_path / "[b]none.gguf")]) == 1
    assert "[b]none.gguf" in "".join(capsys.readouterr().out.split())


def test_advice_fits_the_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GOLDEN / "model.gguf"
    (tmp_path / "other.gguf").write_text("words")
    cases = [
        (LoadOptions(path=tmp_path / "none.gguf"), "give the path of a model: -m"),
        (LoadOptions(path=tmp_path / ("long" * 100)), "give the path of a model: -m"),
        (LoadOptions(path=tmp_path / "other.gguf"), "fetch or convert this one again"),
        (LoadOptions(path=model, ram=1 << 20), "more memory"),
        (LoadOptions(path=model, context=1 << 20), "another value"),
    ]
    for options, advice in cases:
        (finding,) = examine_model(options)
        assert finding.level == "fault"
        assert advice in finding.advice, finding
    monkeypatch.setenv("COLIBRI_MODEL", str(tmp_path / "none.gguf"))
    (finding,) = examine_model(LoadOptions())
    assert "COLIBRI_MODEL" in finding.advice


def test_a_model_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = SimpleNamespace(notes=("odd",), vocab_size=9)
    monkeypatch.setattr(doctor, "load_tokenizer", lambda *_, **__: odd)
    options = LoadOptions(path=GOLDEN / "model.gguf")
    found = {finding.subject: finding for finding in examine_model(options)}
    assert found["fit"].level == "ok"
    advice = "convert the checkpoint again with --pre-tokenizer NAME"
    assert found["tokenizer"] == Finding("slow", "tokenizer", "odd", advice)
    assert "none in the file" in found["checksums"].found
    assert "KiB of weights" in found["a token"].found
