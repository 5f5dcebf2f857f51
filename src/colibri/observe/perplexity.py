"""Perplexity as llama.cpp's tool computes it, so that the figures compare.

The text's tokens are cut into windows of `window` tokens, each run from an empty context (with the begin token in front
where the tokenizer adds one); only predictions in the second half of a window count, so each has at least half a window
of context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from colibri.engine.model import Model
from colibri.errors import ArgumentError

WINDOW: Final = 512
_ROWS: Final = 4  # rows of logits that are widened at a time: each takes 24 bytes for every token of the vocabulary


@dataclass(frozen=True)
class Perplexity:
    """value = exp(mean negative log likelihood), with its standard error; tokens that counted; whole windows."""

    value: float
    error: float
    tokens: int
    windows: int


def perplexity(
    model: Model,
    ids: Sequence[int],
    window: int = WINDOW,
    most_windows: int | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Perplexity:
    """Of a text's ids. `progress` gets windows done, windows in all and the value so far.

    Raises ArgumentError for a text shorter than two windows or a window that the context does not hold.
    """
    if not 4 <= window <= model.context:
        raise ArgumentError(f"a window of {window} tokens: 4 to {model.context} (the context) is expected")
    count = len(ids) // window
    if count < 2:
        raise ArgumentError(f"the text has {len(ids)} tokens; at least {2 * window} (two windows) are needed")
    count = min(count, most_windows or count)
    losses: list[NDArray[np.float64]] = []
    for number in range(count):
        losses.append(_losses(model, list(ids[number * window : (number + 1) * window])))
        if progress is not None:
            progress(number + 1, count, math.exp(float(np.concatenate(losses).mean())))
    return summarize(np.concatenate(losses), count)


def _losses(model: Model, chunk: list[int]) -> NDArray[np.float64]:
    """Negative log likelihoods of the tokens of a window's second half."""
    targets, first = chunk[1:], len(chunk) // 2
    if model.tokenizer.add_bos and model.tokenizer.bos_id is not None:
        chunk = [model.tokenizer.bos_id, *chunk[1:]]
    losses = np.empty(len(targets))

    def see(position: int, logits: NDArray[np.float32]) -> None:
        following = targets[position : position + len(logits)]  # the last position has none
        losses[position : position + len(following)] = negative_log_likelihood(logits[: len(following)], following)

    model.infer_rows(chunk, see, first)
    return losses[first:]


def negative_log_likelihood(logits: NDArray[np.float32], targets: Sequence[int]) -> NDArray[np.float64]:
    """logits (n, vocab), one target a row -> (n,)."""
    losses = np.empty(len(targets))
    for row in range(0, len(targets), _ROWS):
        wide = logits[row : row + _ROWS].astype(np.float64)
        peak = wide.max(axis=1, keepdims=True)
        chosen = wide[np.arange(len(wide)), targets[row : row + _ROWS]]
        losses[row : row + _ROWS] = np.log(np.exp(wide - peak).sum(axis=1)) + peak[:, 0] - chosen
    return losses


def summarize(losses: NDArray[np.float64], windows: int) -> Perplexity:
    """The perplexity of these losses; the error is that of the mean, carried through the exponential."""
    value = math.exp(float(losses.mean()))
    spread = float(losses.std()) / math.sqrt(max(1, len(losses) - 1))
    return Perplexity(value, value * spread, len(losses), windows)
