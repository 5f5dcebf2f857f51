"""What the model expected at each position of a prompt, for `echo` with logprobs and for /infer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri.engine.sampler import log_sum_exp, top
from colibri.server.protocol import PromptLogits, Submit

ALL = -1  # instead of a number of likeliest tokens: every logit
LOGIT_BYTES = 8  # of one on its way into an answer
LIKELIEST_BYTES = 256  # of a token and ln of its probability


def report_bytes(command: Submit, vocab_size: int) -> int:
    """Memory of the web server that a report on a prompt takes."""
    if command.prompt_logits is None:
        return 0
    each = LOGIT_BYTES * vocab_size if command.prompt_logits == ALL else LIKELIEST_BYTES * (command.prompt_logits + 1)
    return each * (1 if command.last_only else len(command.ids))


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
            self._news.append(PromptLogits(logprob, logits=logits.tobytes()))
            return
        likeliest = top(logits, self._count) if self._count else np.empty(0, np.int64)
        logprobs = logits[likeliest].astype(np.float64) - norm
        self._news.append(PromptLogits(logprob, likeliest.astype(np.int32).tobytes(), logprobs.tobytes()))

    def take(self) -> tuple[PromptLogits, ...]:
        """What was noted since the last call."""
        news = tuple(self._news)
        self._news.clear()
        return news


class PooledStates:
    """Called by the engine with the last hidden state of every position of a prompt, in order; gives their mean."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._sum: NDArray[np.float64] | None = None
        self._whole = False

    def __call__(self, position: int, state: NDArray[np.float32]) -> None:
        """Add the state (hidden,) of one position."""
        wide = state.astype(np.float64)
        self._sum = wide if self._sum is None else self._sum + wide
        self._whole = position == self._count - 1

    def take(self) -> tuple[PromptLogits, ...]:
        """The mean (hidden,), once, after the last position."""
        if not self._whole or self._sum is None:
            return ()
        self._whole = False
        return (PromptLogits(None, logits=(self._sum / self._count).astype(np.float32).tobytes()),)
