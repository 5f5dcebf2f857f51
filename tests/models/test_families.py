"""Every family is shown to be right in the same way: each golden directory, made by tools/make_golden.py.

A new family is tested by its golden; nothing here names one.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from colibri.config import SamplingParams
from colibri.conversion.convert import Options, convert
from colibri.engine.model import Model
from colibri.models.registry import open_checkpoint
from colibri.observe.trace import LayerTraces
from colibri.weights.gguf import read_gguf

from .conftest import DIRECTORIES, GOLDEN, distance, golden_of

Load = Callable[..., Model]
PLAIN = 1e-3  # of the logits' range: the cache rounds keys and values to float16, the oracle does not
ROUNDED = 2e-4  # where the oracle rounds too; a difference in the last bit before rounding remains
OURS = {"{arch}.ssm.time_step_min"}  # keys that llama.cpp has no name for; left out where the value is usual
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)

every_family = pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name) for path in DIRECTORIES]
)


def long_ids(path: Path) -> list[int]:
    """Longer than a block of the cache, than any window and than the original length of a stretched rope."""
    ids: list[int] = golden_of(path)["long_ids"].tolist()
    return ids[:300]


def converted(path: Path, folder: Path) -> Path:
    """The same weights, not rounded, as our GGUF file."""
    convert(open_checkpoint(path), folder / "model.gguf", Options(path.name.rpartition("-")[2]))
    return folder / "model.gguf"


# ---- what transformers computes --------------------------------------------------------------------------------------


@every_family
def test_logits(load: Load, path: Path) -> None:
    golden = golden_of(path)
    logits = load(path, precision="exact").infer(golden["ids"].tolist())
    rounding = 0.0
    if "logits_half" in golden:
        assert distance(logits, golden["logits_half"]) < ROUNDED
        rounding = distance(golden["logits_half"], golden["logits"])
    assert distance(logits, golden["logits"]) < max(PLAIN, rounding + ROUNDED)
    assert (logits.argmax(axis=1) == golden["logits"].argmax(axis=1)).all()


@every_family
def test_logits_after_a_long_text(load: Load, path: Path) -> None:
    golden = golden_of(path)
    rounds = "long_logits" in golden
    expected = golden["long_logits" if rounds else "long_logits_plain"]
    logits = load(path, precision="exact").infer(golden["long_ids"].tolist())[-len(expected) :]
    assert distance(logits, expected) < (ROUNDED if rounds else PLAIN)


@every_family
def test_chosen_experts(load: Load, path: Path) -> None:
    golden = golden_of(path)
    model, traces = load(path, precision="exact"), LayerTraces()
    model.watch(traces)
    model.infer(golden["ids"].tolist())
    chosen = [np.sort(trace.experts, axis=1) for trace in traces if trace.experts.size]
    np.testing.assert_array_equal(np.stack(chosen), golden["chosen"])


# ---- the same bits ---------------------------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_a_converted_file(load: Load, tmp_path: Path, path: Path, precision: str) -> None:
    ids = golden_of(path)["ids"].tolist()
    original = load(path, precision=precision).infer(ids)
    found = load(converted(path, tmp_path), precision=precision).infer(ids)
    if "rope_freqs.weight" in open_checkpoint(tmp_path / "model.gguf").tensors:  # scaling became a table of float32
        assert distance(found, original) < 2e-3
    else:
        np.testing.assert_array_equal(found, original)


@every_family
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_the_prompt(load: Load, path: Path, chunk: int) -> None:
    """A chunk of 1 is step by step."""
    ids = long_ids(path)
    np.testing.assert_array_equal(load(path, chunk=chunk).infer(ids), load(path, chunk=512).infer(ids))


@every_family
def test_number_of_threads(load: Load, path: Path) -> None:
    ids = long_ids(path)
    np.testing.assert_array_equal(load(path, threads=3).infer(ids), load(path, threads=1).infer(ids))


@every_family
def test_batches(load: Load, path: Path) -> None:
    """Sequences of different lengths in one batch, and each alone."""
    ids = long_ids(path)
    prompts = [ids[:3], ids[3:290], ids[50:51], ids[100:140]]
    alone = load(path)
    expected = [[(token.id, token.logprob) for token in alone.generate(prompt, GREEDY)] for prompt in prompts]
    together = load(path, sequences=len(prompts), chunk=32)
    running = [together.generate(prompt, GREEDY) for prompt in prompts]
    steps = list(zip(*running, strict=True))
    assert [[(token.id, token.logprob) for token in tokens] for tokens in zip(*steps, strict=True)] == expected


@every_family
def test_decode_goes_on_where_prefill_ended(load: Load, path: Path) -> None:
    model, prompt = load(path), long_ids(path)
    generation = model.generate(prompt, GREEDY)
    tokens = list(generation)
    rows = model.infer(prompt + generation.token_ids)[len(prompt) - 1 : -1].astype(np.float64)
    assert [token.id for token in tokens] == rows.argmax(axis=1).tolist()
    shifted = rows - rows.max(axis=1, keepdims=True)
    best = -np.log(np.exp(shifted).sum(axis=1))
    np.testing.assert_allclose([token.logprob for token in tokens], best, atol=1e-5)


@every_family
def test_a_prompt_that_begins_alike(load: Load, path: Path) -> None:
    """What is kept of an ended sequence gives what computing it again would."""
    ids = long_ids(path)
    fresh, kept = load(path), load(path, share_prefixes=True)
    list(kept.generate(ids[:280], GREEDY))
    for prompt in (ids[:280], ids, ids[:270] + ids[:20]):
        expected = [(token.id, token.logprob) for token in fresh.generate(prompt, GREEDY)]
        assert [(token.id, token.logprob) for token in kept.generate(prompt, GREEDY)] == expected


@every_family
def test_few_slots_for_experts(load: Load, path: Path) -> None:
    ids = long_ids(path)
    model = load(path)
    tight = load(path, ram=model.plan.floor + (4 << 20))
    np.testing.assert_array_equal(tight.infer(ids), model.infer(ids))


# ---- other formats, other readers ------------------------------------------------------------------------------------


@every_family
def test_quantised_files_stay_near(load: Load, tmp_path: Path, path: Path) -> None:
    """Rows that no block divides are kept in wider formats."""
    golden = golden_of(path)
    convert(open_checkpoint(path), tmp_path / "model.gguf", Options("q8_0"))
    logits = load(tmp_path / "model.gguf", precision="exact").infer(golden["ids"].tolist())
    assert np.sqrt(np.mean(np.square(logits - golden["logits"]))) < 0.2 * golden["logits"].std()


def keys_of(owner: type) -> set[str]:
    """All metadata keys that llama.cpp's package names."""
    own = {value for value in vars(owner).values() if isinstance(value, str) and "." in value}
    return own.union(*(keys_of(value) for value in vars(owner).values() if isinstance(value, type)))


