"""What the model expected at each position of a prompt, for `echo` with logprobs and for /infer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri.engine.sampler import log_sum_exp, top
from colibri.server.protocol import PromptLogits

ALL = -1  # instead of a number of likeliest tokens: every logit


class PromptWatcher:
    """Called by the engine with the logits of every position of the prompt, in order."""

    def __init__(self, ids: tuple[int, ...], count: int) -> None:
        self._ids = ids
        self._count = count
        self._news: list[PromptLogits] = []

    def __call__(self, position: int, logits: NDArray[np.float32]) -> None:
        """Note the logits (vocab,) of one position."""
        norm = log_sum_exp(logits)
        following = self._ids[position + 1] if position + 1 < len(self._ids) else None
        logprob = None if following is None else float(logits[following]) - norm
        if self._count == ALL:
            self._news.append(PromptLogits(logprob, (), logits.tobytes()))
            return
        likeliest = top(logits.astype(np.float64), self._count) if self._count else ()
        self._news.append(PromptLogits(logprob, tuple((int(i), float(logits[i]) - norm) for i in likeliest)))

    def take(self) -> tuple[PromptLogits, ...]:
        """What was noted since the last call."""
        news = tuple(self._news)
        self._news.clear()
        return news
