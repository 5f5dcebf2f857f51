"""What Python programs and notebooks write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import colibri
from colibri.config import SamplingParams
from colibri.engine.model import Model
from colibri.errors import ArgumentError

PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> Any:
    with colibri.load(sequences=4) as loaded:
        yield loaded


def test_parameters_by_name(model: Model) -> None:
    expected = [token.id for token in model.generate("And the king", PARAMS)]
    by_name = model.generate("And the king", max_tokens=12, temperature=0, ignore_eos=True)
    changed = model.generate("And the king", SamplingParams(seed=1, ignore_eos=True), max_tokens=12, temperature=0)
    assert [token.id for token in by_name] == [token.id for token in changed] == expected
    with pytest.raises(ArgumentError, match=r"maxtokens: is no sampling parameter; there are max_tokens, "):
        model.generate("a", maxtokens=3)
    with pytest.raises(ArgumentError, match="temperature: found -1"):
        model.chat([{"role": "user", "content": "a"}], temperature=-1)


def test_a_list_of_prompts(model: Model) -> None:
    prompts = ["And the king", "In the beginning", "def main():"]
    alone = [model.generate(prompt, PARAMS).text for prompt in prompts]
    together = model.generate(prompts, PARAMS)
    steps = model.engine.steps
    assert [generation.text for generation in together] == alone
    assert model.engine.steps - steps < 2 * 12 + 3  # not one after the other
    ids = [model.tokenizer.encode(prompt) for prompt in prompts]
    assert [[token.id for token in each] for each in model.generate(ids, PARAMS)] == [
        [token.id for token in model.generate(own, PARAMS)] for own in ids
    ]
    before = model.engine.waiting
    with pytest.raises(ArgumentError, match="no tokens"):
        model.generate([[1, 2], []], PARAMS)
    assert model.engine.waiting == before
    with pytest.raises(ArgumentError, match="expected integers"):
        model.generate(["a", 5], PARAMS)  # type: ignore[list-item]


def test_the_text_waits_and_nothing_is_lost_to_iteration(model: Model) -> None:
    whole = [token.text for token in model.generate("And the king", PARAMS)]
    generation = model.generate("And the king", PARAMS)
    first = next(generation).text
    assert generation.text == "".join(whole)
    assert generation.finish_reason == "length"
    assert [first, *(token.text for token in generation)] == whole
    closed = model.generate("And the king", PARAMS)
    next(closed)
    closed.close()
    assert "".join(whole).startswith(closed.text)


def test_an_async_iterator(model: Model) -> None:
    async def collected(prompt: str) -> list[int]:
        return [token.id async for token in model.generate(prompt, PARAMS)]

    async def both() -> list[list[int]]:
        return await asyncio.gather(collected("And the king"), collected("In the beginning"))

    prompts = "And the king", "In the beginning"
    expected = [[token.id for token in model.generate(prompt, PARAMS)] for prompt in prompts]
    assert asyncio.run(both()) == expected


def test_what_a_notebook_shows(model: Model) -> None:
    assert repr(model).startswith("<colibri.Model Colibri demo: llama, 7 layers, ")
    assert f"{model.spec.experts_per_token} of {model.spec.experts} experts" in repr(model)
    generation = model.generate("And the king", PARAMS)
    assert "goes on, 0 tokens" in repr(generation)
    assert generation.text[:8] in repr(generation)
    assert "length, 12 tokens" in repr(generation)


@pytest.mark.parametrize("ram", ["1G", "1GiB", "1073741824", " 1 g "])
def test_memory_as_a_text(ram: str) -> None:
    with colibri.load(ram=ram) as model:
        assert model.plan.budget == 1 << 30


@pytest.mark.parametrize("ram", ["", "lots", "1X", "0", "-1G"])
def test_memory_that_is_none(ram: str) -> None:
    with pytest.raises(ArgumentError, match="ram: "):
        colibri.load(ram=ram)