@every_family
def test_a_converted_file_has_the_names_of_llama_cpp(tmp_path: Path, path: Path) -> None:
    file = read_gguf(converted(path, tmp_path))
    architecture = file.metadata.text("general.architecture")
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture not in numbers:
        pytest.skip("a family that llama.cpp does not know")
    known: set[Any] = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[numbers[architecture]]}
    known |= {f"blk.{{bid}}.ffn_{part}" for part in ("gate", "up", "down")}  # of dense layers, which it may not run
    known |= {"blk.{bid}.ffn_gate_exps", "blk.{bid}.ffn_up_exps"}  # which it reads where they are not in one
    names = {re.sub(r"^blk\.\d+", "blk.{bid}", re.sub(r"\.(weight|bias|scale)$", "", name)) for name in file.tensors}
    assert names <= known
    prefix = f"{architecture}."
    keys = {"{arch}." + key.removeprefix(prefix) for key in file.metadata if key.startswith(prefix)}
    assert keys <= keys_of(gguf.Keys) | OURS


def test_the_table_of_families_is_what_the_tests_find() -> None:
    """docs/families.md; `python tools/families.py` writes it."""
    tool = runpy.run_path(str(GOLDEN.parent.parent / "tools" / "families.py"))
    text = tool["DOCUMENT"].read_text()
    assert tool["written"](text) == text
