"""The tokenizer.json that a GGUF file may hold as a whole; it says what the keys `tokenizer.ggml.*` have no room for.

The key is that of the GGUF specification. The value is checked as a file is, and against the vocabulary beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from colibri.text.gguf_tokenizer import TOKENS, TYPES, TokenType
from colibri.text.pieces import Vocabulary
from colibri.text.tokenizer_json import read_backend, vocabulary_of
from colibri.weights.metadata import Metadata

JSON: Final = "tokenizer.huggingface.json"
_SPACE: Final = "\u2581"


def embedded_vocabulary(metadata: Metadata) -> Vocabulary:
    """The vocabulary of the tokenizer.json in a file that has one.

    Raises FormatError when it is none or contradicts `tokenizer.ggml.tokens`, UnsupportedError as for a directory.
    """
    where = f"{metadata.source}: {JSON}"
    data = metadata.text(JSON).encode("utf-8", "surrogateescape")
    vocabulary = vocabulary_of(read_backend(data, where), where)
    tokens = metadata.strings(TOKENS, None)
    if tokens is not None:
        _check_same(metadata, vocabulary, list(tokens))
    return vocabulary


def _check_same(metadata: Metadata, vocabulary: Vocabulary, tokens: list[str]) -> None:
    """Every piece under the same id; behind them and in gaps the file may have padding, which is marked as unused."""
    pieces: Sequence[str | None] = vocabulary.pieces
    if len(pieces) > len(tokens):
        raise metadata.error(JSON, f"a tokenizer of {len(pieces)} tokens", f"one of the {len(tokens)} in {TOKENS}")
    types = metadata.integers(TYPES, None)
    if types is not None and len(types) != len(tokens):
        raise metadata.error(TYPES, f"an array of {len(types)} values", f"an array of {len(tokens)} numbers")
    for token, written in enumerate(tokens):
        piece = pieces[token] if token < len(pieces) else None
        if piece == written:
            continue
        if piece is None:
            same = types is None or int(types[token]) == TokenType.UNUSED
        else:  # converters write the spaces of added tokens in either way
            same = token in vocabulary.literal and piece.replace(_SPACE, " ") == written.replace(_SPACE, " ")
        if not same:
            found = f"without token {token}" if piece is None else f"a tokenizer with {piece!r:.60} as token {token}"
            raise metadata.error(JSON, found, f"{written!r:.60}, as {TOKENS} has it,")
