"""One generation as its caller sees it: an iterator of tokens that knows how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from types import TracebackType

from colibri.config import Token, shown
from colibri.engine.engine import Engine
from colibri.engine.sequence import FinishReason, Sequence
from colibri.engine.statistics import Timings, timings


class Generation(Iterator[Token]):
    """Yields tokens as they become final. What it holds is freed at its end, by `close`, or when it is dropped.

    prompt_token_ids: what was prefilled. notes: what a user should know, such as a max_tokens that was cut to the
    context.
    """

    def __init__(
        self, engine: Engine, sequence: Sequence, load_s: float, notes: tuple[str, ...], owner: object
    ) -> None:
        self._engine = engine
        self._owner = owner  # a model that is dropped while it generates must not close
        self._sequence = sequence
        self._load_s = load_s
        self.notes = notes
        self._made: deque[Token] = deque()  # not yielded yet
        self._parts: list[str] = []
        engine.add(sequence)

    def __next__(self) -> Token:
        if not self._made and not self._wait():
            raise StopIteration
        return self._made.popleft()

    def _wait(self) -> bool:
        """Step until there is another token; False at the end."""
        self._engine.advance(self._sequence)
        if not self._sequence.output:
            return False
        token = self._sequence.output.popleft()
        self._parts.append(token.text)
        self._made.append(token)
        return True

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Token:
        token = await asyncio.to_thread(next, self, None)
        if token is None:
            raise StopAsyncIteration
        return token

    def __repr__(self) -> str:
        state = self.finish_reason or "goes on"
        return f"<colibri.Generation {state}, {len(self.token_ids)} tokens: {shown(''.join(self._parts))}>"

    @property
    def prompt_token_ids(self) -> list[int]:
        """The ids of the prompt."""
        return self._sequence.ids[: self._sequence.prompt_length]

    @property
    def prefilled(self) -> int:
        """Tokens of the prompt that went through the layers so far; those under way count by the layers done."""
        decoder = self._engine.decoder
        under_way = self._sequence.computing * decoder.layer // decoder.layers
        return min(self._sequence.computed + under_way, self._sequence.prompt_length)

    @property
    def cached(self) -> int:
        """Tokens of the prompt whose keys and values were in the cache already."""
        return self._sequence.cached

    @property
    def token_ids(self) -> list[int]:
        """The ids chosen so far, end tokens left out."""
        return self._sequence.generated

    @property
    def text(self) -> str:
        """The whole text: waits for what is not generated yet, which iteration yields all the same."""
        while self._wait():
            pass
        return "".join(self._parts)

    @property
    def finish_reason(self) -> FinishReason | None:
        """stop, length or cancelled; None while it goes on."""
        return self._sequence.finish_reason

    @property
    def stop_text(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self._sequence.stop_text

    @property
    def timings(self) -> Timings:
        """Seconds and rates so far."""
        return timings(self._sequence, self._load_s)

    def close(self) -> None:
        """End it and free its place in the cache."""
        if self._sequence.finish_reason is None:
            self._engine.cancel(self._sequence)

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_sequence"):
            self.close()
