"""A loaded model: what the public interface gives out."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from colibri.config import SamplingParams, check_integer, check_path, shown
from colibri.engine.arguments import check_ids, check_params, known_length, many_conversations, many_prompts
from colibri.engine.engine import Engine, RowsWatcher
from colibri.engine.generation import Generation
from colibri.engine.grammar import Grammars, grammar_of
from colibri.engine.sequence import Constraint, PromptWatcher, Sequence as Running
from colibri.engine.statistics import describe_model
from colibri.errors import ArgumentError, ContextFullError, FileError
from colibri.experts.loading import Listener
from colibri.experts.plan import Plan
from colibri.experts.residency import Residency
from colibri.experts.stats import RoutingStats
from colibri.experts.swap import revert_expert, swap_expert
from colibri.machine import peak_resident_bytes, resident_bytes
from colibri.models.decoder import Tap
from colibri.spec import ModelSpec
from colibri.speculation.lookup import Lookup
from colibri.text import Tokenizer, load_tokenizer
from colibri.weights.checkpoint import Checkpoint

DEMO = Path(__file__).resolve().parent.parent / "demo" / "colibri-demo.gguf"


def model_path(path: Path | None) -> Path:
    """The path itself, or what COLIBRI_MODEL names, or the embedded demo."""
    if path is not None:
        return path
    if (named := os.environ.get("COLIBRI_MODEL")) is not None:
        return check_path("COLIBRI_MODEL", named)
    if not DEMO.exists():
        raise FileError(f"{DEMO}: the embedded demo model is not there; give a model's path or set COLIBRI_MODEL")
    return DEMO


_open: weakref.WeakValueDictionary[int, Model] = weakref.WeakValueDictionary()  # not a set: safe beside threads


@atexit.register
def _close_all() -> None:
    """Reader threads must end before the interpreter does."""
    for reference in _open.valuerefs():
        if (model := reference()) is not None:
            model.close()


class Model:
    """A model ready to run; made by `colibri.load`, to be closed or used in a with statement.

    May be shared by threads: their generations go through the layers together.
    context: tokens that one sequence can hold, prompt and answer together.
    plan: how memory is divided.
    """

    def __init__(
        self, checkpoint: Checkpoint, spec: ModelSpec, engine: Engine, experts: Residency, plan: Plan,
        tokenizer: Tokenizer | None, *, context: int, load_s: float,
    ) -> None:  # fmt: skip
        self.checkpoint = checkpoint
        self.spec = spec
        self.engine = engine
        self.experts = experts
        self.plan = plan
        self.context = context
        self.load_s = load_s
        self._tokenizer = tokenizer
        self._closed = False
        _open[id(self)] = self

    @property
    def routing(self) -> RoutingStats:
        """Which experts were chosen: counts, entropy, co_activation, trace."""
        return self.experts.routing

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the checkpoint and the memory plan that a user should see."""
        return (*self.checkpoint.notes, *self.plan.notes, *(self.tokenizer.notes if self.has_tokenizer else ()))

    # ---- running -------------------------------------------------------------------------------------------------

    def infer(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of every position: float32 (len(ids), vocab).

        Raises ArgumentError for an empty list or an id outside the vocabulary, ContextFullError above the context,
        NumericalError when a NaN or an infinity comes out.
        """
        self._check_open()
        return self.engine.infer(self._check_ids(ids), self.spec.vocab_size)

    def infer_rows(self, ids: Sequence[int], see: RowsWatcher, first: int = 0) -> None:
        """As `infer`, without holding all logits: see(position, logits) gets those from `first` on, a few at a time.

        The logits, float32 (n, vocab), are valid until `see` returns, which must not use the model.
        """
        self._check_open()
        if not callable(see):
            raise ArgumentError(f"see: found {shown(see)}, expected a function of a position and logits")
        check_integer("first", first, 0)
        self.engine.infer_rows(self._check_ids(ids), see, first)

    @overload
    def generate(
        self, prompts: str | Sequence[int], sampling_params: SamplingParams | None = None, **changes: Any
    ) -> Generation: ...
    @overload
    def generate(
        self, prompts: Sequence[str] | Sequence[Sequence[int]], sampling_params: SamplingParams | None = None,
        **changes: Any,
    ) -> list[Generation]: ...  # fmt: skip
    def generate(
        self, prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | None = None, **changes: Any,
    ) -> Generation | list[Generation]:  # fmt: skip
        """Continue a text or ids: an iterator of Token(id, text, logprob). For a list of prompts, a list of them.

        Several go through the layers together, whichever is waited for. changes: parameters by name, as temperature=0
        or json_schema={...}. A text is encoded with the begin token where the checkpoint asks for it. Raises
        ArgumentError and ContextFullError at once, NumericalError and FileError while it goes on.
        """
        self._check_open()
        params = check_params(sampling_params, changes)
        if not many_prompts(prompts):
            return self._continue(cast("str | Sequence[int]", prompts), params)
        texts = isinstance(prompts[0], str)
        ids = [self._check_ids(self._encode(each) if isinstance(each, str) else cast(Any, each)) for each in prompts]
        return [self._start(each, params, continues=texts) for each in ids]

    def _continue(self, prompt: str | Sequence[int], params: SamplingParams) -> Generation:
        ids = self._encode(prompt) if isinstance(prompt, str) else prompt
        return self._start(ids, params, continues=isinstance(prompt, str))

    @overload
    def chat(
        self, messages: Sequence[Mapping[str, Any]], sampling_params: SamplingParams | None = None, *,
        tools: Sequence[Mapping[str, Any]] | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Generation: ...  # fmt: skip
    @overload
    def chat(
        self, messages: Sequence[Sequence[Mapping[str, Any]]], sampling_params: SamplingParams | None = None, *,
        tools: Sequence[Mapping[str, Any]] | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> list[Generation]: ...  # fmt: skip
    def chat(
        self, messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | None = None, *, tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None, **changes: Any,
    ) -> Generation | list[Generation]:  # fmt: skip
        """The next message of a conversation, [{"role": "user", "content": "..."}], by the checkpoint's template.

        For a list of conversations, a list of them, as `generate` has it. chat_template_kwargs go to the template (such
        as enable_thinking). changes: sampling parameters by name. Raises ArgumentError where the template refuses.
        """
        self._check_open()
        params = check_params(sampling_params, changes)
        several = many_conversations(messages)
        prompts = []
        for each in cast(Any, messages if several else [messages]):
            text = self.tokenizer.render_chat(each, tools=tools, variables=chat_template_kwargs)
            self._check_length(text)
            prompts.append(self._check_ids(self.tokenizer.encode(text, add_special=False)))
        made = [self._start(ids, params, continues=False) for ids in prompts]
        return made if several else made[0]

    def _encode(self, text: str) -> list[int]:
        self._check_length(text)
        ids = self.tokenizer.encode(text)
        if not ids and self.tokenizer.bos_id is not None:
            return [self.tokenizer.bos_id]
        return ids

    def sequence(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        continues: bool = False,
        keep_special: bool = False,
        constraint: Constraint | None = None,
        prediction: Sequence[int] = (),
        prompt_watcher: PromptWatcher | None = None,
        watched: int = 0,
        watches_states: bool = False,
    ) -> Running:
        """What `engine.add` takes, for callers with a step loop of their own.

        continues: the answer goes on from a text, so that its leading space is kept. keep_special: control tokens are
        part of the text. prediction: a text that the answer may be like, to guess from. max_tokens is cut to the room
        left. prompt_watcher sees the logits of every position but the first `watched`, or what logits are made from
        (hidden,). Raises ArgumentError and ContextFullError.
        """
        ids = self._check_ids(prompt)
        if len(prediction):
            prediction = check_ids(prediction, self.spec.vocab_size, len(prediction), "prediction")
        if constraint is None and (grammar := grammar_of(params)) is not None:
            constraint = self.grammars.constraint(grammar)
        room = self.context - len(ids)
        most = room if params.max_tokens is None else min(params.max_tokens, room)
        decoder = None
        if self.has_tokenizer:
            decoder = self.tokenizer.decoder(skip_special=not keep_special, continues=continues)
        return Running(
            ids, params, most, self.end_ids, decoder, constraint=constraint,
            lookup=Lookup(prediction) if self.engine.guesses else None, prompt_watcher=prompt_watcher, watched=watched,
            watches_states=watches_states,
        )  # fmt: skip

    def _start(self, prompt: Sequence[int], params: SamplingParams, *, continues: bool) -> Generation:
        sequence = self.sequence(prompt, params, continues=continues)
        most = sequence.max_tokens
        notes: tuple[str, ...] = ()
        if params.max_tokens is not None and params.max_tokens > most:
            notes = (f"max_tokens {params.max_tokens} was cut to {most}, the room left in a context of {self.context}",)
        return Generation(self.engine, sequence, self.load_s, notes, self)

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        given = known_length(ids)
        if given is not None and given > self.context:  # before they are looked at: they may be many
            raise self._full(f"{given} tokens")
        checked = check_ids(ids, self.spec.vocab_size, self.context)
        if len(checked) > self.context:
            raise self._full(f"more than {self.context} tokens")
        return checked

    def _check_length(self, text: str) -> None:
        """Raise ContextFullError for a text that is too long however it is encoded, without encoding it."""
        least = self.tokenizer.least_tokens(text, self.context)
        if least > self.context:
            raise self._full(f"at least {least} tokens")

    def _full(self, found: str) -> ContextFullError:
        return ContextFullError(
            f"the prompt has {found}, the context holds {self.context}; shorten the prompt or load "
            f"with a larger context (this model allows {self.spec.context_length})"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ArgumentError("the model is closed")

    # ---- text ----------------------------------------------------------------------------------------------------

    @property
    def has_tokenizer(self) -> bool:
        """Whether the checkpoint brings a tokenizer; without one, prompts are ids and tokens have no text."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back. Raises FileError or FormatError when the checkpoint brings none (`has_tokenizer`)."""
        if self._tokenizer is None:  # the loader knows best what is missing
            self._tokenizer = load_tokenizer(self.checkpoint.tokenizer_source, self.checkpoint.family.pre_tokenizers)
        return self._tokenizer

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles what texts must match."""
        tokenizer = self.tokenizer if self.has_tokenizer else None
        return Grammars(tokenizer, self.spec.vocab_size, self.end_ids)

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends a text."""
        return self.tokenizer.eos_ids if self.has_tokenizer else frozenset()

    # ---- what it is and what it did ------------------------------------------------------------------------------

    def watch(self, tap: Tap | None) -> None:
        """Tell `tap` of every layer of every step; None ends it."""
        self.engine.decoder.tap = tap

    def listen(self, listener: Listener | None) -> None:
        """Tell `listener` of every step, choice and read of an expert; None ends it."""
        self.engine.listener = listener
        self.experts.listen(listener)

    def describe(self) -> dict[str, Any]:
        """Name, architecture and sizes, as in the JSON of `colibri run`."""
        return describe_model(self.checkpoint, self.spec)

    def memory(self) -> dict[str, int]:
        """Bytes, as in the JSON of `colibri run`."""
        return {
            "rss_bytes": resident_bytes(),
            "peak_rss_bytes": peak_resident_bytes(),
            "budget_bytes": self.plan.budget,
            "expert_bytes_resident": self.experts.resident_bytes,
            "expert_bytes_read": self.experts.counters.bytes_read,
        }

    def routing_summary(self) -> dict[str, int]:
        """Experts touched and how the residency did, as in the JSON of `colibri run`."""
        store = self.experts.store
        counters = self.experts.counters.as_dict()
        return {
            "experts_touched": self.routing.experts_touched,
            "experts_total": store.experts * len(store.moe_layers()),
            **{name: counters[name] for name in ("hits", "misses", "prefetched", "prefetch_used")},
        }

    def swap_expert(self, expert: int, file: str | os.PathLike[str]) -> Path:
        """Replace an expert in all layers while the model runs; the next step uses it. Returns where it is kept now.

        Raises ArgumentError for an expert that does not exist, FileError or FormatError for a file that is not a whole
        expert of this model; nothing has changed then.
        """
        self._check_open()
        return swap_expert(self.experts.store, expert, check_path("file", file))

    def revert_expert(self, expert: int) -> bool:
        """Take a replacement back; False when there was none."""
        self._check_open()
        return revert_expert(self.experts.store, expert)

    def __repr__(self) -> str:
        size = self.describe()
        count = size["parameters"]
        parameters = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
        return (
            f"<colibri.Model {size['name']}: {size['architecture']}, {size['layers']} layers, "
            f"{size['experts_per_token']} of {size['experts']} experts, {parameters} parameters, "
            f"{size['quantization']}, context {self.context}{', closed' if self._closed else ''}>"
        )

    # ---- its end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End what still runs and stop the readers of experts; nothing can be run afterwards."""
        if not self._closed:
            self._closed = True
            self.engine.close()
            self.experts.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
