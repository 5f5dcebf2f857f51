"""From logits to tokens, for all sequences of a step together.

The order is that of transformers' generate: repetition penalty, then presence and frequency penalties and biases as in
the OpenAI API, temperature, top-k, top-p, min-p; then one draw.
Every tie goes to the lower id and the draws come from a counter-based generator (Philox), so that a seed gives the same
tokens on every machine.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.config import SamplingParams
from colibri.errors import ArgumentError, ColibriError, NumericalError

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

LIKELIEST = (0.0, 0.0, 1.0, 0.0, 0.0)  # settings of ops.sample: temperature, top_k, top_p, min_p, the draw


class Choice(NamedTuple):
    """A token, ln of its probability in the model's own distribution, and the likeliest tokens with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """How one sequence wants its tokens chosen."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator = np.random.Generator(np.random.Philox(params.seed))
        self._filters = (params.temperature, params.top_k, params.top_p, params.min_p)
        self._history = array("q")  # as far as it was needed
        self._chosen: dict[int, int] = {}  # how often each token was chosen, where a penalty wants to know
        self._counting = params.presence_penalty != 0 or params.frequency_penalty != 0
        self.changes = bool(self._counting or params.repetition_penalty != 1 or params.logit_bias)

    def settings(self) -> tuple[float, ...]:
        """Those of the next token, as `ops.sample` takes them; each call is a new draw."""
        return LIKELIEST if self.params.temperature == 0 else (*self._filters, self._generator.random())

    def changed(self, logits: F32, history: Sequence[int]) -> F32:
        """The logits (vocab,) after penalties and biases, where it `changes` them.

        Raises NumericalError when a penalty makes one overflow, ArgumentError for a bias on a token that is not there.
        """
        params = self.params
        scores = logits.copy()
        if params.repetition_penalty != 1:
            self._history.extend(history[len(self._history) :])
            penalize(scores, self._history, params.repetition_penalty)
        self._shift(scores)
        if not math.isfinite(float(np.abs(scores).max())):
            raise NumericalError("sampling: a penalty or a bias made a logit overflow; nothing was sampled")
        return scores

    def note(self, token: int) -> None:
        """Take note of a token that was chosen."""
        if self._counting:
            self._chosen[token] = self._chosen.get(token, 0) + 1

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

    def scores(self, logits: F32) -> F32:
        """The logits (vocab,) to choose by, where they are not the model's own."""
        scores = self.sampler.changed(logits, self.history) if self.sampler.changes else logits
        return scores if self.allowed is None else np.where(self.allowed, scores, np.float32(-np.inf))

    def choice(self, token: int, logprob: float, logits: F32, norm: float) -> Choice:
        """Of a token chosen from logits (vocab,) whose exponentials add up to exp(norm)."""
        self.sampler.note(token)
        count = self.sampler.params.top_logprobs
        likeliest = tuple((int(i), float(logits[i]) - norm) for i in top(logits, count)) if count else ()
        return Choice(token, logprob, likeliest)


class Chooser:
    """Chooses tokens for up to `rows` sequences at a time; for one step at a time."""

    def __init__(self, rows: int) -> None:
        self._tokens = np.empty(rows, np.int32)
        self._norms = np.empty(rows)
        self._settings = np.empty((rows, len(LIKELIEST)))
        self._rows = np.arange(rows)

    def __call__(self, logits: F32, wishes: Sequence[Wish]) -> list[Choice | ColibriError]:
        """The choice for each row of logits (n, vocab), or what is wrong with it: NumericalError, ArgumentError."""
        count = len(wishes)
        tokens, norms = self._tokens[:count], self._norms[:count]
        self._settings[:count] = [wish.sampler.settings() for wish in wishes]
        ops.sample(tokens, norms, logits, self._settings[:count])
        log_sums = norms.tolist()
        errors: dict[int, ColibriError] = {}
        changed: dict[int, F32] = {}
        for row, wish in enumerate(wishes):
            try:
                check_norm(log_sums[row])
                if wish.sampler.changes or wish.allowed is not None:
                    changed[row] = wish.scores(logits[row])
            except ColibriError as error:
                errors[row] = error
        if changed:
            rows = list(changed)
            others = np.empty(len(rows), np.int32)
            ops.sample(others, np.empty(len(rows)), np.stack(list(changed.values())), self._settings[rows])
            tokens[rows] = others
        logprobs = (logits[self._rows[:count], tokens] - norms).tolist()
        return [
            errors.get(row) or wish.choice(token, logprobs[row], logits[row], log_sums[row])
            for row, (wish, token) in enumerate(zip(wishes, tokens.tolist(), strict=True))
        ]


def check_norm(norm: float) -> None:
    """Raise NumericalError unless all logits were finite."""
    if not math.isfinite(norm):
        raise NumericalError("output: a logit is a NaN or an infinity; the weights are damaged, nothing was sampled")


def log_sum_exp(logits: F32) -> float:
    """ln of the sum of exp(logits) (vocab,); NumericalError when one is not finite."""
    norm = np.empty(1)
    ops.sample(np.empty(1, np.int32), norm, logits[np.newaxis], np.array([LIKELIEST]))
    check_norm(float(norm[0]))
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
