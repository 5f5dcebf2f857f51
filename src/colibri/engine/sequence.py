"""One request on its way: its tokens, its place in the cache, its text and why it ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from colibri.cache.prefix import Lease
from colibri.config import SamplingParams, Token
from colibri.engine.sampler import Choice, Sampler, Wish
from colibri.errors import ColibriError
from colibri.ops import KV_BLOCK
from colibri.speculation.lookup import Guess, Lookup
from colibri.text import IncrementalDecoder, StopMatcher

FORCED = 0.95  # how likely a token is that a grammar forces: the same text may be cut into other tokens
FinishReason = Literal["stop", "length", "cancelled"]
PromptWatcher = Callable[[int, NDArray[np.float32]], None]
"""Called with each position of a prompt and the logits (vocab,) that follow it, in order."""


class Constraint(Protocol):
    """What a text must match, such as a grammar."""

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next (vocab,)."""

    def accept(self, token: int) -> bool:
        """Take up the token that was chosen; True when nothing but the end may follow."""

    def forced(self) -> list[int]:
        """Tokens that are likely to come next because hardly another text is allowed."""


class Sequence:
    """A prompt and what is generated after it.

    A token is passed on (to `output`) once its text is final: while its characters are incomplete, or may be the
    beginning of a stop string, it waits. Nothing of a stop string is ever passed on.
    """

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        max_tokens: int,
        end_ids: Collection[int],
        decoder: IncrementalDecoder | None,
        *,
        constraint: Constraint | None = None,
        lookup: Lookup | None = None,
        prompt_watcher: PromptWatcher | None = None,
        watched: int = 0,
        watches_states: bool = False,
    ) -> None:
        self.ids = list(prompt)  # prompt and generated
        self.prompt_length = len(prompt)
        self.computed = 0  # tokens whose keys and values are in the cache
        self.computing = 0  # tokens that go through the layers now
        self.cached = 0  # of these, tokens that were there before it came
        self.preempted = 0  # how often it lost its place in the cache
        self.held = False  # stands still, because nobody takes its tokens
        self.prompt_watcher = prompt_watcher
        self.watched = watched  # the first positions, which the watcher has seen or is not interested in
        self.watches_states = watches_states  # the watcher wants what logits are made from
        self.lease: Lease | None = None
        self.thread = 0  # that added it to the engine
        self.max_tokens = max_tokens
        nothing_to_do = not max_tokens and prompt_watcher is None
        self.finish_reason: FinishReason | None = "length" if nothing_to_do else None
        self.error: ColibriError | None = None
        self.stop_text: str | None = None  # the stop string that ended it
        self.output: deque[Token] = deque()
        self.created = time.perf_counter()
        self.first_token_at = self.last_token_at = 0.0
        self.sampled = 0  # tokens chosen, an end token included
        self.guessed = self.accepted = 0  # tokens that were guessed before they were chosen, and those that were right
        self._waiting: list[Token] = []
        self._sampler = Sampler(params, len(prompt))
        self._end_ids = frozenset() if params.ignore_eos else frozenset(end_ids)
        self._decoder = decoder
        self._constraint = constraint
        self._lookup = lookup
        self._stops = StopMatcher(params.stop)

    def borrowed(self, lease: Lease) -> None:
        """Take up a place in the cache, with what is known of its tokens."""
        self.lease = lease
        self.computed = lease.cached
        if not self.preempted:
            self.cached = lease.cached

    def preempt(self) -> None:
        """Give up the place in the cache: what was computed will be computed again."""
        self.lease = None
        self.computed = 0
        self.preempted += 1

    @property
    def nears_next_block(self) -> bool:
        """Whether it is in the second half of its last block of the cache and may go on beyond."""
        most = self.prompt_length + self.max_tokens - 1  # the last one generated is never computed
        blocks = 0 if self.lease is None else len(self.lease.table)
        return self.computed % KV_BLOCK >= KV_BLOCK // 2 and most > KV_BLOCK * blocks

    @property
    def pending(self) -> int:
        """Tokens that are known and not yet computed."""
        return len(self.ids) - self.computed

    @property
    def generated(self) -> list[int]:
        """The ids after the prompt."""
        return self.ids[self.prompt_length :]

    def guesses(self, most: int, least: float = 0.0) -> list[Guess]:
        """At most so many tokens that may come next, of those that would be computed; the first at least so likely."""
        most = min(most, self.prompt_length + self.max_tokens - len(self.ids) - 1)
        if self._lookup is None or most <= 0:
            return []
        found = self._lookup.propose(self.ids, most, least)
        forced = [] if self._constraint is None else self._constraint.forced()
        return [Guess(token, FORCED) for token in forced[:most]] or found

    def wish(self) -> Wish | None:
        """What the next token is to be chosen by; None when there is none to choose, and that is the end of it.

        Raises what the constraint does.
        """
        if not self.max_tokens:  # only its prompt was of interest
            self._end("length")
            return None
        allowed = None
        if self._constraint is not None:
            allowed = self._constraint.allowed()
            if not allowed.any():
                self._end("stop")
                return None
        return Wish(self._sampler, self.ids, allowed)

    def advance(self, choice: Choice | ColibriError) -> None:
        """Take up the token that was chosen and pass on what is final.

        Raises the error instead of a choice, and what the constraint does.
        """
        if isinstance(choice, ColibriError):
            raise choice
        token = choice.token
        self.sampled += 1
        self.last_token_at = time.perf_counter()
        if not self.first_token_at:
            self.first_token_at = self.last_token_at
        if token in self._end_ids:
            self._end("stop")
            return
        self.ids.append(token)
        piece = self._decoder.feed(token) if self._decoder is not None else ""
        self._pass_on(choice, piece)
        complete = self._constraint is not None and self._constraint.accept(token)
        if self._stops.stopped is not None:
            self.stop_text = self._stops.stopped
            self._end("stop")
        elif complete:
            self._end("stop")
        elif len(self.ids) - self.prompt_length >= self.max_tokens:
            self._end("length")

    def cancel(self) -> None:
        """End without waiting for anything more."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"

    def fail(self, error: ColibriError) -> None:
        """End because of an error."""
        self.error = error
        self.cancel()

    def _pass_on(self, choice: Choice, piece: str) -> None:
        self._waiting.append(Token(choice.token, self._stops.feed(piece), choice.logprob, choice.top))
        if not self._stops.held and not (self._decoder is not None and self._decoder.held):
            self._flush()

    def _flush(self) -> None:
        self.output.extend(self._waiting)
        self._waiting.clear()

    def _end(self, reason: FinishReason) -> None:
        """What waited is final now; the last token takes the rest of the text."""
        self.finish_reason = reason
        if self._waiting and self._stops.stopped is None:
            tail = self._decoder.finish() if self._decoder is not None else ""
            last = self._waiting.pop()
            text = last.text + self._stops.feed(tail) + self._stops.finish()
            self._waiting.append(last._replace(text=text))
        self._flush()
