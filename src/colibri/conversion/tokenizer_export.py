"""Writes a Hugging Face tokenizer as GGUF metadata, so that a file needs nothing beside it.

The whole tokenizer.json goes in, which loses nothing, and the keys `tokenizer.ggml.*` that llama.cpp reads, as well as
they can say it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from colibri.conversion.probe_texts import WORDS
from colibri.errors import FormatError, UnsupportedError
from colibri.text import gguf_tokenizer
from colibri.text.embedded_json import JSON
from colibri.text.gguf_tokenizer import TokenType
from colibri.text.huggingface import Directory
from colibri.text.pieces import Vocabulary
from colibri.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from colibri.text.special_tokens import MORE_ENDS, SpecialIds, end_ids
from colibri.text.tokenizer_json import MAX_BYTES, wrapping
from colibri.weights.family import PreTokenizers

Note = Callable[[str], None]

def tokenizer_metadata(
    directory: Path, expected: PreTokenizers, vocab_size: int, note: Note, *, pre: str | None = None
) -> dict[str, object]:
    """The keys that describe the tokenizer of a directory; the vocabulary is padded to `vocab_size` ids.

    `pre` names the way of splitting words for llama.cpp where it cannot be told. Raises FileError or FormatError for
    missing and damaged files, UnsupportedError for a tokenizer that is not made of byte pairs.
    """
    source = Directory(directory)
    vocabulary = source.vocabulary(note)
    roles = source.special_ids(vocabulary.backend, vocabulary.encodes_special)
    description = _description(vocabulary, source.file)
    pieces, types = _pieces(vocabulary, vocab_size, description)
    if 0 < vocab_size < len(pieces):
        note(f"{source.file}: has {len(pieces)} tokens, the model {vocab_size}; those above are left out.")
        pieces, types = pieces[:vocab_size], types[:vocab_size]
    keys: dict[str, object] = {"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": np.array(types, np.int32)}
    if vocabulary.style == "byte_level":
        name = pre or _pre_tokenizer(vocabulary, expected, source.file, note)
        keys |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name}
    elif vocabulary.style == "sentencepiece":
        model = next((name for name in sorted(expected.names) if name in gguf_tokenizer.FAMILIES), "llama")
        keys |= {"tokenizer.ggml.model": model, "tokenizer.ggml.pre": "default"}
        keys["tokenizer.ggml.add_space_prefix"] = _adds_space(vocabulary)
        keys["tokenizer.ggml.scores"] = _scores(pieces, description)
    else:
        raise UnsupportedError(f"{source.file}: has no decoder, so its family cannot be told; byte pairs are expected")
    keys["tokenizer.ggml.merges"] = [" ".join(pair) for pair in _merges(description)]
    keys[JSON] = _whole(vocabulary, len(pieces), source.file)
    return keys | _roles(vocabulary, roles) | _templates(source)


def _whole(vocabulary: Vocabulary, size: int, file: Path) -> str:
    """The tokenizer.json with what other files add to it, in ASCII, in which a text takes one byte a character.

    Tokens from the id `size` on are left out.
    """
    state: dict[str, Any] = json.loads(vocabulary.backend.to_str())
    if size < len(vocabulary.pieces):
        model = state["model"]
        state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < size]
        model["vocab"] = known = {piece: token for piece, token in model["vocab"].items() if token < size}
        model["merges"] = [[*pair] for pair in _merges(model) if {*pair, "".join(pair)} <= known.keys()]
    text = json.dumps(state, separators=(",", ":"))
    if len(text) > MAX_BYTES:
        raise FormatError(f"{file}: takes {len(text)} bytes in the output, at most {MAX_BYTES} are read")
    return text


def _adds_space(vocabulary: Vocabulary) -> bool:
    """Whether a text gets a space in front, by what becomes of one."""
    pieces = vocabulary.backend.encode("a", add_special_tokens=False).tokens
    return bool(pieces) and pieces[0].startswith("\u2581")


def _description(vocabulary: Vocabulary, file: Path) -> dict[str, Any]:
    """The byte-pair model of tokenizer.json."""
    model: dict[str, Any] = json.loads(vocabulary.backend.to_str())["model"]
    if model.get("type") != "BPE" or not model.get("merges"):
        raise UnsupportedError(
            f"{file}: a {model.get('type')} model; GGUF files of byte pairs (BPE) are written. Run the directory itself"
        )
    return model


def _merges(description: dict[str, Any]) -> list[Sequence[str]]:
    return [pair if isinstance(pair, list) else pair.split(" ") for pair in description["merges"]]


def _pieces(vocabulary: Vocabulary, vocab_size: int, description: dict[str, Any]) -> tuple[list[str], list[int]]:
    unknown = description.get("unk_token")
    pieces, types = [], []
    for token in range(max(vocab_size, len(vocabulary.pieces))):
        piece = vocabulary.pieces[token] if token < len(vocabulary.pieces) else None
        if piece is None:
            piece, kind = f"[PAD{token}]", TokenType.UNUSED
        elif piece == unknown and vocabulary.style == "sentencepiece":
            kind = TokenType.UNKNOWN
        elif token in vocabulary.special:
            kind = TokenType.CONTROL
        elif token in vocabulary.literal:
            kind = TokenType.USER_DEFINED
        elif vocabulary.style == "sentencepiece" and len(piece) == 6 and piece.startswith("<0x"):
            kind = TokenType.BYTE
        else:
            kind = TokenType.NORMAL
        pieces.append(piece)
        types.append(int(kind))
    return pieces, types


def _scores(pieces: Sequence[str], description: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Minus the rank of the first merge that makes a piece: SentencePiece merges by score what byte pairs by rank."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(_merges(description)):
        ranks.setdefault(left + right, rank)
    last = len(ranks) + 1
    return np.array([-float(ranks.get(piece, last)) for piece in pieces], np.float32)


def _pre_tokenizer(vocabulary: Vocabulary, expected: PreTokenizers, file: Path, note: Note) -> str:
    """The name under which GGUF knows how this tokenizer splits words, or `default`, which says that nobody knows."""
    name = detect_pre_tokenizer(vocabulary, expected)
    if name is not None:
        return name
    note(
        f"{file}: splits words in a way that GGUF has no name for here, so llama.cpp will split them otherwise; "
        "--pre-tokenizer NAME gives it a name that fits better"
    )
    return "default"


def detect_pre_tokenizer(vocabulary: Vocabulary, expected: PreTokenizers) -> str | None:
    """The name whose way of splitting gives the same words of probes; None when none does."""
    words = [_words(vocabulary.backend.pre_tokenizer, probe) for probe in WORDS]
    fits = [name for name, candidate in PRE_TOKENIZERS.items() if words == _words_of(candidate)]
    state = json.loads(vocabulary.backend.to_str())
    ignore = bool(state["model"].get("ignore_merges"))
    composes = (state["normalizer"] or {}).get("type") == "NFC"

    def likeness(name: str) -> tuple[bool, bool, bool]:
        """How well a name goes with the rest of the tokenizer; the first of the best is taken."""
        known = PRE_TOKENIZERS[name]
        return known.ignore_merges == ignore, known.nfc == composes, name in expected.names

    return max(fits, key=likeness, default=None)


def _words(pre_tokenizer: Any, text: str) -> list[str]:
    return [word for word, _ in pre_tokenizer.pre_tokenize_str(text)] if pre_tokenizer is not None else [text]


def _words_of(candidate: PreTokenizer) -> list[list[str]]:
    splitter = candidate.splitter()
    return [_words(splitter, probe) for probe in WORDS]


def _roles(vocabulary: Vocabulary, roles: SpecialIds) -> dict[str, object]:
    backend = vocabulary.backend
    before, behind = wrapping(backend) if vocabulary.encodes_special else ([], [])
    keys: dict[str, object] = {
        "tokenizer.ggml.bos_token_id": roles.bos,
        "tokenizer.ggml.eos_token_id": roles.eos,
        "tokenizer.ggml.unknown_token_id": backend.token_to_id(getattr(backend.model, "unk_token", None) or ""),
        "tokenizer.ggml.padding_token_id": _padding(backend),
        "tokenizer.ggml.add_bos_token": roles.add_bos or roles.bos in before,
        "tokenizer.ggml.add_eos_token": roles.add_eos or roles.eos in behind,
    }
    control = {token: vocabulary.pieces[token] for token in vocabulary.special}
    by_name = end_ids(control, ())
    ends = sorted(end_ids(control, roles.ends) - {roles.eos}, key=lambda token: (token in by_name, token))
    # GGUF has room for two more; ends that a reader knows by their names come last
    keys |= dict(zip(("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"), ends, strict=False))
    if roles.ends - by_name - {roles.eos, *ends[:2]}:
        keys[MORE_ENDS] = np.array(sorted(roles.ends), np.int32)
    return {key: value for key, value in keys.items() if value is not None}


def _padding(backend: Any) -> int | None:
    for name in ("<pad>", "<|pad|>", "[PAD]", "<|padding|>"):
        found: int | None = backend.token_to_id(name)
        if found is not None:
            return found
    return None


def _templates(source: Directory) -> dict[str, object]:
    templates = source.chat_templates()
    keys: dict[str, object] = {
        f"tokenizer.chat_template.{name}": template for name, template in templates.items() if name != "default"
    }
    if keys:
        keys["tokenizer.chat_templates"] = [name for name in templates if name != "default"]
    if "default" in templates:
        keys["tokenizer.chat_template"] = templates["default"]
    return keys
