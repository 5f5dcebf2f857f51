"""Perplexity: windows, halves and errors as llama.cpp has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colibri.errors import ArgumentError
from colibri.observe.perplexity import negative_log_likelihood, perplexity, summarize

VOCABULARY = 11


class Recorder:
    """A model whose prediction of token t after token s has logit (s * t) % 7, and that remembers its inputs."""

    def __init__(self, add_bos: bool = False) -> None:
        self.context = 64
        self.tokenizer = SimpleNamespace(add_bos=add_bos, bos_id=1)
        self.seen: list[list[int]] = []

    def infer_rows(self, ids: list[int], see: Callable[[int, Any], None], first: int) -> None:
        self.seen.append(ids)
        for start in range(first, len(ids), 3):
            rows = [[(s * t) % 7 for t in range(VOCABULARY)] for s in ids[start : start + 3]]
            see(start, np.array(rows, np.float32))


def expected(ids: list[int], window: int) -> list[float]:
    losses = []
    for start in range(0, len(ids) - window + 1, window):
        for at in range(start + window // 2, start + window - 1):
            logits = np.array([(ids[at] * t) % 7 for t in range(VOCABULARY)], np.float64)
            losses.append(float(np.log(np.exp(logits).sum()) - logits[ids[at + 1]]))
    return losses


@pytest.mark.parametrize("window", [4, 8, 9])
def test_only_the_second_half_of_a_window_counts(window: int) -> None:
    ids = [int(i) for i in np.random.default_rng(3).integers(0, VOCABULARY, 40)]
    losses = expected(ids, window)
    result = perplexity(Recorder(), ids, window)  # type: ignore[arg-type]
    assert result.value == pytest.approx(math.exp(np.mean(losses)))
    assert (result.tokens, result.windows) == (len(losses), 40 // window)
    assert result.error == pytest.approx(result.value * np.std(losses) / math.sqrt(len(losses) - 1))


def test_the_begin_token_takes_the_first_place_of_each_window() -> None:
    model = Recorder(add_bos=True)
    perplexity(model, list(range(2, 10)), 4)  # type: ignore[arg-type]
    assert model.seen == [[1, 3, 4, 5], [1, 7, 8, 9]]


def test_few_windows_and_progress() -> None:
    seen: list[tuple[int, int]] = []
    model: Any = Recorder()
    result = perplexity(model, [2] * 40, 4, most_windows=3, progress=lambda done, count, _: seen.append((done, count)))
    assert result.windows == 3
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(("length", "window", "message"), [(7, 4, "two windows"), (99, 65, "4 to 64"), (99, 3, "4 to")])
def test_impossible_windows(length: int, window: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        perplexity(Recorder(), [1] * length, window)  # type: ignore[arg-type]


def test_losses_of_many_rows() -> None:
    logits = np.random.default_rng(1).normal(size=(150, 30)).astype(np.float32) * 50
    targets = [i % 30 for i in range(150)]
    wide = logits.astype(np.float64)
    peak = wide.max(axis=1)
    whole = np.log(np.exp(wide - peak[:, None]).sum(axis=1)) + peak - wide[np.arange(150), targets]
    np.testing.assert_allclose(negative_log_likelihood(logits, targets), whole, rtol=1e-12)
    assert summarize(np.zeros(5), 1).value == 1
