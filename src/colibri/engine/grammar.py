"""Output that must match a grammar: masks of allowed tokens by llguidance (https://github.com/guidance-ai/llguidance).

`grammar_of` says what parameters ask for; `Grammars` compiles it, and the sampler masks the logits, so a text that ends
by itself always matches. The web server checks a grammar before it is queued (`check_grammar`).
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.config import SamplingParams
from colibri.errors import ArgumentError, UnsupportedError
from colibri.text import Tokenizer

MAX_GRAMMAR = 1 << 18  # characters
KEPT_GRAMMARS = 32
# One optional space or line end between tokens of JSON: free white space lets a doubtful model pad without end.
_JSON_LAYOUT: Any = {"whitespace_flexible": False, "whitespace_pattern": r"[ \n]?"}


def grammar_of(params: SamplingParams) -> str | None:
    """The grammar that parameters ask for, checked. Raises ArgumentError for a malformed one."""
    for name, made in _MADE.items():
        wanted = getattr(params, name)
        if wanted is not None:
            grammar = made(wanted)
            check_grammar(name, grammar)
            return grammar
    return None


def json_grammar(schema: str, name: str = "json_schema") -> str:
    """The grammar of the JSON values that a schema, written as JSON, allows.

    Raises ArgumentError, which calls the schema `name`, for one that is not understood.
    """
    try:
        grammar: str = _matcher().grammar_from_json_schema(schema, overrides=_JSON_LAYOUT)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{name}: {error}") from None
    return grammar


def _regex_grammar(pattern: str) -> str:
    grammar: str = _matcher().grammar_from_regex(pattern)
    return grammar


def _choice_grammar(texts: Sequence[str]) -> str:
    return lark_grammar("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))


def _matcher() -> Any:
    """llguidance's LLMatcher. Raises UnsupportedError where the library is missing."""
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError:
        raise UnsupportedError("a grammar or schema needs a library that is missing: pip install llguidance") from None
    return LLMatcher


def lark_grammar(text: str) -> str:
    """The grammar written in Lark's notation, or in GBNF (llama.cpp's), which has `::=`."""
    matcher = _matcher()
    if "::=" in text:
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            text = any_to_lark(text)
        except Exception as error:  # the converter raises whatever its parser meets
            raise ArgumentError(f"grammar: this GBNF cannot be read: {error}") from None
    grammar: str = matcher.grammar_from_lark(text)
    return grammar


_MADE: dict[str, Callable[[Any], str]] = {
    "json_schema": json_grammar, "regex": _regex_grammar, "choice": _choice_grammar, "grammar": lark_grammar,
}  # fmt: skip


def check_grammar(name: str, grammar: str) -> None:
    """Raise ArgumentError, which calls the grammar `name`, when it is malformed or beyond the limits."""
    if len(grammar) > MAX_GRAMMAR:
        raise ArgumentError(f"{name}: found {len(grammar)} characters, expected at most {MAX_GRAMMAR}")
    failed, messages = _matcher().validate_grammar_with_warnings(grammar)
    if failed:
        raise ArgumentError(f"{name}: {messages[0] if messages else 'not understood'}"[:2000])


class _Pieces:
    """The tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        ends = sorted(tokenizer.eos_ids)
        self._tokenizer = tokenizer
        self.eos_token_id = ends[0] if ends else 0
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(token) for token in range(size)]
        self.special_token_ids = [token for token in range(size) if tokenizer.is_special(token)]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"), add_special=False)


class Grammars:
    """Compiles grammars for one model, also for several threads at once; the latest ones are kept.

    tokenizer: None where the model brings none. size: of the model's vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer | None, size: int, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._size = size
        self._end_ids = end_ids
        self._matchers: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def constraint(self, grammar: str) -> GrammarConstraint:
        """A fresh state of a grammar. Raises ArgumentError when it does not compile."""
        with self._lock:
            matcher = self._matchers.get(grammar)
            if matcher is None:
                matcher = self._compile(grammar)
                self._matchers[grammar] = matcher
                if len(self._matchers) > KEPT_GRAMMARS:
                    self._matchers.popitem(last=False)
            self._matchers.move_to_end(grammar)
            return GrammarConstraint(matcher.deep_copy(), self._size, self._end_ids)

    def _compile(self, grammar: str) -> Any:
        matcher = _matcher()(self._pieces, grammar, log_level=0)
        if matcher.is_error():
            raise _refused(matcher)
        return matcher

    @cached_property
    def _pieces(self) -> Any:
        """The tokenizer in llguidance's form."""
        from llguidance import LLTokenizer, TokenizerWrapper

        if self._tokenizer is None or not self._end_ids:
            raise UnsupportedError("grammar: the checkpoint has no tokenizer with an end token; give none")
        size = self._tokenizer.vocab_size
        wrapper = TokenizerWrapper(_Pieces(self._tokenizer, size))
        return LLTokenizer(wrapper, n_vocab=size, eos_token=sorted(self._end_ids))


def _refused(matcher: Any) -> ArgumentError:
    """Why, without the dump of the parser's state behind it."""
    reason = matcher.get_error().partition("\n<state>")[0]
    if "NoExtensionBias" in reason:
        reason = "no text matches it"
    return ArgumentError(f"the grammar or schema cannot be followed: {reason}"[:2000])


class GrammarConstraint:
    """The state of one text within its grammar."""

    def __init__(self, matcher: Any, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._allowed = np.zeros(vocab_size, bool)
        self._end_ids: Sequence[int] = sorted(end_ids)

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next (vocab,). Raises ArgumentError when the grammar has become too complex."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise _refused(self._matcher)
        known = np.unpackbits(bits, bitorder="little").view(np.bool_)
        size = min(len(known), len(self._allowed))
        self._allowed[:size] = known[:size]
        return self._allowed

    def accept(self, token: int) -> bool:
        """Take up a token that was allowed; True when nothing may follow it but the end."""
        if token in self._end_ids:
            return True
        if not self._matcher.consume_token(token):
            raise _refused(self._matcher)
        return bool(self._matcher.is_stopped())

    def forced(self) -> list[int]:
        """Tokens of the only text that may come next, as far as there is only one."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return list(itertools.takewhile(lambda token: token < len(self._allowed), tokens))
