"""Guesses change no token, no probability, no count: rejected at every place, in every kind of layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colibri
from colibri.config import SamplingParams
from colibri.engine import verdict
from colibri.engine.model import Model
from colibri.engine.sequence import Sequence
from colibri.errors import ArgumentError
from colibri.speculation.lookup import Guess

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = {
    "demo": None,
    "olmoe": GOLDEN / "olmoe-linear-f32",
    "windows": GOLDEN / "families" / "gemma4_text-tied-bf16",
    "latent": GOLDEN / "families" / "deepseek_v2-lite-f32",
    "delta net": GOLDEN / "families" / "qwen3_next-f32",
    "Mamba2": GOLDEN / "families" / "granitemoehybrid-groups-bf16",
    "convolutions": GOLDEN / "families" / "lfm2_moe-f32",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "likeliest": {"temperature": 0.0},
    "sampled": {"temperature": 0.4, "seed": 7},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.05, "frequency_penalty": 0.1, "top_logprobs": 3},
}
PROMPT = [(7 * number) % 11 + 5 for number in range(11)] * 4
Answer = list[tuple[int, str, float, Any]]


def answer(model: Model, prompt: list[int] = PROMPT, **settings: Any) -> Answer:
    params = SamplingParams(**{"max_tokens": 60, "ignore_eos": True} | settings)
    return [tuple(token) for token in model.generate(prompt, params)]  # type: ignore[misc]


@pytest.fixture(params=MODELS)
def path(request: pytest.FixtureRequest) -> Path | None:
    return MODELS[request.param]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_the_tokens_are_those_without_guesses(path: Path | None, settings: dict[str, Any]) -> None:
    with colibri.load(path, speculate="off") as model:
        expected = answer(model, **settings)
        counts = model.routing.counts
    for speculate in ("auto", 1, 5):
        with colibri.load(path, speculate=speculate) as model:
            assert answer(model, **settings) == expected, speculate
            assert (model.routing.counts == counts).all()


def test_a_text_that_repeats_itself_is_guessed() -> None:
    with colibri.load(MODELS["olmoe"], speculate=4) as model:
        answer(model, temperature=0.0)
        assert model.engine.accepted > 20
        assert model.engine.steps < 40


class Planted:
    """Guesses that are right up to `wrong`, from an answer that is known."""

    def __init__(self, ids: list[int], wrong: int) -> None:
        self.ids, self.wrong = ids, wrong

    def __call__(self, sequence: Sequence, most: int, least: float = 0.0) -> list[Guess]:
        at = len(sequence.generated)
        most = min(most, sequence.max_tokens - at - 1)
        guesses = self.ids[at : at + most]
        if self.wrong < len(guesses):
            guesses[self.wrong] = (guesses[self.wrong] + 1) % 50
        return [Guess(token, 0.9) for token in guesses]


@pytest.mark.parametrize("wrong", range(5))
@pytest.mark.parametrize("share", [False, True])
def test_a_wrong_guess_at_every_place(
    path: Path | None, wrong: int, share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with colibri.load(path, speculate="off") as model:
        expected = answer(model, temperature=0.8, seed=3)
        longer = answer(model, [*PROMPT, *(token[0] for token in expected[:30]), 7], temperature=0.0)
    planted = Planted([token[0] for token in expected], wrong)
    monkeypatch.setattr(Sequence, "guesses", lambda self, most, least=0.0: planted(self, most, least))
    with colibri.load(path, speculate=4, share_prefixes=share) as model:
        assert answer(model, temperature=0.8, seed=3) == expected
        assert model.engine.guessed > model.engine.accepted or wrong == 4
        assert model.engine.accepted > 0 or wrong == 0
        monkeypatch.undo()
        assert answer(model, [*PROMPT, *(token[0] for token in expected[:30]), 7], temperature=0.0) == longer


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """The demo's answer, which is then guessed rightly."""
    with colibri.load(speculate="off") as model:
        expected = answer(model, temperature=0.0)
    planted = Planted([token[0] for token in expected], 99)
    monkeypatch.setattr(Sequence, "guesses", lambda self, most, least=0.0: planted(self, most, least))
    return expected


@pytest.mark.parametrize("length", range(1, 12))
def test_the_end_inside_of_guesses(known: Answer, length: int) -> None:
    with colibri.load(speculate=5) as model:
        assert answer(model, temperature=0.0, max_tokens=length) == known[:length]
    with colibri.load(speculate=5, context=len(PROMPT) + length) as model:
        assert answer(model, temperature=0.0) == known[:length]


