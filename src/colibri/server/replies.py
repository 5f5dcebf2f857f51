"""The parts of replies: usage, log-probabilities, ids."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from colibri.config import Token
from colibri.server.protocol import Output, PromptLogits
from colibri.text import Tokenizer


def new_id(kind: str) -> str:
    """An id as the OpenAI API has them: cmpl-..., chatcmpl-..."""
    return f"{kind}-{uuid.uuid4().hex}"


class Usage:
    """Counts tokens over the sequences of a request: `choices` of each prompt, which is counted once."""

    def __init__(self, prompts: Iterable[int], choices: int) -> None:
        self._prompt = sum(prompts)
        self._choices = choices
        self._sampled: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._guesses: dict[int, tuple[int, int]] = {}  # made, right
        self.reasoning = 0

    def take(self, index: int, output: Output) -> None:
        """Note how far a sequence is."""
        self._sampled[index] = output.sampled
        self._guesses[index] = output.guessed, output.accepted
        if index % self._choices == 0:  # the others find what the first has computed
            self._cached[index] = output.cached

    def as_dict(self) -> dict[str, Any]:
        """The usage object."""
        completion = sum(self._sampled.values())
        guessed = sum(made for made, _ in self._guesses.values())
        accepted = sum(right for _, right in self._guesses.values())
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": completion,
            "total_tokens": self._prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": guessed - accepted,
            },
        }


def token_name(tokenizer: Tokenizer | None, token: int) -> str:
    """A token as text; one that is no text by itself as bytes:\\xNN, as the OpenAI API writes it."""
    if tokenizer is None:
        return f"token_id:{token}"
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token),
        "logprob": logprob,
        "bytes": list(tokenizer.token_bytes(token)),
    }


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token], count: int) -> dict[str, Any]:
    """The logprobs object of a chat choice: one entry a token."""
    content = [
        {
            **_entry(tokenizer, token.id, token.logprob),
            "top_logprobs": [_entry(tokenizer, other, logprob) for other, logprob in token.top[:count]],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The logprobs object of a completion, which grows; `take` gives what is new of it."""

    def __init__(self, tokenizer: Tokenizer | None, count: int) -> None:
        self._tokenizer = tokenizer
        self._count = count
        self._offset = 0

    def prompt(self, ids: Sequence[int], pieces: Sequence[str], logits: Sequence[PromptLogits]) -> dict[str, Any]:
        """Of an echoed prompt: nothing is known of its first token. pieces: the text of each id."""
        result = self._empty()
        for position, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
            before = logits[position - 1] if position else None
            logprob = None if before is None else before.logprob
            self._add(result, token, piece, logprob, None if before is None else before.top)
        return result

    def take(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Of generated tokens."""
        result = self._empty()
        for token in tokens:
            self._add(result, token.id, token.text, token.logprob, token.top)
        return result

    @staticmethod
    def _empty() -> dict[str, Any]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def _add(
        self, result: dict[str, Any], token: int, text: str, logprob: float | None,
        top: Sequence[tuple[int, float]] | None,
    ) -> None:  # fmt: skip
        result["tokens"].append(token_name(self._tokenizer, token))
        result["token_logprobs"].append(logprob)
        result["text_offset"].append(self._offset)
        self._offset += len(text)
        if top is None or logprob is None:
            result["top_logprobs"].append(None)
            return
        names = {token_name(self._tokenizer, other): value for other, value in top[: self._count]}
        names.setdefault(token_name(self._tokenizer, token), logprob)
        result["top_logprobs"].append(names)


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Logprobs objects of a completion, one after another."""
    keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {key: [value for part in parts for value in part[key]] for key in keys}
