"""What is of the wrong kind is refused by name, wherever a program hands it in: no error from inside comes out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colibri
from colibri.config import LoadOptions, SamplingParams
from colibri.engine.model import Model
from colibri.errors import ArgumentError, ColibriError, ContextFullError

from .conftest import GOLDEN

Load = Callable[..., Model]
TEXT = GOLDEN / "qwen3_moe-gqa-f32"
PARAMS = SamplingParams(temperature=0, max_tokens=2)
MESSAGES = [{"role": "user", "content": "x"}]
VALUES: list[Any] = [
    None, True, 5, -1, 10**400, 1.5, float("nan"), 1j, "", "x", "\0", b"x", (), [], [None], ["a", "b"],
    [[1], [2]], [1.5], [b"x"], [(1, 2, 3)], {}, {"a": 1}, {1: "x"}, {(): ()}, {1, 2}, object(), len, Exception,
    range(3), np.array(3),
    np.array([1.5, 2]), np.array([[1, 2]]), np.array(["a"]), np.array([None]), Path("nowhere"), iter([1, "a"]),
    SamplingParams,
]  # fmt: skip
Use = Callable[[Model, Any], object]


def see(position: int, logits: object) -> None:
    pass


def sampled(model: Model, values: dict[str, Any]) -> None:
    list(model.generate("x", SamplingParams(**{"max_tokens": 2, **values})))


USES: dict[str, Use] = {
    "infer": lambda model, value: model.infer(value),
    "infer_rows ids": lambda model, value: model.infer_rows(value, see),
    "infer_rows see": lambda model, value: model.infer_rows([1, 2], see if callable(value) else value),
    "infer_rows first": lambda model, value: model.infer_rows([1, 2], see, value),
    "generate prompt": lambda model, value: list(model.generate(value, PARAMS)),
    "generate params": lambda model, value: list(model.generate("x", value)),
    "chat messages": lambda model, value: list(model.chat(value, PARAMS)),
    "chat message": lambda model, value: list(model.chat([value], PARAMS)),
    "chat content": lambda model, value: list(model.chat([{"role": "user", "content": value}], PARAMS)),
    "chat role": lambda model, value: list(model.chat([{"role": value, "content": "x"}], PARAMS)),
    "chat params": lambda model, value: list(model.chat(MESSAGES, value)),
    "chat tools": lambda model, value: list(model.chat(MESSAGES, PARAMS, tools=value)),
    "chat_template_kwargs": lambda model, value: list(model.chat(MESSAGES, PARAMS, chat_template_kwargs=value)),
    "swap_expert expert": lambda model, value: model.swap_expert(value, "nowhere.gguf"),
    "swap_expert file": lambda model, value: model.swap_expert(0, value),
    "revert_expert": lambda model, value: model.revert_expert(value),
    "encode": lambda model, value: model.tokenizer.encode(value),
    "decode": lambda model, value: model.tokenizer.decode(value),
    "token_bytes": lambda model, value: model.tokenizer.token_bytes(value),
    "token_id": lambda model, value: model.tokenizer.token_id(value),
    "colibri.infer path": lambda model, value: colibri.infer(value, [1]),
    "colibri.infer ids": lambda model, value: colibri.infer(TEXT, value),
    **{f"SamplingParams {name}": lambda model, value, name=name: sampled(model, {name: value})
       for name in SamplingParams.__dataclass_fields__},
    **{f"LoadOptions {name}": lambda model, value, name=name: LoadOptions(**{name: value})
       for name in LoadOptions.__dataclass_fields__},
    **{f"load {name}": lambda model, value, name=name: colibri.load(**{"model": TEXT, name: value}).close()
       for name in {*LoadOptions.__dataclass_fields__, "model"} - {"beside", "path"}},
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_wrong_kinds_are_refused(load: Load, use: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    model = load(TEXT)
    for value in VALUES:
        if isinstance(value, Iterator):
            value = iter([1, "a"])
        with contextlib.suppress(ColibriError):
            try:
                USES[use](model, value)
            except BaseException as error:
                error.add_note(f"{use}: {value!r:.80}")
                raise
    assert len(list(model.generate("x", PARAMS))) == 2


def test_many_ids_are_counted_before_they_are_looked_at(load: Load) -> None:
    model = load(TEXT)
    for ids in (range(10**9), range(10**30), iter(range(10**12)), np.zeros(10**6, np.int64), [1] * 10_000):
        with pytest.raises((ContextFullError, ArgumentError), match=r"tokens|token id"):
            model.infer(ids)  # type: ignore[arg-type]
    with pytest.raises(ContextFullError, match="1000000000 tokens"):
        model.generate(range(10**9))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda model: model.infer(5), "prompt: found 5, expected a list of token ids"),
        (lambda model: model.infer(b"abc"), "prompt: found b'abc', expected a list"),
        (lambda model: model.generate(["a", 5]), "prompt: found 'a' among the ids"),
        (lambda model: model.generate("x", {"top_k": 1}), r"sampling_params: found {'top_k': 1}, expected .*Params"),
        (lambda model: model.generate("x", {}), "sampling_params: found {}"),
        (lambda model: SamplingParams(logit_bias=5), "logit_bias: found 5, expected a table or pairs"),
        (lambda model: SamplingParams(stop=5), "stop: found 5, expected a text or a list of texts"),
        (lambda model: SamplingParams(temperature=10**5000), "temperature: found a int, expected"),
        (lambda model: colibri.load(5), "model: found 5, expected a path"),
    ],
)
def test_what_is_said_of_them(load: Load, use: Callable[[Model], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        use(load(TEXT))
