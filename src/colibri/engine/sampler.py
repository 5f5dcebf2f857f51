"""From logits to a token.

The order is that of transformers' generate: repetition penalty, then presence and frequency penalties and biases as in
the OpenAI API, temperature, top-k, top-p, min-p; then one draw.
Every tie goes to the lower id and the draws come from a counter-based generator (Philox), so that a seed gives the same
tokens on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colibri.config import SamplingParams
from colibri.errors import ArgumentError, NumericalError

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

PART = 512  # tokens whose weights are summed together


class Choice(NamedTuple):
    """A token, ln of its probability in the model's own distribution, and the likeliest tokens with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses one token after another for one sequence."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._generator = np.random.Generator(np.random.Philox(params.seed))
        self._chosen: dict[int, int] = {}  # how often each token was chosen, where a penalty wants to know
        self._counting = params.presence_penalty != 0 or params.frequency_penalty != 0

    def __call__(self, logits: F32, history: Sequence[int], allowed: Mask | None = None) -> Choice:
        """A token id, and ln of its probability in the model's own distribution. logits (vocab,), left as they are.

        `allowed` (vocab,) says which tokens may be chosen; at least one must. Raises NumericalError when a logit is a
        NaN or an infinity.
        """
        norm = log_sum_exp(logits)
        params = self._params
        scores = logits
        if params.repetition_penalty != 1:
            scores = penalize(logits, history, params.repetition_penalty)
        if self._chosen or params.logit_bias:
            scores = self._shift(scores.copy())
        if allowed is not None:
            scores = np.where(allowed, scores, np.float32(-np.inf))
        token = int(scores.argmax()) if params.temperature == 0 else self._draw(scores)
        if self._counting:
            self._chosen[token] = self._chosen.get(token, 0) + 1
        likeliest = top(logits, params.top_logprobs) if params.top_logprobs else ()
        return Choice(
            token, float(logits[token]) - norm, tuple((int(other), float(logits[other]) - norm) for other in likeliest)
        )

    def _shift(self, scores: F32) -> F32:
        """Add biases and take penalties off; the scores are changed in place."""
        params = self._params
        for token, bias in params.logit_bias:
            if token >= len(scores):
                raise ArgumentError(f"logit_bias: found token {token}, expected 0..{len(scores) - 1}")
            scores[token] += bias
        for token, times in self._chosen.items():
            scores[token] -= params.presence_penalty + times * params.frequency_penalty
        return scores

    def _draw(self, scores: F32) -> int:
        ids, weights = distribution(scores, self._params)
        place = draw(weights, self._generator.random())
        return place if ids is None else int(ids[place])


def draw(weights: NDArray[Any], uniform: float) -> int:
    """The place at which the running sum of the weights passes `uniform` (0..1) of the whole, sums in float64.

    In two steps, because running sums over a vocabulary of 150,000 would cost a millisecond a token.
    """
    whole = len(weights) // PART * PART
    parts = weights[:whole].reshape(-1, PART).sum(axis=1, dtype=np.float64)
    if whole < len(weights):
        parts = np.append(parts, weights[whole:].sum(dtype=np.float64))
    ends = np.cumsum(parts)
    goal = uniform * ends[-1]
    part = min(int(np.searchsorted(ends, goal, side="right")), len(parts) - 1)
    inside = weights[part * PART : (part + 1) * PART]
    sums = np.cumsum(inside, dtype=np.float64) + (ends[part] - parts[part])
    place = min(int(np.searchsorted(sums, goal, side="right")), len(inside) - 1)
    while place and not inside[place]:  # rounding may lead past the last token that has any weight
        place -= 1
    return part * PART + place


def log_sum_exp(logits: F32) -> float:
    """ln of the sum of exp(logits); NumericalError when one is not finite."""
    high = float(logits.max())  # a NaN is the maximum, too
    if not math.isfinite(high) or not math.isfinite(float(logits.min())):
        raise NumericalError("output: a logit is a NaN or an infinity; the weights are damaged, nothing was sampled")
    with np.errstate(over="ignore"):  # a difference beyond float32 is -inf, whose exponential is rightly 0
        return high + math.log(float(np.exp(logits - high).sum(dtype=np.float64)))


def penalize(logits: F32, history: Sequence[int], penalty: float) -> F32:
    """Make the tokens of the history less likely (arXiv 1909.05858): positive logits are divided, others multiplied."""
    scores = logits.copy()
    seen = np.unique(np.asarray(history, np.int64))
    values = scores[seen]
    scores[seen] = np.where(values > 0, values / penalty, values * penalty)
    return scores


def distribution(scores: F32, params: SamplingParams) -> tuple[Ids | None, NDArray[Any]]:
    """The tokens that may be drawn, likeliest first, and their unnormalised probabilities; None: all, as they are."""
    high = scores.max()
    if not params.top_k and params.top_p == 1 and params.min_p == 0:
        return None, _weights(scores, high, params)
    for ids in _candidates(scores, high, params):
        kept = _weights(scores[ids].astype(np.float64), float(high), params)
        count = len(kept)
        if params.top_p < 1:
            whole = kept.sum() if params.top_k else _weights(scores, high, params).sum(dtype=np.float64)
            count = int(np.count_nonzero(np.cumsum(kept) - kept < params.top_p * whole))
            if count == len(kept) < len(scores) and not params.top_k and params.min_p == 0:
                continue  # these may not be enough of the mass
        if params.min_p > 0:
            count = min(count, int(np.count_nonzero(kept >= params.min_p * kept[0])))
        return ids[: max(1, count)], kept[: max(1, count)]
    raise AssertionError("the last candidates are all tokens")


def _weights(scores: NDArray[Any], high: Any, params: SamplingParams) -> NDArray[Any]:
    """exp of the scores over the temperature, 1 for the highest; float32 or float64 as the scores are."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp((scores - high) / scores.dtype.type(max(params.temperature, 1e-30))))


def _candidates(scores: F32, high: np.float32, params: SamplingParams) -> Iterator[Ids]:
    """Growing parts of the tokens, by falling score, that hold what the filters can let in."""
    if params.top_k:
        yield top(scores, params.top_k)
    elif params.min_p > 0:  # a little more than it lets in: the exact cut is made on the weights
        inside = np.flatnonzero(scores >= high + params.temperature * math.log(params.min_p) * (1 + 1e-5) - 1e-5)
        yield inside[np.argsort(-scores[inside], kind="stable")]
    else:
        for count in (512, 8192):
            if count < len(scores):
                yield top(scores, count)
        yield top(scores, len(scores))


def top(scores: NDArray[Any], count: int) -> Ids:
    """Ids of the `count` largest, falling, the lower id first on ties."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    candidates = np.flatnonzero(scores >= least)
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order[:count]]
