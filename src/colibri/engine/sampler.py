"""From logits to a token.

The order is that of transformers' generate: repetition penalty, temperature, top-k, top-p, min-p; then one draw.
Every tie goes to the lower id and the draws come from a counter-based generator (Philox), so that a seed gives the same
tokens on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from colibri.config import SamplingParams
from colibri.errors import NumericalError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Ids = NDArray[np.int64]

FIRST_CANDIDATES = 512  # top-p and min-p look at this many tokens first; a trained model rarely needs more


class Sampler:
    """Chooses one token after another for one sequence."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._generator = np.random.Generator(np.random.Philox(params.seed))

    def __call__(self, logits: F32, history: Sequence[int]) -> tuple[int, float]:
        """A token id, and ln of its probability in the model's own distribution. logits (vocab,), left as they are.

        Raises NumericalError when a logit is a NaN or an infinity.
        """
        norm = log_sum_exp(logits)
        params = self._params
        scores = logits
        if params.repetition_penalty != 1:
            scores = penalize(logits, history, params.repetition_penalty)
        token = int(scores.argmax()) if params.temperature == 0 else self._draw(scores)
        return token, float(logits[token]) - norm

    def _draw(self, scores: F32) -> int:
        ids, probabilities = distribution(scores, self._params)
        total = np.cumsum(probabilities)
        place = int(np.searchsorted(total, self._generator.random() * total[-1], side="right"))
        return int(ids[min(place, len(ids) - 1)])


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


def distribution(scores: F32, params: SamplingParams) -> tuple[Ids, F64]:
    """The tokens that may be drawn, likeliest first (the lower id on ties), and their unnormalised probabilities."""
    scaled = scores.astype(np.float64) / params.temperature
    weights: F64 = np.exp(scaled - scaled.max())
    if not params.top_k and params.top_p == 1 and params.min_p == 0:
        return np.arange(len(weights)), weights
    ids = _likeliest(weights, params)
    kept = weights[ids]
    if params.top_p < 1:
        whole = kept.sum() if params.top_k else weights.sum()
        before = np.cumsum(kept) - kept
        kept = kept[: max(1, int(np.count_nonzero(before < params.top_p * whole)))]
    if params.min_p > 0:
        kept = kept[: max(1, int(np.count_nonzero(kept >= params.min_p * kept[0])))]
    return ids[: len(kept)], kept


def _likeliest(weights: F64, params: SamplingParams) -> Ids:
    """Ids by falling weight, enough of them for the filters: k, or as many as top-p and min-p can let in."""
    if params.top_k:
        return top(weights, params.top_k)
    if len(weights) > FIRST_CANDIDATES:
        ids = top(weights, FIRST_CANDIDATES)
        kept = weights[ids]
        if params.top_p < 1 and kept.sum() >= params.top_p * weights.sum():
            return ids
        if kept[-1] < params.min_p * kept[0]:
            return ids
    return top(weights, len(weights))


def top(weights: F64, count: int) -> Ids:
    """Ids of the `count` largest, falling, the lower id first on ties."""
    if count >= len(weights):
        return np.argsort(-weights, kind="stable")
    least = np.partition(weights, len(weights) - count)[len(weights) - count]
    candidates = np.flatnonzero(weights >= least)
    order = np.argsort(-weights[candidates], kind="stable")
    return candidates[order[:count]]
