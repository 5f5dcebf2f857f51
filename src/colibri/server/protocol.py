"""Messages between the web server and the engine process.

Both ends belong to one installation and talk over a socket pair that nobody else can open, so the messages are pickled
dataclasses. Each end says its VERSION first; a change of any message raises it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from colibri.config import LoadOptions, SamplingParams, Token

VERSION = 7


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to the engine: which model to load."""

    version: int
    options: LoadOptions


@dataclass(frozen=True, slots=True)
class Submit:
    """A sequence to generate.

    continues: the prompt is a text that goes on (its leading space is kept), not a rendered chat. keep_special: control
    tokens are part of the text, as formats of tool calls need them. grammar: what the text must match. prompt_logits:
    how many of the likeliest tokens to report for each position of the prompt; None for no report, -1 for all logits.
    last_only: report only the prompt's last position. pooled: instead, the mean of its last hidden states, once.
    prediction: a text that the answer is expected to be like.
    """

    request: int
    ids: tuple[int, ...]
    params: SamplingParams
    continues: bool = False
    keep_special: bool = False
    grammar: str | None = None
    prompt_logits: int | None = None
    last_only: bool = False
    pooled: bool = False
    prediction: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for this request any more."""

    request: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Whether a request stands still, because nobody takes what it got."""

    request: int
    held: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """Whether somebody looks at the experts: routing counts are sent only then."""

    experts: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""


Command = Start | Submit | Cancel | Hold | Watch | Stop


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message from the engine."""

    version: int
    pid: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded. model: as in the JSON of `colibri run`; plan: the notes of the memory plan."""

    model: dict[str, Any]
    context: int
    sequences: int
    threads: int
    isa: str
    plan: dict[str, Any]
    notes: tuple[str, ...]
    load_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The model cannot be loaded, or used any more; the process ends. code: the error's, as C callers know it."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class PromptLogits:
    """What the model expected at one position of the prompt.

    logprob: ln of the probability of the token that the prompt has next, None at the end. The others are arrays as
    bytes, since numbers as objects take many times the memory: ids int32 and logprobs float64 of the likeliest tokens,
    logits float32 (vocab,) where all were asked for.
    """

    logprob: float | None
    ids: bytes = b""
    logprobs: bytes = b""
    logits: bytes | None = None

    @property
    def top(self) -> list[tuple[int, float]]:
        """The likeliest tokens and ln of their probabilities."""
        return list(zip(np.frombuffer(self.ids, np.int32).tolist(), np.frombuffer(self.logprobs).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Output:
    """What a request got in a step. finish: stop, length, cancelled, lost, or None while it goes on.

    prefilled: tokens of the prompt that are computed; cached: those of them found in the cache. sampled: tokens chosen
    so far; guessed: tokens that were guessed before they were chosen; accepted: those that were right. bad_request: the
    error is the client's fault. stop: the stop string that ended it.
    """

    request: int
    tokens: tuple[Token, ...] = ()
    prefilled: int = 0
    cached: int = 0
    sampled: int = 0
    finish: str | None = None
    error: str | None = None
    bad_request: bool = False
    prompt: tuple[PromptLogits, ...] = ()
    stop: str | None = None
    guessed: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """All outputs of one step."""

    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """What the engine does: a few times a second while it works, seldom while it rests.

    Totals count since the process started. counts: int64 (layers, experts) as bytes, how often each expert was chosen.
    """

    running: int
    waiting: int
    preemptions: int
    steps: int
    step_s: float
    longest_step_s: float
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    cache_blocks: int
    cache_free: int
    memory: dict[str, int]
    routing: dict[str, int]
    counts: bytes | None = None
    guessed: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Alive:
    """Sent every second by a thread of its own. progress: changes whenever the engine gets anywhere."""

    progress: int


Event = Hello | Ready | Failed | Step | Stats | Alive


@dataclass(slots=True)
class EngineTotals:
    """Counted by the engine process for Stats."""

    steps: int = 0
    step_s: float = 0.0
    longest_step_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
