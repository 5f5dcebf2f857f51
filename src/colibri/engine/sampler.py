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

from colibri import ops
from colibri.config import SamplingParams
from colibri.errors import ArgumentError, NumericalError

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
Sums = NDArray[np.float64]

LEAST_TEMPERATURE = 1e-30
PART = ops.SAMPLING_PART  # tokens whose weights are summed together


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
        NaN or an infinity, or becomes one by a penalty.
        """
        norm = log_sum_exp(logits)
        params = self._params
        scores = logits
        if params.repetition_penalty != 1:
            scores = penalize(logits, history, params.repetition_penalty)
        if self._chosen or params.logit_bias:
            scores = self._shift(scores.copy())
        if scores is not logits and not math.isfinite(float(np.abs(scores).max())):
            raise NumericalError("sampling: a penalty or a bias made a logit overflow; nothing was sampled")
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
        params, uniform = self._params, self._generator.random()
        if not params.top_k and params.top_p == 1 and params.min_p == 0:
            return draw(*exponentials(scores, float(scores.max()), params.temperature), uniform)
        ids, weights = distribution(scores, params)
        return int(ids[draw(weights, sums_of_parts(weights), uniform)])


def exponentials(scores: F32, high: float, temperature: float) -> tuple[F32, Sums]:
    """exp((scores - high) / temperature), and the sums of every PART of them."""
    weights, parts = np.empty_like(scores), np.empty(-(-len(scores) // PART))
    ops.exponentials(parts, scores, high, max(temperature, LEAST_TEMPERATURE), weights)
    return weights, parts


def sums_of_parts(weights: NDArray[Any]) -> Sums:
    """The sums of every PART of the weights."""
    return np.add.reduceat(weights, range(0, len(weights), PART), dtype=np.float64)


def draw(weights: NDArray[Any], parts: Sums, uniform: float) -> int:
    """The place at which the running sum of the weights passes `uniform` (0..1) of the whole, sums in float64.

    In two steps, because running sums over a vocabulary of 150,000 would cost a millisecond a token.
    """
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
    parts = np.empty(-(-len(logits) // PART))
    ops.exponentials(parts, logits, high, 1.0)
    return high + math.log(float(parts.sum()))


def penalize(logits: F32, history: Sequence[int], penalty: float) -> F32:
    """Make the tokens of the history less likely (arXiv 1909.05858): positive logits are divided, others multiplied."""
    scores = logits.copy()
    seen = np.unique(np.asarray(history, np.int64))
    values = scores[seen]
    with np.errstate(over="ignore"):  # the caller looks at what came out
        scores[seen] = np.where(values > 0, values / penalty, values * penalty)
    return scores


def distribution(scores: F32, params: SamplingParams) -> tuple[Ids, NDArray[Any]]:
    """The tokens that the filters let in, likeliest first, and their unnormalised probabilities."""
    high = scores.max()
    for ids in _candidates(scores, high, params):
        kept = _weights(scores[ids].astype(np.float64), float(high), params)
        count = len(kept)
        if params.top_p < 1:
            whole = kept.sum() if params.top_k else exponentials(scores, float(high), params.temperature)[1].sum()
            count = int(np.count_nonzero(np.cumsum(kept) - kept < params.top_p * whole))
            if count == len(kept) < len(scores) and not params.top_k and params.min_p == 0:
                continue  # these may not be enough of the mass
        if params.min_p > 0:
            count = min(count, int(np.count_nonzero(kept >= params.min_p * kept[0])))
        return ids[: max(1, count)], kept[: max(1, count)]
    raise AssertionError("the last candidates are all tokens")


def _weights(scores: NDArray[np.float64], high: float, params: SamplingParams) -> NDArray[np.float64]:
    """exp of the scores over the temperature, 1 for the highest."""
    return np.asarray(np.exp((scores - high) / max(params.temperature, LEAST_TEMPERATURE)))


def _candidates(scores: F32, high: np.float32, params: SamplingParams) -> Iterator[Ids]:
    """Growing parts of the tokens, by falling score, that hold what the filters can let in."""
    if params.top_k:
        yield top(scores, params.top_k)
    elif params.min_p > 0:  # a little more than it lets in: the exact cut is made on the weights
        inside = np.flatnonzero(scores >= high + params.temperature * math.log(params.min_p) * (1 + 1e-5) - 1e-5)
        yield inside[np.argsort(-scores[inside], kind="stable")]
    else:
        for count in (512, 8192):
            if count < len(scores) and params.top_p < 1:
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
