"""What Python programs and notebooks write."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

import jsonschema
import pytest

import colibri
from colibri.config import SamplingParams
from colibri.engine.model import Model
from colibri.errors import ArgumentError, UnsupportedError

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


def test_a_list_of_conversations(model: Model) -> None:
    questions = [[{"role": "user", "content": text}] for text in ("And the king?", "In the beginning?")]
    alone = [model.chat(question, PARAMS).text for question in questions]
    steps = model.engine.steps
    assert [generation.text for generation in model.chat(questions, PARAMS)] == alone
    assert model.engine.steps - steps < 2 * 12 + 3
    waiting = model.engine.waiting
    with pytest.raises(ArgumentError, match="role"):
        model.chat([*questions, [{"content": "no role"}]], PARAMS)
    assert model.engine.waiting == waiting


SCHEMA = {
    "type": "object", "properties": {"name": {"enum": ["king", "servant"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"], "additionalProperties": False,
}  # fmt: skip


class Person:
    """As a pydantic model says what it is."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return SCHEMA


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA), Person], ids=["dict", "text", "class"])
def test_a_text_of_a_schema(model: Model, schema: Any) -> None:
    message = [{"role": "user", "content": "Who?"}]
    for seed in range(3):
        wanted = {"json_schema": schema, "max_tokens": 60, "temperature": 1.5, "seed": seed}
        for generation in (model.generate("He said", **wanted), model.chat(message, **wanted)):
            jsonschema.validate(json.loads(generation.text), SCHEMA)
            assert generation.finish_reason == "stop"


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": r"[0-9]{3}-[a-f]{2}"}, r"[0-9]{3}-[a-f]{2}"),
        ({"choice": ["a \"quoted\" word", "größer", "back\\slash"]}, r'a "quoted" word|größer|back\\slash'),
        ({"grammar": 'start: "x" NUMBER\nNUMBER: /[1-9]+/'}, r"x[1-9]+"),
        ({"grammar": 'root ::= "y" [1-9]'}, r"y[1-9]"),
    ],
)
def test_a_text_of_a_pattern(model: Model, constraint: dict[str, Any], pattern: str) -> None:
    for seed in range(4):
        params = SamplingParams(max_tokens=40, temperature=1.5, seed=seed, **constraint)
        texts = [model.generate("He said", params).text, *(made.text for made in model.generate(["a", "b"], params))]
        assert all(re.fullmatch(pattern, text) for text in texts), texts


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"json_schema": {"type": "nothing"}}, "json_schema: "),
        ({"json_schema": "{"}, "json_schema: is no JSON"),
        ({"json_schema": 5}, "json_schema: found 5, expected a schema as a dict, as JSON, or a pydantic model"),
        ({"json_schema": {"a": object()}}, "json_schema: is no JSON"),
        ({"regex": "["}, "regex: "),
        ({"regex": 5}, "regex: found 5, expected a text"),
        ({"choice": ["\ud800"]}, r"choice: found '\\ud800', expected a text without"),
        ({"json_schema": {"enum": ["\ud800"]}}, "json_schema: "),
        ({"choice": []}, r"choice: found \(\), expected some texts"),
        ({"choice": "yes"}, "choice: found 'yes', expected a text or a list"),
        ({"grammar": "start: other"}, "grammar: "),
        ({"regex": "a", "choice": ["a"]}, "regex and choice: exclude each other"),
    ],
)
def test_constraints_that_are_none(model: Model, constraint: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        model.generate("a", **constraint)


def test_constraints_without_the_library(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match="pip install llguidance"):
        model.generate("a", regex="a+")


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
