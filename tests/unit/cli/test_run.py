"""`colibri run` from end to end: where its prompt comes from and where its text goes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import VOCABULARY, model_metadata, write_model

from colibri.cli import main
from colibri.cli.options import Size
from colibri.weights.gguf_writer import Value

GOLDEN = Path(__file__).parents[2] / "golden"
TEXT = GOLDEN / "qwen3_moe-gqa-f32"  # the one with a tokenizer
RUN = ["run", "-m", str(TEXT), "--max-tokens", "4", "--temperature", "0"]


def colibri(arguments: list[str], redirections: str = "", **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command as a shell starts it."""
    shell = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "colibri.cli", *arguments]
    return subprocess.run(shell, capture_output=True, timeout=120, check=False, **options)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readme_shows_what_is_written(name: str) -> None:
    readme = (Path(__file__).parents[3] / name).read_text(encoding="utf-8")
    command, text = re.findall(r"^    \.venv/bin/colibri (run .*)\n((?:    .*\n)+)\n", readme, re.MULTILINE)[0]
    written = colibri(shlex.split(command)).stdout.decode()
    assert [line.strip() for line in written.split("\n")] == [line.strip() for line in text.split("\n")]


def test_json() -> None:
    done = colibri([*RUN, "--prompt", "the one", "--json"])
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert {key: set(value) for key, value in report.items() if isinstance(value, dict)} == {
        "model": {
            "name", "architecture", "layers", "experts", "experts_per_token", "parameters", "quantization",
        },
        "timings": {"load_s", "first_token_s", "prefill_tokens_per_s", "decode_tokens_per_s"},
        "memory": {"rss_bytes", "peak_rss_bytes", "budget_bytes", "expert_bytes_resident", "expert_bytes_read"},
        "routing": {"experts_touched", "experts_total", "hits", "misses", "prefetched", "prefetch_used"},
    }  # fmt: skip
    assert report["finish_reason"] == "length"
    assert len(report["tokens"]) == 4
    assert report["prompt_tokens"]
    assert report["text"].encode() in colibri([*RUN, "--prompt", "the one"]).stdout
    assert report["memory"]["rss_bytes"] <= report["memory"]["peak_rss_bytes"]


@pytest.mark.parametrize("command", [RUN, ["route", "-m", str(TEXT)]])
def test_a_prompt_from_standard_input_may_hold_any_bytes(command: list[str]) -> None:
    done = colibri([*command, "--prompt", "-"], input=b"the \xff\xfe one\0")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert b"note: 2 bytes of the text are not UTF-8" in done.stderr


@pytest.mark.parametrize("command", [[*RUN, "--prompt"], ["chat", "-m", str(TEXT), "--system"]])
def test_an_argument_may_hold_any_bytes_too(command: list[str]) -> None:
    done = colibri([*command, "the \udcff\udcfe\udce4 one"], "</dev/null")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"note: 3 bytes of the text are not UTF-8") == 1


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    done = colibri(["run", "--prompt", "-"], input=b"\xffword " * 2_000_000)
    assert done.returncode == 1
    assert b"colibri: the prompt has at least " in done.stderr
    assert b"the context holds 2048" in done.stderr


@pytest.mark.parametrize(("given", "size"), [
    ("2.5G", 5 << 29), ("1GiB", 1 << 30), ("2GB", 2 * 10**9), ("800m", 800 << 20), ("3 kB", 3000), ("77", 77),
])  # fmt: skip
def test_sizes(given: str, size: int) -> None:
    assert Size().convert(given, None, None) == size


def test_no_memory_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--prompt", "x", "--ram", "0"]) == 2
    assert "'0' is less than a byte; write it as 2.5G" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["2.5", "800", "100K"])
def test_memory_without_a_unit(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--prompt", "x", "--ram", given]) == 2
    assert re.search(rf"'{given}' is \d+ bytes; give a unit, as 2.5G", capsys.readouterr().err)


def test_more_memory_than_there_is_is_noted() -> None:
    done = colibri([*RUN, "--prompt", "x", "--max-tokens", "1", "--ram", "900T"])
    assert done.returncode == 0
    assert b"note: --ram 921600.00 GiB is more than the memory that is here, " in done.stderr


def test_an_empty_prompt_is_noted_and_memory_is_told_in_the_units_of_ram() -> None:
    done = colibri(["run", "--prompt", "", "--max-tokens", "2"])
    assert done.returncode == 0, done.stderr
    assert b"note: the prompt is empty" in done.stderr
    assert re.search(rb"\d MiB of experts in memory\), memory [\d.]+ MiB at most", done.stderr)


def test_the_memory_at_most_is_not_that_of_who_started_it() -> None:
    held = np.ones(600 << 20, np.uint8)
    report = json.loads(colibri([*RUN, "--prompt", "the one", "--json"]).stdout)
    assert report["memory"]["peak_rss_bytes"] < held.nbytes


@pytest.mark.parametrize("command", [
    "run --prompt a", "chat", "serve", "inspect", "verify", "bench", "swap", "plan", "route --prompt a", "doctor",
    f"perplexity -f {__file__}", f"calibrate -f {__file__} -o nowhere",
])  # fmt: skip
def test_no_model_is_not_the_current_directory(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "-m", ""]) == 2
    assert "path: found ''" in capsys.readouterr().err
    monkeypatch.setenv("COLIBRI_MODEL", "")
    assert main(command.split()) == 1
    said = capsys.readouterr()
    assert "COLIBRI_MODEL: found ''" in " ".join((said.out + said.err).split())  # doctor's are in a table


def test_standard_input_is_closed() -> None:
    done = colibri([*RUN, "--prompt", "-"], "<&-")
    assert done.returncode == 2
    assert b"standard input, which is closed" in done.stderr
    assert colibri(["chat", "-m", str(TEXT)], "<&-").returncode == 0


def test_nobody_reads_the_text() -> None:
    for arguments in ([*RUN, "--prompt", "the one"], [*RUN, "--prompt", "the one", "--json"], ["inspect"], ["--help"]):
        closed = colibri(arguments, ">&-")
        assert closed.returncode == 1
        assert closed.stderr.decode().splitlines()[-1] == "colibri: standard output: Bad file descriptor"
        done = colibri(arguments, "| true")
        assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("arguments", [[*RUN, "--prompt", "x"], [*RUN, "--prompt", "x", "--json"], ["inspect"]])
def test_the_disk_is_full(arguments: list[str]) -> None:
    done = colibri(arguments, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == "colibri: standard output: No space left on device"
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["click", "numpy", "tokenizers"])
def test_interrupted_while_a_module_is_imported(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = colibri([*RUN, "--prompt", "x"], env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 130
    assert not done.stderr.strip()


def test_names_in_messages_are_shown_not_obeyed(tmp_path: Path) -> None:
    done = colibri(["run", "-m", str(tmp_path / "\x1b[2Jred\udcff"), "--prompt", "x"])
    assert done.returncode == 1
    assert b"\\u001b[2Jred\\udcff: no such file" in done.stderr
    assert b"\x1b" not in done.stderr


def test_a_doubt_is_a_note_and_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokenizer = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.merges": Value("string", ["a b"]),
        "tokenizer.ggml.tokens": Value("string", ["a", "b", "ab", *(f"t{n}" for n in range(3, VOCABULARY))]),
    }
    write_model(path, model_metadata("llama") | tokenizer)
    done = colibri(["run", "-m", str(path), "--prompt", "ab", "--max-tokens", "1"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"tokenizer.ggml.pre is missing") == 1
    assert f"note: {path}: tokenizer.ggml.pre is missing".encode() in done.stderr
