# ruff: noqa: RUF001 (letters and symbols of other scripts are meant)
"""Writes a Hugging Face tokenizer as GGUF metadata (`tokenizer.ggml.*`), so that a file needs nothing beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from colibri.errors import UnsupportedError
from colibri.text.gguf_tokenizer import TokenType
from colibri.text.huggingface import Directory
from colibri.text.pieces import Vocabulary
from colibri.text.pretokenizers import EXPECTED, PRE_TOKENIZERS, PreTokenizer
from colibri.text.special_tokens import SpecialIds, end_ids

Note = Callable[[str], None]

# Texts on which the known ways of splitting words differ: digits, case, contractions, slashes, scripts, line ends.
_PROBES: Final = (
    "Hello world! It's 12345 o'clock, I'LL we'Re don't",
    "camelCase HTTPServer snake_case x=1;y==2 //path/to/file\n\n\n  indented\r\n\ttab  \n end   ",
    "3.14159 1,000,000 v2 a1b2 10/20/2030",
    "naïve Ünïcode école Łódź Привет мир مرحبا नमस्ते ไทย",
    "中文字符 日本語テキスト カタカナ 한국어 「引用」 ，。！",
    "😀😃 👨‍👩‍👧 → ∑x² ½ ³ ™ ©2024 …'s ''ll",
    "$100 +5% <tag> [a] {b} `code` ~x^2| a&&b #!/bin/sh @user",
    "e\u0301cole \u212b \ufb01 \u1e9b\u0323",
    " leading  double   triple\u00a0nbsp\u3000wide",
)


def tokenizer_metadata(
    directory: Path, architecture: str, vocab_size: int, note: Note, *, pre: str | None = None
) -> dict[str, object]:
    """The keys that describe the tokenizer of a directory; the vocabulary is padded to `vocab_size` ids.

    `pre` names the way of splitting words where it cannot be told. Raises FileError or FormatError for missing and
    damaged files, UnsupportedError for a tokenizer that GGUF's two byte-pair families cannot express.
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
        name = pre or detect_pre_tokenizer(vocabulary, architecture, source.file)
        keys |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name}
    elif vocabulary.style == "sentencepiece":
        keys |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}
        keys["tokenizer.ggml.add_space_prefix"] = vocabulary.strip_leading_space
        keys["tokenizer.ggml.scores"] = _scores(pieces, description)
    else:
        raise UnsupportedError(f"{source.file}: has no decoder, so its family cannot be told; byte pairs are expected")
    keys["tokenizer.ggml.merges"] = [" ".join(pair) for pair in _merges(description)]
    return keys | _roles(vocabulary, roles) | _templates(source)


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


def detect_pre_tokenizer(vocabulary: Vocabulary, architecture: str, file: Path) -> str:
    """The name under which GGUF knows how this tokenizer splits words, found by splitting probes.

    Raises UnsupportedError when none of the known ways gives the same words.
    """
    words = [_words(vocabulary.backend.pre_tokenizer, probe) for probe in _PROBES]
    fits = [name for name, candidate in PRE_TOKENIZERS.items() if words == _words_of(candidate)]
    state = json.loads(vocabulary.backend.to_str())
    ignore = bool(state["model"].get("ignore_merges"))
    composes = (state["normalizer"] or {}).get("type") == "NFC"

    def likeness(name: str) -> tuple[bool, bool, bool]:
        """How well a name goes with the rest of the tokenizer; the first of the best is taken."""
        known = PRE_TOKENIZERS[name]
        return known.ignore_merges == ignore, known.nfc == composes, name in EXPECTED.get(architecture, frozenset())

    if not fits:
        raise UnsupportedError(
            f"{file}: splits words in a way that GGUF has no name for here; give the name that fits with "
            f"--pre-tokenizer, one of {', '.join(PRE_TOKENIZERS)}"
        )
    return max(fits, key=likeness)


def _words(pre_tokenizer: Any, text: str) -> list[str]:
    return [word for word, _ in pre_tokenizer.pre_tokenize_str(text)] if pre_tokenizer is not None else [text]


def _words_of(candidate: PreTokenizer) -> list[list[str]]:
    splitter = candidate.splitter()
    return [_words(splitter, probe) for probe in _PROBES]


def _roles(vocabulary: Vocabulary, roles: SpecialIds) -> dict[str, object]:
    backend = vocabulary.backend
    starts = backend.encode("").ids if vocabulary.encodes_special else []
    bos = roles.bos if roles.bos is not None else next(iter(starts), None)
    keys: dict[str, object] = {
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.eos_token_id": roles.eos,
        "tokenizer.ggml.unknown_token_id": backend.token_to_id(getattr(backend.model, "unk_token", None) or ""),
        "tokenizer.ggml.padding_token_id": _padding(backend),
        "tokenizer.ggml.add_bos_token": roles.add_bos or (bool(starts) and starts[0] == bos),
        "tokenizer.ggml.add_eos_token": roles.add_eos or (bool(starts) and starts[-1] == roles.eos and len(starts) > 1),
    }
    control = {piece: token for token in vocabulary.special if (piece := vocabulary.pieces[token]) is not None}
    by_name = end_ids(control, ())
    ends = sorted(end_ids(control, roles.ends) - {roles.eos}, key=lambda token: (token in by_name, token))
    # GGUF has room for two more; ends that a reader knows by their names come last
    keys |= dict(zip(("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"), ends, strict=False))
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
