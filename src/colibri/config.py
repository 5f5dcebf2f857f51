"""Every setting: how a model is loaded and how tokens are chosen.

All are frozen and checked when made: a wrong value raises ArgumentError naming the field, what was found and what was
expected.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from colibri.errors import ArgumentError

Precision = Literal["fast", "exact"]
KvType = Literal["f16", "q8_0"]
Speculate = Literal["auto", "off"] | int

_CONSTRAINTS = ("json_schema", "regex", "choice", "grammar")  # of SamplingParams

DEFAULT_CONTEXT = 4096
DEFAULT_MAX_TOKENS = 128
REPETITION_PENALTIES = 0.01, 100.0  # beyond, logits overflow and nothing but the penalty decides
MAX_THREADS = 256  # of the native pool
MAX_GUESSES = 15  # of a sequence in a step
MAX_BYTES = 1 << 60


def refuse(name: str, found: Any, expected: str) -> NoReturn:
    """Raise what every wrong setting raises."""
    raise ArgumentError(f"{name}: found {shown(found)}, expected {expected}")


def shown(value: Any) -> str:
    """A value as an error names it: the beginning of what it says of itself."""
    try:
        text = repr(value)
    except Exception:  # an integer of 4,301 digits, for one
        text = f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raise ArgumentError unless value is an integer within low..high."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        refuse(name, value, f"an integer of at least {low}" if high is None else f"an integer within {low}..{high}")


def _check_bytes(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_BYTES:
        refuse(name, value, "a whole number of bytes of at least 1; 2.5 GiB are 5 << 29")


def check_number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    """Raise ArgumentError unless value is a finite number within low..high (above low when open)."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not number or value > high or value < low or (open_low and value == low):
        bound = f"above {low}" if open_low else f"of at least {low}"
        refuse(name, value, f"a number {bound}" if high == math.inf else f"a number {bound} and at most {high}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise ArgumentError unless value is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        refuse(name, value, "one of " + ", ".join(choices))


def _tuple(name: str, values: Any, expected: str) -> tuple[Any, ...]:
    """What a list, or anything else that is gone through in order, holds."""
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping | type):
        try:
            return tuple(values)
        except TypeError:  # an array without dimensions
            pass
    refuse(name, values, expected)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    texts = _tuple(name, values, "a text or a list of texts")
    for text in texts:
        if not isinstance(text, str) or not text:
            refuse(name, text, "texts that are not empty")
    return texts


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _schema(schema: Any) -> str:
    """A JSON schema as JSON."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"json_schema: is no JSON: {error}") from None
    elif hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if not isinstance(schema, Mapping):
        refuse("json_schema", schema, "a schema as a dict, as JSON, or a pydantic model")
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"json_schema: is no JSON: {error}") from None


_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """A number of bytes: 2.5G and 2.5GiB are in units of 1024, 2.5GB of 1000 as for files; or plain bytes.

    Raises ValueError that says what to write.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it as 2.5G, 800M or bytes")
    unit = 1000 if (match[3] or "").upper() == "B" else 1024
    size = int(float(match[1]) * unit ** _POWERS[match[2].upper()])
    if size < 1:
        raise ValueError(f"{text!r} is less than a byte; write it as 2.5G, 800M or bytes")
    return size


def readable(nbytes: float) -> str:
    """Bytes for people, in the units that parse_bytes takes: 4.56 GiB, 12.3 MiB, 812 B."""
    for unit, shift, digits in (("GiB", 30, 2), ("MiB", 20, 1), ("KiB", 10, 1)):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.{digits}f} {unit}"
    return f"{nbytes:.0f} B"


