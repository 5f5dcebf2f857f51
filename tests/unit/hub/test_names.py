"""Names of models, labels of files, and the table of suggestions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from colibri.cli import main
from colibri.errors import FileError
from colibri.hub import cache
from colibri.hub.reference import Reference, parse
from colibri.hub.suggestions import KNOWN, RAM_SIZES, parameters, sizes, speed
from colibri.hub.variants import variants_of


@pytest.mark.parametrize(("text", "expected"), [
    ("org/name", Reference("org/name")),
    ("Org-1/na.me_2:Q4_K_M", Reference("Org-1/na.me_2", "Q4_K_M")),
    ("org/name:UD-Q2_K_XL", Reference("org/name", "UD-Q2_K_XL")),
    ("name", None), ("a/b/c", None), ("./a", None), ("../a", None), ("/a/b", None), ("~/models", None), ("", None),
    ("org/model.gguf", None), ("org/..", None), ("org/name:", None), ("org/name:a/b", None), ("org/na me", None),
    ("org/näme", None), ("x" * 97 + "/y", None),
])  # fmt: skip
def test_names(text: str, expected: Reference | None) -> None:
    assert parse(text) == expected
    assert expected is None or str(expected) == text


def test_a_path_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("models/mine") is not None
    (tmp_path / "models").mkdir()
    assert parse("models/mine") is None  # a typing mistake, not a repository
    assert main(["inspect", "-m", "models/mine"]) == 1


@pytest.mark.parametrize(("name", "label"), [
    ("Qwen3-30B-A3B-Q4_K_M.gguf", "Q4_K_M"), ("mixtral-8x7b-instruct-v0.1.Q5_0.gguf", "Q5_0"),
    ("x-IQ2_XXS.gguf", "IQ2_XXS"), ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"), ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
    ("x-MXFP4_MOE.gguf", "MXFP4_MOE"), ("x-BF16.gguf", "BF16"), ("x.f16.gguf", "F16"), ("Q6_K/x.gguf", "Q6_K"),
    ("x-TQ1_0.gguf", "TQ1_0"), ("olmoe-Q8_0.gguf", "Q8_0"), ("plain.gguf", "plain"),
    ("Qwen3-Q3_K_L-Q4_0.gguf", "Q4_0"),
])  # fmt: skip
def test_labels(name: str, label: str) -> None:
    (variant,) = variants_of({name: 5})
    assert (variant.label, variant.files, variant.nbytes) == (label, (name,), 5)


def test_splits_doubles_and_what_is_no_model() -> None:
    split = [f"Q8_0/x-Q8_0-{number:05d}-of-00003.gguf" for number in (3, 1, 2)]
    files = dict.fromkeys(split, 10) | {"a-Q4_0.gguf": 9, "b-Q4_0.gguf": 8, "mmproj-F16.gguf": 3, "x-lora-Q8_0.gguf": 2}
    files |= {"y-Q2_K-00002-of-00002.gguf": 50, "imatrix.gguf": 1}
    found = {variant.label: variant.files for variant in variants_of(files)}
    assert found == {"Q8_0": tuple(sorted(split)), "a-Q4_0": ("a-Q4_0.gguf",), "b-Q4_0": ("b-Q4_0.gguf",)}
    assert variants_of(files)[0].nbytes == 30
    assert [variant.bits for variant in variants_of({"x-IQ3_S.gguf": 2, "x-BF16.gguf": 3, "x.gguf": 1})] == [16, 3, 16]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert cache.cache_folder() == Path("/h/.cache/huggingface/hub")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.cache_folder() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "~/f")
    assert cache.cache_folder() == Path("/h/f/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/c")
    assert cache.cache_folder() == Path("/c")
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(FileError, match="no home directory"):
        cache.cache_folder()


def test_other_commands_do_not_import_the_library() -> None:
    code = (
        "import sys, contextlib; from colibri.cli import main; main(['run', '--prompt', 'a', '--max-tokens', '1']); "
        "main(['models']); print('huggingface_hub' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("known", KNOWN, ids=[known.source for known in KNOWN])
def test_shapes_have_the_parameters_that_the_authors_name(known: object) -> None:
    assert isinstance(known, type(KNOWN[0]))
    assert parameters(known) / 1e9 == pytest.approx(known.parameters, rel=0.01)


def test_sizes_are_those_of_published_files() -> None:
    """Bytes of files that publishers offer in Q4_K_M."""
    published = {"OLMoE-1B-7B-0125": 4.21e9, "Qwen3-30B-A3B-I": 18.56e9, "Qwen3-235B-A22B-I": 142.3e9, "8x22B": 85.58e9}
    for part, nbytes in published.items():
        known = next(known for known in KNOWN if part in known.source)
        assert sizes(known).file == pytest.approx(nbytes, rel=0.01)


def test_speed_grows_with_memory_and_ends_where_all_fits() -> None:
    known = KNOWN[1]
    taken = sizes(known)
    rates = [speed(known, taken, ram << 30, 50e9, 2e9) for ram in RAM_SIZES]
    assert None not in rates
    assert rates == sorted(rates, key=lambda rate: rate or 0.0)
    assert rates[0] != rates[2] == rates[3] == rates[4]
    assert speed(known, taken, 2 << 30, 50e9, 2e9) is None
    assert speed(known, taken, 8 << 30, 50e9, None) is None


def test_the_table_of_suggestions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.cli.models.MEASURE_SECONDS", 0.05)
    monkeypatch.setattr("colibri.observe.disk.FILE_BYTES", 32 << 20)
    assert main(["models", "--suggest"]) == 0
    shown = capsys.readouterr().out
    assert all(known.reference in shown for known in KNOWN)
    assert max(map(len, shown.splitlines()[:-3])) <= 80
    assert main(["models", "--suggest", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert len(value["models"]) == len(KNOWN)
    assert set(value["models"][0]["tokens_per_s"]) == {str(ram) for ram in RAM_SIZES}
