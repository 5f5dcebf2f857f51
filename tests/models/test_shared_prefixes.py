"""Prompts that begin alike share keys and values, and nothing else changes: the tokens are those of a prompt alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri.cache.prefix import LEAST_COPIED
from colibri.config import KvType, SamplingParams
from colibri.engine.model import Model

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
LONG = GOLDEN / "qwen3_moe-gqa-f32"
PARAMS = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, top_logprobs=2)
Load = Callable[..., Model]


def generated(model: Model, ids: list[int]) -> tuple[list[object], int]:
    """All that is said of each token, and how many tokens of the prompt were found in the cache."""
    generation = model.generate(ids, PARAMS)
    tokens = list(generation)
    return [(token.id, token.logprob, token.top) for token in tokens], generation.cached


@pytest.fixture
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    system = rng.integers(0, 60, 300).tolist()
    chat = [*system, *rng.integers(0, 60, 40).tolist()]
    other = [*system, *rng.integers(0, 60, 25).tolist()]
    return [chat, other, [*chat, *rng.integers(0, 60, 30).tolist()], chat]


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_tokens_and_logprobs_are_those_of_a_prompt_alone(load: Load, prompts: list[list[int]], kind: KvType) -> None:
    alone = load(LONG, context=512, kv_type=kind)
    shared = load(LONG, context=512, kv_type=kind, sequences=3, share_prefixes=True)
    expected = [generated(alone, ids) for ids in prompts]
    found = [generated(shared, ids) for ids in prompts]
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert [cached for _, cached in expected] == [0, 0, 0, 0]
    assert [cached for _, cached in found] == [0, 300, 340, 339]


def test_a_prompt_that_joins_shares_with_one_that_still_runs(load: Load, prompts: list[list[int]]) -> None:
    alone, shared = load(LONG, context=512), load(LONG, context=512, sequences=3, share_prefixes=True)
    expected = [generated(alone, ids)[0] for ids in prompts[:2]]
    first = shared.generate(prompts[0], PARAMS)
    tokens = [next(first)]
    assert generated(shared, prompts[1]) == (expected[1], 300)
    tokens += list(first)
    assert [(token.id, token.logprob, token.top) for token in tokens] == expected[0]


@pytest.mark.parametrize("chunk", [512, 64, 7])
def test_prompts_that_come_together_compute_their_common_beginning_once(
    load: Load, prompts: list[list[int]], chunk: int
) -> None:
    alone = load(LONG, context=512)
    shared = load(LONG, context=512, sequences=8, share_prefixes=True, chunk=chunk)
    together = [prompts[0], prompts[1], prompts[0], [9, *prompts[0]], prompts[0][:20], prompts[0][:10], prompts[0]]
    expected = [generated(alone, ids)[0] for ids in together]
    running = [shared.sequence(ids, PARAMS) for ids in together]
    for sequence in running:
        shared.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in running):
        shared.engine.step()
    found = [[(token.id, token.logprob, token.top) for token in sequence.output] for sequence in running]
    assert found == expected
    cached = [sequence.cached for sequence in running]
    assert cached[0] == cached[3] == cached[5] == 0  # the first, another text, one too short to be worth a copy
    assert cached[2] == cached[6] == 339  # all but the token whose logits are wanted
    assert 300 - LEAST_COPIED < cached[1] <= 300
    assert cached[4] == (19 if chunk > LEAST_COPIED else 0)  # what is left to share is not worth it either
    computed = sum(len(ids) for ids in together) - sum(cached)
    assert computed <= len(prompts[0]) + len(together[3]) + 25 + LEAST_COPIED + 20 + 10 + 2
    assert shared.engine.cache.free_blocks == shared.engine.cache.blocks


def test_one_that_waits_for_a_beginning_goes_on_when_the_other_leaves(load: Load, prompts: list[list[int]]) -> None:
    alone = load(LONG, context=512)
    model = load(LONG, context=512, sequences=3, share_prefixes=True, chunk=64)
    first, second = (model.sequence(prompts[0], PARAMS) for _ in range(2))
    model.engine.add(first)
    model.engine.add(second)
    for _ in range(2):
        model.engine.step()
    assert (model.engine.running, model.engine.waiting) == (1, 1)
    model.engine.cancel(first)
    while second.finish_reason is None:
        model.engine.step()
    assert second.cached == 128
    assert [(token.id, token.logprob, token.top) for token in second.output] == generated(alone, prompts[0])[0]


def test_a_dropped_prompt_leaves_what_it_has_computed(load: Load, prompts: list[list[int]]) -> None:
    model = load(LONG, context=512, sequences=2, chunk=64, share_prefixes=True)
    generation = model.generate(prompts[0], PARAMS)
    for _ in range(3):
        model.engine.step()
    generation.close()
    assert model.engine.cache.free_blocks == model.engine.cache.blocks
    assert generated(model, prompts[0])[1] == 192


def test_a_replaced_expert_makes_all_of_it_worthless(load: Load, prompts: list[list[int]]) -> None:
    model = load(LONG, context=512, sequences=2, share_prefixes=True)
    generated(model, prompts[0])
    assert generated(model, prompts[0])[1] == 339
    model.experts.store.replace(0, None)
    assert generated(model, prompts[0])[1] == 0
    assert generated(model, prompts[0])[1] == 339


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("chunk", [640, 64])
def test_a_full_cache_makes_the_latest_wait_and_changes_no_token(load: Load, share: bool, chunk: int) -> None:
    """Six blocks for nine sequences that grow to three each; those that start too early give theirs to older ones."""
    alone = load(LONG, context=640)
    small = load(LONG, context=640, sequences=2, share_prefixes=share, chunk=chunk)
    rng = np.random.default_rng(8)
    lengths = [20, 30, 240, 250, 255, 256, 257, 20, 40]
    prompts = [rng.integers(0, 60, length).tolist() for length in lengths]
    params = [
        SamplingParams(
            max_tokens=600 - length, temperature=place % 2, seed=place, ignore_eos=True, frequency_penalty=0.2
        )
        for place, length in enumerate(lengths)
    ]
    expected = [list(alone.generate(*given)) for given in zip(prompts, params, strict=True)]
    waiting = [small.sequence(*given) for given in zip(prompts, params, strict=True)]
    for sequence in waiting:
        small.engine.add(sequence)
    order: list[int] = []
    together = 0
    while any(sequence.finish_reason is None for sequence in waiting):
        before = small.engine.steps
        small.engine.step()
        assert small.engine.steps > before, "nothing runs, and there are some that wait"
        order += [place for place, each in enumerate(waiting) if each.lease is not None and place not in order]
        together = max(together, small.engine.running)
    assert together > 2  # as many as two whole contexts
    assert order == sorted(order)  # none is overtaken for want of room
    assert waiting[0].preempted == 0
    assert small.engine.preemptions == sum(sequence.preempted for sequence in waiting) >= 2
    assert [sequence.finish_reason for sequence in waiting] == ["length"] * 9
    assert [list(sequence.output) for sequence in waiting] == expected
    assert {sequence.cached for sequence in waiting} == {0}  # what was computed for themselves does not count
    assert small.engine.cache.free_blocks == small.engine.cache.blocks


def test_who_lost_its_place_does_not_hold_up_those_that_wait(load: Load) -> None:
    """It has grown, and they would wait for as much room as it needs."""
    model = load(LONG, context=640, sequences=2, speculate="off")  # in step with one another
    prompts = [([token], 560 + 20 * token) for token in range(3)] + [([9, token], 20) for token in range(3)]
    everyone = [
        model.sequence(prompt, SamplingParams(max_tokens=most, temperature=0, ignore_eos=True))
        for prompt, most in prompts
    ]
    for sequence in everyone[:3]:
        model.engine.add(sequence)
    while model.engine.cache.free_blocks:
        model.engine.step()
    for sequence in everyone[3:]:
        model.engine.add(sequence)
    order: list[int] = []
    while any(sequence.finish_reason is None for sequence in everyone):
        model.engine.step()
        if everyone[2].preempted:
            order += [place for place in range(2, 6) if everyone[place].lease and place not in order]
    assert [sequence.preempted for sequence in everyone] == [0, 0, 1, 0, 0, 0]
    assert order == [3, 4, 5, 2]


def test_a_watcher_sees_each_position_once_though_its_sequence_is_preempted(load: Load) -> None:
    alone, small = load(LONG, context=640), load(LONG, context=640, sequences=1, share_prefixes=True, chunk=32)
    rng = np.random.default_rng(3)
    older, prompt = rng.integers(0, 60, 250).tolist(), rng.integers(0, 60, 250).tolist()
    seen: list[tuple[int, bytes]] = []
    params = SamplingParams(max_tokens=300, temperature=0, ignore_eos=True)
    first = small.sequence(older, params)
    watched = small.sequence(
        prompt, params, prompt_watcher=lambda position, logits: seen.append((position, logits.tobytes()))
    )
    small.engine.add(first)
    for _ in range(4):  # so that it needs a block while the other's prompt is computed
        small.engine.step()
    small.engine.add(watched)
    while watched.finish_reason is None:
        small.engine.step()
    assert watched.preempted
    logits = alone.infer(prompt)
    assert seen == [(place, row.tobytes()) for place, row in enumerate(logits)]
    assert [token.id for token in watched.output] == [token.id for token in alone.generate(prompt, params)]


def test_a_preempted_sequence_can_be_cancelled(load: Load) -> None:
    model = load(LONG, context=640, sequences=2, share_prefixes=True)
    params = SamplingParams(max_tokens=600, temperature=0, ignore_eos=True)
    running = [model.sequence([token], params) for token in range(3)]
    for sequence in running:
        model.engine.add(sequence)
    while not running[2].preempted:
        model.engine.step()
    model.engine.cancel(running[2])
    assert model.engine.waiting == 0
    while any(sequence.finish_reason is None for sequence in running):
        model.engine.step()
    assert [sequence.finish_reason for sequence in running] == ["length", "length", "cancelled"]
    assert model.engine.cache.free_blocks == model.engine.cache.blocks
