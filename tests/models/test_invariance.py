"""Threads, chunks, batches, budgets and cache reuse change speed, never a bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri.config import SamplingParams
from colibri.engine.model import Model

from .conftest import GOLDEN, golden_of

Load = Callable[..., Model]
PATHS = [
    pytest.param(GOLDEN / "mixtral-window-f16", id="mixtral-window-f16"),
    pytest.param(GOLDEN / "qwen3_moe-quantized" / "model.gguf", id="qwen3_moe-quantized"),
    pytest.param(GOLDEN / "olmoe-clip-bf16", id="olmoe-clip-bf16"),
]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def long_ids(path: Path) -> list[int]:
    ids: list[int] = golden_of(path)["long_ids"].tolist()
    return ids[:300]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_chunks_of_the_prompt(load: Load, path: Path, chunk: int) -> None:
    ids = long_ids(path)
    np.testing.assert_array_equal(load(path, chunk=chunk).infer(ids), load(path, chunk=512).infer(ids))


@pytest.mark.parametrize("path", PATHS)
def test_number_of_threads(load: Load, path: Path) -> None:
    ids = long_ids(path)
    one = load(path, threads=1).infer(ids)
    for threads in (2, 3):
        np.testing.assert_array_equal(load(path, threads=threads).infer(ids), one)


@pytest.mark.parametrize("path", PATHS)
def test_a_prefix_has_the_logits_of_the_whole(load: Load, path: Path) -> None:
    model, ids = load(path), long_ids(path)
    whole = model.infer(ids)
    for length in (1, 2, 15, 16, 17, 255, 256, 257):
        np.testing.assert_array_equal(model.infer(ids[:length]), whole[:length])


@pytest.mark.parametrize("path", PATHS)
def test_generation_follows_the_logits_of_infer(load: Load, path: Path) -> None:
    model = load(path)
    prompt = golden_of(path)["ids"].tolist()
    generation = model.generate(prompt, GREEDY)
    tokens = list(generation)
    assert generation.finish_reason == "length"
    logits = model.infer(prompt + generation.token_ids)
    for step, token in enumerate(tokens):
        row = logits[len(prompt) - 1 + step]
        assert token.id == int(row.argmax())
        wide = row.astype(np.float64)
        expected = wide[token.id] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        assert token.logprob == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_sequences_in_one_batch_and_one_after_another(load: Load, path: Path) -> None:
    ids = long_ids(path)
    prompts = [ids[:3], ids[3:290], ids[50:51], ids[100:140], ids[:3]]
    alone = load(path)
    expected = [[(token.id, token.logprob) for token in alone.generate(prompt, GREEDY)] for prompt in prompts]
    together = load(path, sequences=5, chunk=32)
    running = [together.generate(prompt, GREEDY) for prompt in prompts]
    found: list[list[tuple[int, float]]] = [[] for _ in prompts]
    for _ in range(GREEDY.max_tokens or 0):
        for place, generation in enumerate(running):
            token = next(generation)
            found[place].append((token.id, token.logprob))
    assert found == expected


@pytest.mark.parametrize("path", PATHS)
def test_cache_blocks_are_used_again(load: Load, path: Path) -> None:
    """What an earlier sequence left in a block is never seen."""
    ids = long_ids(path)
    fresh = load(path).infer(ids[:20])
    model = load(path)
    model.infer(ids)
    list(model.generate(ids[:280], GREEDY))
    np.testing.assert_array_equal(model.infer(ids[:20]), fresh)


@pytest.mark.parametrize("path", PATHS)
def test_few_slots_for_experts(load: Load, path: Path) -> None:
    ids = long_ids(path)
    expected = load(path).infer(ids)
    floor = load(path).plan.floor
    model = load(path, ram=floor + (8 << 20))
    np.testing.assert_array_equal(model.infer(ids), expected)


@pytest.mark.parametrize("path", PATHS)
def test_same_seed_same_tokens(load: Load, path: Path) -> None:
    model = load(path)
    params = SamplingParams(temperature=1.5, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.1, seed=7,
                            max_tokens=20, ignore_eos=True)  # fmt: skip
    first = [token.id for token in model.generate([5, 6, 7], params)]
    assert [token.id for token in model.generate([5, 6, 7], params)] == first
    other = SamplingParams(temperature=1.5, seed=8, max_tokens=20, ignore_eos=True)
    assert [token.id for token in model.generate([5, 6, 7], other)] != first