def check_path(name: str, value: str | os.PathLike[str]) -> Path:
    """The path; ArgumentError for what is none, and for an empty text, which would mean the current directory."""
    try:
        text = os.fsdecode(value)
    except TypeError:
        refuse(name, value, "a path, as text or as a pathlib.Path")
    if not text or "\0" in text:
        refuse(name, text, "a path (. is the current directory)")
    return Path(text)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a model is loaded. None means: decided from the model and the machine.

    ram: bytes that the whole process may take. beside: what another process of the service takes of them. context:
    tokens of one sequence. sequences: how many may be in work at once, each with a whole context. chunk: tokens of a
    prompt that go through the layers together. share_prefixes: keep keys and values of ended sequences, for prompts
    that begin alike. kv_type: how these are held, as half floats or as int8 with a scale for each 32, which takes
    little more than half of the memory. speculate: how many tokens ahead are guessed and verified together, which
    changes the time of a token and nothing else: "auto" where that is faster by what was measured, "off", or a number.
    """

    path: Path | None = None
    ram: int | None = None
    beside: int = 0
    threads: int | None = None
    context: int | None = None
    precision: Precision = "fast"
    sequences: int = 1
    chunk: int = 512
    share_prefixes: bool = False
    kv_type: KvType = "f16"
    speculate: Speculate = "auto"

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", check_path("path", self.path))
        if self.ram is not None:
            _check_bytes("ram", self.ram)
        check_integer("beside", self.beside, 0, MAX_BYTES)
        if self.threads is not None:
            check_integer("threads", self.threads, 1, MAX_THREADS)
        if self.context is not None:
            check_integer("context", self.context, 1, 1 << 24)
        check_choice("precision", self.precision, ("fast", "exact"))
        check_choice("kv_type", self.kv_type, ("f16", "q8_0"))
        check_integer("sequences", self.sequences, 1, 1024)
        check_integer("chunk", self.chunk, 1, 1 << 16)
        if isinstance(self.speculate, str):
            check_choice("speculate", self.speculate, ("auto", "off"))
        else:
            check_integer("speculate", self.speculate, 0, MAX_GUESSES)
        if not isinstance(self.share_prefixes, bool):
            refuse("share_prefixes", self.share_prefixes, "True or False")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    temperature 0 takes the likeliest token. top_k 0, top_p 1 and min_p 0 leave all tokens in. max_tokens None is the
    room left in the context. stop: texts that end the answer and are not part of it. ignore_eos goes on after the
    model's end tokens. The same seed gives the same text; None draws one. presence_penalty is taken from the logits of
    tokens that were generated before, frequency_penalty once for each time. logit_bias: (id, what is added) pairs.
    top_logprobs: how many of the likeliest tokens each Token lists.

    One of these may say what the text must be, from its first token on, as far as max_tokens lets it come to its end:
    json_schema (a schema as a dict, as JSON, or a pydantic model), regex, choice (one of these texts), grammar (in
    Lark's notation as llguidance has it, or GBNF).
    """

    max_tokens: int | None = DEFAULT_MAX_TOKENS
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = 0
    json_schema: Any = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 0)
        check_number("temperature", self.temperature, 0, math.inf)
        check_integer("top_k", self.top_k, 0)
        check_number("top_p", self.top_p, 0, 1, open_low=True)
        check_number("min_p", self.min_p, 0, 1)
        check_number("repetition_penalty", self.repetition_penalty, *REPETITION_PENALTIES)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, (1 << 64) - 1)
        object.__setattr__(self, "stop", _texts("stop", (self.stop,) if isinstance(self.stop, str) else self.stop))
        if not isinstance(self.ignore_eos, bool):
            refuse("ignore_eos", self.ignore_eos, "True or False")
        check_number("presence_penalty", self.presence_penalty, -1e6, 1e6)
        check_number("frequency_penalty", self.frequency_penalty, -1e6, 1e6)
        check_integer("top_logprobs", self.top_logprobs, 0, 1024)
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
        wanted = "a table or pairs of a token id and a number"
        pairs = tuple(_tuple("logit_bias", pair, wanted) for pair in _tuple("logit_bias", pairs, wanted))
        for pair in pairs:
            if len(pair) != 2:
                refuse("logit_bias", pair, wanted)
        object.__setattr__(self, "logit_bias", pairs)
        for token, bias in self.logit_bias:
            check_integer("logit_bias", token, 0)
            check_number("logit_bias", bias, -1e6, 1e6)
        self._check_constraints()

    def _check_constraints(self) -> None:
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _schema(self.json_schema))
        if self.choice is not None:
            object.__setattr__(self, "choice", _texts("choice", self.choice) or refuse("choice", (), "some texts"))
        for name, texts in (("regex", (self.regex,)), ("grammar", (self.grammar,)), ("choice", self.choice or ())):
            for text in texts:
                if text is not None and not (isinstance(text, str) and _is_unicode(text)):
                    refuse(name, text, "a text without lone surrogates")
        given = [name for name in _CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ArgumentError(f"{' and '.join(given)}: exclude each other; give one of them")


class Token(NamedTuple):
    """One generated token: the text that became final with it and ln of its probability in the model's distribution.

    top: the likeliest tokens at its place and their ln, as many as top_logprobs asked for.
    """

    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
