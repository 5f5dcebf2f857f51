"""One interface to the tokenizers of GGUF files and Hugging Face directories."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any, Protocol

from colibri.config import shown
from colibri.errors import ArgumentError
from colibri.text import chat, gguf_tokenizer
from colibri.text.bounds import bytes_a_token
from colibri.text.decoder import IncrementalDecoder
from colibri.text.embedded_json import JSON, embedded_vocabulary
from colibri.text.huggingface import Directory
from colibri.text.pieces import Vocabulary
from colibri.text.special_tokens import MORE_ENDS, SpecialIds, end_ids
from colibri.weights.family import NO_PRE_TOKENIZERS, PreTokenizers
from colibri.weights.metadata import Metadata


class _Source(Protocol):
    """Where a tokenizer comes from; everything but the templates is read on first use."""

    notes: list[str]

    def chat_templates(self) -> dict[str, str]: ...

    def load(self) -> tuple[Vocabulary, SpecialIds]: ...


class _DirectorySource:
    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self._directory = Directory(path)

    def chat_templates(self) -> dict[str, str]:
        return self._directory.chat_templates()

    def load(self) -> tuple[Vocabulary, SpecialIds]:
        vocabulary = self._directory.vocabulary(self.notes.append)
        return vocabulary, self._directory.special_ids(vocabulary.backend, vocabulary.encodes_special)


class _GGUFSource:
    """The keys `tokenizer.*` of a GGUF file; where a whole tokenizer.json is among them, it decides."""

    def __init__(self, metadata: Metadata, expected: PreTokenizers) -> None:
        self.notes: list[str] = []
        self._metadata = metadata
        self._embedded = JSON in metadata
        family = "" if self._embedded else gguf_tokenizer.family(metadata)
        self._llama = family == "llama"
        self._add_bos_default = family in ("llama", "gemma4")
        if family == "gpt2":
            pre, doubt = gguf_tokenizer.choose_pre_tokenizer(metadata, expected)
            self._add_bos_default = pre.add_bos
            if doubt is not None:
                self.notes.append(f"{metadata.source}: {doubt}")
                warnings.warn(self.notes[-1], stacklevel=4)

    def chat_templates(self) -> dict[str, str]:
        prefix = "tokenizer.chat_template"
        keys = (key for key in self._metadata if key == prefix or key.startswith(f"{prefix}."))
        return {key.removeprefix(prefix).removeprefix(".") or "default": self._metadata.text(key) for key in keys}

    def load(self) -> tuple[Vocabulary, SpecialIds]:
        if self._embedded:
            vocabulary = embedded_vocabulary(self._metadata)
            return vocabulary, self._special_ids(len(vocabulary.pieces), wraps=not vocabulary.encodes_special)
        pieces = gguf_tokenizer.read_tokens(self._metadata)
        ids = self._special_ids(len(pieces), wraps=True)
        named = [token for token in (ids.bos, *ids.ends) if token is not None]
        return gguf_tokenizer.build(self._metadata, pieces, named, self.notes.append), ids

    def _special_ids(self, size: int, *, wraps: bool) -> SpecialIds:
        """wraps: whether begin and end tokens are added here; the post-processor of a tokenizer.json may do it."""
        bos = self._id("bos_token_id", size, 1 if self._llama else None)
        eos = self._id("eos_token_id", size, 2 if self._llama else None)
        ends = {eos, *(self._id(name, size, None) for name in ("eot_token_id", "eom_token_id"))}
        more = self._metadata.integers(MORE_ENDS, None)
        ends.update(token for token in ([] if more is None else more.tolist()) if 0 <= token < size)
        add_bos = self._metadata.flag("tokenizer.ggml.add_bos_token", self._add_bos_default)
        return SpecialIds(
            bos=bos,
            eos=eos,
            ends=frozenset(token for token in ends if token is not None),
            add_bos=wraps and bos is not None and add_bos,
            add_eos=wraps and eos is not None and self._metadata.flag("tokenizer.ggml.add_eos_token", False),
        )

    def _id(self, name: str, size: int, default: int | None) -> int | None:
        key = f"tokenizer.ggml.{name}"
        token = self._metadata.integer(key, default, low=-gguf_tokenizer.ID_LIMIT, high=gguf_tokenizer.ID_LIMIT)
        if token is not None and not 0 <= token < size:
            self.notes.append(f"{self._metadata.source}: {key}: {token} is outside the vocabulary of {size}; ignored.")
            return None
        return token


class Tokenizer:
    """Text to ids and back.

    The vocabulary is read on first use, so a checkpoint can be looked at without it. `notes` are sentences about the
    checkpoint that a user should see (they grow when the vocabulary is read).
    """

    def __init__(self, source: _Source) -> None:
        self._source = source

    @property
    def notes(self) -> tuple[str, ...]:
        """What is doubtful about this tokenizer."""
        return tuple(self._source.notes)

    @cached_property
    def _loaded(self) -> tuple[Vocabulary, SpecialIds]:
        return self._source.load()

    @property
    def vocabulary(self) -> Vocabulary:
        """The pieces, and the backend that encodes."""
        return self._loaded[0]

    @property
    def vocab_size(self) -> int:
        """Number of ids that the tokenizer knows; a model's output may be padded beyond it."""
        return len(self.vocabulary.pieces)

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, whether or not it is added."""
        return self._loaded[1].bos

    @property
    def eos_id(self) -> int | None:
        """The id that templates call eos_token."""
        return self._loaded[1].eos

    @property
    def add_bos(self) -> bool:
        """Whether `encode` begins with the begin token."""
        return self.bos_id is not None and self.encode("")[:1] == [self.bos_id]

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a reply: those the checkpoint names, and control tokens named like an end of turn."""
        control = {token: self.vocabulary.pieces[token] for token in self.vocabulary.special}
        ends = end_ids(control, self._loaded[1].ends)
        if not ends:
            self._source.notes.append(
                "The checkpoint names no end token: replies end by their length or a stop string."
            )
        return ends

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text.

        `add_special`: with the begin (and end) token where the checkpoint asks for it; give False for a rendered chat,
        whose template has written them already. `parse_special`: control tokens written out in the text become their
        ids; without it they are text like any other. Raises ArgumentError when `text` is not a string.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"text: found {type(text).__name__}, expected a string")
        vocabulary, special = self._loaded
        backend = vocabulary.backend if parse_special else self._without_control
        try:
            ids: list[int] = backend.encode(_valid(text), add_special_tokens=add_special).ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library panics when a pattern gives up; a panic is not an Exception
            raise ArgumentError(f"text: the model's tokenizer gave up on it ({error}); give another text") from None
        if add_special and special.add_bos and special.bos is not None:
            ids.insert(0, special.bos)
        if add_special and special.add_eos and special.eos is not None:
            ids.append(special.eos)
        return ids

    def normalized(self, text: str) -> str:
        """The text as the vocabulary's normalizer (lower case, composed characters) leaves it, without a space put in
        front."""
        normalizer = self.vocabulary.backend.normalizer
        changed: str = text if normalizer is None else normalizer.normalize_str(text)
        return changed.replace("\u2581", " ").removeprefix(" ") if self.vocabulary.style == "sentencepiece" else changed

    @cached_property
    def _without_control(self) -> Any:
        """A copy of the backend to which control tokens are text."""
        backend = copy.deepcopy(self.vocabulary.backend)
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def _bytes_a_token(self) -> int | None:
        return bytes_a_token(self.vocabulary)

    def least_tokens(self, text: str, room: int) -> int:
        """A number of tokens that the text has at least, from its length alone; more than `room` when it cannot fit.

        Ask before `encode`, which cannot be interrupted and whose time and memory grow with the text.
        """
        if len(text) <= room // 4:
            return 0
        length = len(text.encode("utf-8", "surrogatepass"))
        if length <= room or self._bytes_a_token is None:
            return 0
        return -(-length // self._bytes_a_token)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD, ids without a token become nothing."""
        decoder = self.decoder(skip_special=skip_special)
        return "".join([*map(decoder.feed, _ids(ids)), decoder.finish()])

    def decoder(self, *, skip_special: bool = True, continues: bool = False) -> IncrementalDecoder:
        """For text that arrives id by id; `continues` keeps a leading space, for text that goes on from a prompt."""
        return IncrementalDecoder(self.vocabulary, skip_special=skip_special, continues=continues)

    def token_bytes(self, token: int) -> bytes:
        """Bytes that an id adds to the text; empty for an id without a token."""
        return self.vocabulary.piece_bytes(*_ids([token]))

    def token_text(self, token: int) -> str:
        """`token_bytes` for display, with U+FFFD for parts of characters."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_id(self, piece: str) -> int | None:
        """Id of a special or added token by its text (or of any piece by its spelling in the vocabulary)."""
        if not isinstance(piece, str):
            raise ArgumentError(f"piece: found {type(piece).__name__}, expected a string")
        token: int | None = self.vocabulary.backend.token_to_id(_valid(piece))
        return token

    def is_special(self, token: int) -> bool:
        """Whether an id is a control token, no part of the text."""
        return token in self.vocabulary.special

    @cached_property
    def chat_templates(self) -> Mapping[str, str]:
        """The checkpoint's templates by name."""
        return self._source.chat_templates()

    @property
    def chat_template(self) -> str | None:
        """The plain chat template, where the checkpoint has one."""
        return self.chat_templates.get("default")

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """A conversation as the prompt that the model was trained on; encode it with `add_special=False`.

        `variables` are passed to the template (such as enable_thinking). Raises ArgumentError with the template's own
        message where it refuses the conversation.
        """
        return self.chat_prompt(messages, tools, add_generation_prompt, variables).text

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> chat.ChatPrompt:
        """As `render_chat`, with what is known of the prompt."""
        if not isinstance(variables, Mapping | None):
            raise ArgumentError(f"variables: found {type(variables).__name__}, expected names and values")
        if not isinstance(tools, Sequence | None) or isinstance(tools, str | bytes):
            raise ArgumentError(f"tools: found {type(tools).__name__}, expected a list")
        template = self.chat_templates.get("tool_use") if tools else None
        template = template or self.chat_template
        if template is None:
            template = chat.fallback_template(self.token_id("<|im_start|>"), self.token_id("<|im_end|>"))
            note = "The checkpoint has no chat template; a generic one is used."
            if note not in self._source.notes:
                self._source.notes.append(note)
        special = {"bos_token": self.bos_id, "eos_token": self.eos_id}
        tokens = {name: self._piece(token) for name, token in special.items() if token is not None}
        return chat.chat_prompt(template, messages, tools, add_generation_prompt, {**tokens, **(variables or {})})

    def _piece(self, token: int) -> str:
        return self.vocabulary.pieces[token] or ""


def _ids(values: object) -> list[int]:
    try:
        return [index(value) for value in values]  # type: ignore[attr-defined]
    except TypeError:
        raise ArgumentError(f"ids: found {shown(values)}, expected integers") from None


def _valid(text: str) -> str:
    """Lone surrogates (a client's broken JSON escape) become U+FFFD, as decoders do with broken bytes."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def load_tokenizer(source: str | Path | Metadata, expected: PreTokenizers = NO_PRE_TOKENIZERS) -> Tokenizer:
    """The tokenizer of a checkpoint.

    `source`: a Hugging Face directory or the path of its tokenizer.json, or the metadata of a GGUF file. expected: what
    the family's checkpoints say of splitting; a note tells where a file says otherwise.
    Raises FileError, FormatError or UnsupportedError; what is wrong inside the vocabulary is
    raised when it is first used.
    """
    if isinstance(source, (str, Path)):
        return Tokenizer(_DirectorySource(Path(source)))
    return Tokenizer(_GGUFSource(source, expected))
