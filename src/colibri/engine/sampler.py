"""From logits to tokens, for all sequences of a step together.

The order is that of transformers' generate: repetition penalty, then presence and frequency penalties and biases as in
the OpenAI API, temperature, top-k, top-p, min-p; then one draw.
Every tie goes to the lower id and the draws come from a counter-based generator (Philox), so that a seed gives the same
tokens on every machine.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from colibri import ops
from colibri.config import SamplingParams
from colibri.errors import ArgumentError, ColibriError, NumericalError

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

LIKELIEST = (0.0, 0.0, 1.0, 0.0, 0.0)  # settings of ops.sample: temperature, top_k, top_p, min_p, the draw
MOST_KEPT = 1 << 31  # more tokens than any vocabulary has


class Choice(NamedTuple):
    """A token, ln of its probability in the model's own distribution, and the likeliest tokens with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """How one sequence wants its tokens chosen."""

    def __init__(self, params: SamplingParams, prompt_length: int = 0) -> None:
        self.params = params
        self._prompt_length = prompt_length
        self._generator = Generator(Philox(params.seed))
        self._filters = (params.temperature, min(params.top_k, MOST_KEPT), params.top_p, params.min_p)
        self._history = array("q")  # as far as it was needed
        self._chosen = Counter[int]()  # how often each token was chosen, as far as it was needed
        penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty
        self.changes = penalties != (0, 0, 1) or bool(params.logit_bias)

    def settings(self) -> tuple[float, ...]:
        """Those of the next token, as `ops.sample` takes them; each call is a new draw."""
        return LIKELIEST if self.params.temperature == 0 else (*self._filters, self._generator.random())

    def changed(self, logits: F32, history: Sequence[int]) -> F32:
        """The logits (vocab,) after penalties and biases, where it `changes` them.

        Raises NumericalError when a penalty makes one overflow, ArgumentError for a bias on a token that is not there.
        """
        params = self.params
        scores = logits.copy()
        known = len(self._history)
        self._history.extend(history[known:])
        self._chosen.update(history[max(known, self._prompt_length) :])
        if params.repetition_penalty != 1:
            penalize(scores, self._history, params.repetition_penalty)
        self._shift(scores)
        if not math.isfinite(float(np.abs(scores).max())):
            raise NumericalError("sampling: a penalty or a bias made a logit overflow; nothing was sampled")
        return scores

    def _shift(self, scores: F32) -> None:
        """Add biases and take penalties off; the scores are changed in place."""
        params = self.params
        for token, bias in params.logit_bias:
            if token >= len(scores):
                raise ArgumentError(f"logit_bias: found token {token}, expected 0..{len(scores) - 1}")
            scores[token] += bias
        chosen, count = self._chosen, len(self._chosen)
        times = np.fromiter(chosen.values(), np.float64, count)
        penalties = params.presence_penalty + times * params.frequency_penalty
        scores[np.fromiter(chosen, np.int64, count)] -= penalties.astype(np.float32)


class Wish(NamedTuple):
    """One row of a choice: whose it is, the tokens so far, and which may be chosen (vocab,), at least one."""

    sampler: Sampler
    history: Sequence[int]
    allowed: Mask | None = None

    @property
    def changes(self) -> bool:
        """Whether it is not by the model's own logits."""
        return self.sampler.changes or self.allowed is not None

    def scores(self, logits: F32) -> F32:
        """The logits (vocab,) to choose by, where it `changes` them."""
        scores = self.sampler.changed(logits, self.history) if self.sampler.changes else logits
        return scores if self.allowed is None else np.where(self.allowed, scores, np.float32(-np.inf))


class Chooser:
    """Chooses tokens for up to `rows` sequences at a time; for one step at a time."""

    def __init__(self, rows: int) -> None:
        self._tokens = np.empty(rows, np.int32)
        self._norms = np.empty(rows)
        self._settings = np.empty((rows, len(LIKELIEST)))

    def __call__(self, logits: F32, wishes: Sequence[Wish]) -> list[Choice | ColibriError]:
        """The choice for each row of logits (n, vocab), or what is wrong with it: NumericalError, ArgumentError."""
        count = len(wishes)
        tokens, norms, settings = self._tokens[:count], self._norms[:count], self._settings[:count]
        settings[:] = [wish.sampler.settings() for wish in wishes]
        ops.sample(tokens, norms, logits, settings)
        log_sums = norms.tolist()
        damaged = [row for row, norm in enumerate(log_sums) if not math.isfinite(norm)]
        errors: dict[int, ColibriError] = {row: _damaged() for row in damaged}
        changed = [row for row, wish in enumerate(wishes) if wish.changes and row not in errors]
        if changed:
            self._change(logits, wishes, changed, errors)
        return [
            errors.get(row) or _choice(token, logits[row], norm, wish.sampler.params.top_logprobs)
            for row, (wish, token, norm) in enumerate(zip(wishes, tokens.tolist(), log_sums, strict=True))
        ]

    def _change(self, logits: F32, wishes: Sequence[Wish], rows: list[int], errors: dict[int, ColibriError]) -> None:
        """Choose again for the rows that are not to be chosen by the model's own logits."""
        scores: dict[int, F32] = {}
        for row in rows:
            try:
                scores[row] = wishes[row].scores(logits[row])
            except ColibriError as error:
                errors[row] = error
        if scores:
            good, tokens = list(scores), np.empty(len(scores), np.int32)
            ops.sample(tokens, np.empty(len(scores)), np.stack(list(scores.values())), self._settings[good])
            self._tokens[good] = tokens


def _choice(token: int, logits: F32, norm: float, count: int) -> Choice:
    """Of a token chosen from logits (vocab,) whose exponentials add up to exp(norm), with `count` of the likeliest."""
    likeliest = tuple((int(i), float(logits[i]) - norm) for i in top(logits, count)) if count else ()
    return Choice(token, logits.item(token) - norm, likeliest)


def _damaged() -> NumericalError:
    return NumericalError("output: a logit is a NaN or an infinity; the weights are damaged, nothing was sampled")


def log_sum_exp(logits: F32) -> float:
    """ln of the sum of exp(logits) (vocab,); NumericalError when one is not finite."""
    norm = np.empty(1)
    ops.sample(np.empty(1, np.int32), norm, logits[np.newaxis], np.array([LIKELIEST]))
    if not math.isfinite(norm[0]):
        raise _damaged()
    return float(norm[0])


def penalize(scores: F32, history: Sequence[int], penalty: float) -> None:
    """Make the tokens of the history less likely (arXiv 1909.05858): positive logits are divided, others multiplied."""
    seen = np.asarray(history, np.int64)
    values = scores[seen]
    with np.errstate(over="ignore"):  # the caller looks at what came out
        scores[seen] = np.where(values > 0, values / penalty, values * penalty)


def top(scores: F32, count: int) -> Ids:
    """Ids of the `count` largest, falling, the lower id first on ties."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    candidates = np.flatnonzero(scores >= least)
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order[:count]]