def test_an_end_token_inside_of_guesses(known: Answer) -> None:
    with colibri.load(speculate=5) as model:
        ids = [token[0] for token in known]
        place = max(place for place in range(40) if ids[place] not in ids[:place])
        assert place > 1
        params = SamplingParams(max_tokens=60, temperature=0.0)
        sequence = Sequence(PROMPT, params, 60, {ids[place]}, None)
        model.engine.add(sequence)
        while sequence.finish_reason is None:
            model.engine.step()
        assert sequence.generated == ids[:place]
        assert sequence.finish_reason == "stop"
        assert model.engine.accepted > 0
        assert answer(model, temperature=0.0) == known


def test_a_stop_string_across_guesses(known: Answer) -> None:
    text = "".join(token[1] for token in known)
    stop = text[20:27]
    with colibri.load(speculate=5) as model:
        params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True, stop=(stop,))
        generation = model.generate(PROMPT, params)
        assert "".join(token.text for token in generation) == text[: text.index(stop)]
        assert generation.stop_text == stop


def test_cancelled_between_guess_and_verdict(known: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    with colibri.load(speculate=5, sequences=2) as model:
        params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
        gone, other = (model.generate(PROMPT, params) for _ in "ab")
        decide = verdict.Verdict.__call__

        def cancelled(self: Any, work: Any, logits: Any) -> list[int]:
            if model.engine.steps == 4:
                gone._sequence.cancel()
            return decide(self, work, logits)

        monkeypatch.setattr(verdict.Verdict, "__call__", cancelled)
        assert [tuple(token) for token in other] == known
        assert gone.finish_reason == "cancelled"
        other.close()
        assert model.engine.running == 0
        assert model.engine.cache.free_blocks == model.engine.cache.blocks


def test_several_sequences_together() -> None:
    prompts = [PROMPT, PROMPT[3:], [9, 9, 9, 8] * 5, [5, 6] * 20]

    def all_of(speculate: Any, **options: Any) -> list[list[int]]:
        with colibri.load(speculate=speculate, sequences=4, **options) as model:
            params = [SamplingParams(max_tokens=50, temperature=0.3, seed=seed, ignore_eos=True) for seed in range(4)]
            made = [model.generate(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
            return [[token.id for token in generation] for generation in made]

    expected = all_of("off")
    for speculate in ("auto", 3, 15):
        for options in ({}, {"threads": 1}, {"chunk": 7}, {"share_prefixes": True}):
            assert all_of(speculate, **options) == expected


class Spelled:
    """A constraint that leaves one token at each place."""

    def __init__(self, ids: list[int], size: int) -> None:
        self.left, self.size = list(ids), size

    def allowed(self) -> np.ndarray:
        allowed = np.zeros(self.size, np.bool_)
        allowed[self.left[0]] = True
        return allowed

    def accept(self, token: int) -> bool:
        assert token == self.left.pop(0)
        return not self.left

    def forced(self) -> list[int]:
        return list(self.left)


def test_what_a_grammar_forces_is_guessed() -> None:
    with colibri.load(speculate=6) as model:
        ids = [9, 30, 31, 32, 33, 34, 35, 36]
        params = SamplingParams(max_tokens=30, temperature=0.0)
        sequence = model.sequence([5, 6, 7], params, constraint=Spelled(ids, model.spec.vocab_size))
        model.engine.add(sequence)
        while sequence.finish_reason is None:
            model.engine.step()
        assert sequence.generated == ids
        assert model.engine.steps <= 3


def test_a_prediction_is_guessed() -> None:
    with colibri.load(speculate=8) as model:
        params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        expected = [token.id for token in model.generate(PROMPT, params)]
        steps = model.engine.steps
        sequence = model.sequence(PROMPT, params, prediction=expected)
        model.engine.add(sequence)
        while sequence.finish_reason is None:
            model.engine.step()
        assert sequence.generated == expected
        assert model.engine.steps - steps <= 10


def test_a_prediction_of_tokens_that_are_not_there_is_refused() -> None:
    with colibri.load() as model:
        for ids in ([10**9], [-1], ["a"], [5, 1.5]):
            with pytest.raises(ArgumentError, match="prediction: "):
                model.sequence(PROMPT, SamplingParams(), prediction=ids)  # type: ignore[arg-type]


class Broken(Spelled):
    """A constraint that fails while its text goes on."""

    def forced(self) -> list[int]:
        raise ArgumentError("the grammar has become too complex")


def test_a_constraint_that_cannot_be_asked_ends_its_sequence() -> None:
    with colibri.load(speculate=2) as model:
        params = SamplingParams(max_tokens=30, temperature=0.0)
        sequence = model.sequence([5, 6, 7], params, constraint=Broken([9, 30, 31], model.spec.vocab_size))
        model.engine.add(sequence)
        while sequence.finish_reason is None:
            model.engine.step()
        assert "too complex" in str(sequence.error)
        assert model.engine.cache.free_blocks == model.engine.cache.blocks
        assert answer(model, temperature=0.0)


@pytest.mark.parametrize("value", [-1, 16, 1.5, "on", None, True])
def test_what_is_no_setting_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="speculate"):
        colibri.load(speculate=value)
