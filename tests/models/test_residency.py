"""Where experts are changes speed, never a bit: few slots, reading ahead, a warm start, a swap that is taken back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import HIDDEN, WIDTH, model_metadata, model_tensors, write_model
from expert_files import live_slots

from colibri.config import SamplingParams
from colibri.engine import loading
from colibri.engine.model import Model
from colibri.experts import residency
from colibri.experts.stats import NO_EXPERT
from colibri.experts.swap import export_expert
from colibri.machine import MachineMemory
from colibri.weights.gguf_writer import TensorSpec

from .conftest import GOLDEN, golden_of

Load = Callable[..., Model]
TOOL = Path(__file__).parents[2] / "tools" / "make_random_moe.py"
PATHS = [
    pytest.param(GOLDEN / "mixtral-window-f16", id="mixtral-window-f16"),
    pytest.param(GOLDEN / "qwen3_moe-quantized" / "model.gguf", id="qwen3_moe-quantized"),
    pytest.param(GOLDEN / "qwen3_moe-dense-bf16", id="qwen3_moe-dense-bf16"),
]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


class Always:
    """A trial that is decided."""

    def __init__(self, reading_ahead: bool) -> None:
        self.reading_ahead = reading_ahead

    def step(self, seconds: float) -> None:
        """Nothing to learn."""


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads ahead with few slots, too, which does not pay but has to be right."""
    monkeypatch.setattr(residency, "LEAST_SLOTS", 1)


def tokens(model: Model, prompt: list[int]) -> list[tuple[int, float]]:
    return [(token.id, token.logprob) for token in model.generate(prompt, GREEDY)]


def test_a_dense_layer_at_the_end(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    specs = [
        spec for spec in model_tensors() if not spec.name.startswith(("blk.1.ffn_g", "blk.1.ffn_u", "blk.1.ffn_d"))
    ]
    for name, shape in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))):
        specs.append(TensorSpec(f"blk.1.ffn_{name}.weight", "F32", shape))
    write_model(path, model_metadata("olmoe"), specs)
    model = load(path)
    assert model.infer([1, 2, 3]).shape == (3, model.spec.vocab_size)
    trace = model.routing.trace()  # (tokens, layers, k)
    assert trace.shape == (3, 2, 2)
    assert (trace[:, 0] != NO_EXPERT).all()
    assert (trace[:, 1] == NO_EXPERT).all()


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("path", PATHS)
def test_few_slots(load: Load, path: Path, slots: int, ahead: bool) -> None:
    ids = golden_of(path)["long_ids"].tolist()[:70]
    whole = load(path)
    expected, logits = tokens(whole, ids[:5]), whole.infer(ids)
    model = load(path)
    model.experts.set_limits(dict.fromkeys(model.experts.store.layout_counts(), slots))
    model.experts._trial = Always(ahead)  # type: ignore[assignment]
    assert tokens(model, ids[:5]) == expected
    np.testing.assert_array_equal(model.infer(ids), logits)
    assert tokens(model, ids[:5]) == expected
    assert max(live_slots(model.experts).values()) <= slots
    counters = model.experts.counters
    assert counters.evicted > 0 or slots > 2
    assert counters.prefetched == 0 or ahead


@pytest.mark.parametrize("path", PATHS)
def test_a_warm_start(load: Load, path: Path) -> None:
    ids = golden_of(path)["long_ids"].tolist()[:5]
    whole = load(path)
    expected = tokens(whole, ids)
    model = load(path)
    model.experts.set_limits(dict.fromkeys(model.experts.store.layout_counts(), 4))
    model.experts.warm(whole.routing.counts.astype(np.float64))
    assert tokens(model, ids) == expected


def test_an_expert_swapped_and_taken_back(load: Load, tmp_path: Path) -> None:
    source = GOLDEN / "qwen3_moe-quantized" / "model.gguf"
    path = tmp_path / "model.gguf"
    path.write_bytes(source.read_bytes())
    ids = golden_of(source)["long_ids"].tolist()[:40]
    model = load(path)
    before = model.infer(ids)
    export_expert(model.experts.store, 1, tmp_path / "one.gguf")
    for expert in range(model.spec.experts):
        model.swap_expert(expert, tmp_path / "one.gguf")
    changed = model.infer(ids)
    assert not np.array_equal(changed, before)
    np.testing.assert_array_equal(load(path).infer(ids), changed)  # a fresh start uses the replacements
    for expert in range(model.spec.experts):
        model.revert_expert(expert)
    np.testing.assert_array_equal(model.infer(ids), before)


def test_reading_ahead_for_several_sequences(load: Load) -> None:
    path = GOLDEN / "mixtral-window-f16"
    ids = golden_of(path)["long_ids"].tolist()
    prompts = [ids[start : start + 6] for start in (0, 20, 40)]
    whole = load(path)
    expected = [tokens(whole, prompt) for prompt in prompts]
    model = load(path, sequences=3)
    model.experts.set_limits(dict.fromkeys(model.experts.store.layout_counts(), 4))
    model.experts._trial = Always(True)  # type: ignore[assignment]
    running = [model.generate(prompt, GREEDY) for prompt in prompts]
    found = zip(*([(token.id, token.logprob) for token in step] for step in zip(*running, strict=True)), strict=True)
    assert [list(one) for one in found] == expected
    assert model.experts.counters.prefetched > 0


def test_chunks_grow_where_experts_do_not_fit(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    make = [sys.executable, str(TOOL), str(path), "--shape", "tiny", "--experts", "32", "--quantization", "q4_0"]
    subprocess.run(make, check=True, capture_output=True)
    monkeypatch.setattr(loading, "detect_memory", lambda: MachineMemory(1 << 34, 1 << 34, 50 << 20))
    ids = list(range(60))
    whole = load(path, chunk=8, context=100)
    assert whole.engine.decoder.workspace.capacity == 8
    ram = whole.plan.floor + whole.plan.all_expert_bytes // 3
    part = load(path, chunk=8, context=100, ram=ram)
    assert not part.plan.fits
    assert 8 < part.engine.decoder.workspace.capacity <= 100
    assert part.plan.resident_share > 0.3
    np.testing.assert_array_equal(part.infer(ids), whole.infer(ids))
    several = load(path, chunk=8, context=100, sequences=2, ram=ram + whole.plan.needs.cache)
    assert several.engine.decoder.workspace.capacity == 8  # others wait for their tokens meanwhile
