"""A tokenizer.json, wherever it comes from: a file of a directory, or a value in a GGUF file."""

from __future__ import annotations

import json
from typing import Final

from tokenizers import Tokenizer as Backend

from colibri.errors import FormatError, UnsupportedError
from colibri.text.pieces import Style, Vocabulary
from colibri.weights.json_file import parse_object

MAX_TOKENS: Final = 1 << 22  # ten times any known vocabulary; bounds the memory that one large id asks for
MAX_BYTES: Final = 64 << 20  # of tokenizer.json; those of 260,000 tokens have 33 MB


def read_backend(data: bytes, where: str) -> Backend:
    """The tokenizer that the bytes of a tokenizer.json describe; FormatError naming `where` when they describe none."""
    if len(data) > MAX_BYTES:
        raise FormatError(f"{where}: has {len(data)} bytes, at most {MAX_BYTES} are expected")
    parse_object(data, where)  # the library takes the last of two values of one name
    try:
        backend = Backend.from_buffer(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare exceptions, and panics that are not even those
        raise FormatError(f"{where}: found {error}, expected a tokenizer.json. Fetch the file again.") from None
    # A file may ask to cut or pad every text; a prompt is never cut here.
    backend.no_truncation()
    backend.no_padding()
    return backend


def vocabulary_of(backend: Backend, where: str) -> Vocabulary:
    """What decoding needs to know; UnsupportedError unless the pieces are byte-level, SentencePiece's or plain text."""
    style, strip = _decoding(backend, where)
    added = backend.get_added_tokens_decoder()
    return Vocabulary(
        backend=backend,
        pieces=_pieces(backend, where),
        special=frozenset(token for token, piece in added.items() if piece.special),
        literal=frozenset(added),
        style=style,
        strip_leading_space=strip,
        encodes_special=backend.encode("").ids != backend.encode("", add_special_tokens=False).ids,
    )


def wrapping(backend: Backend) -> tuple[list[int], list[int]]:
    """The ids that the backend itself puts before and behind a text."""
    plain, wrapped = backend.encode("a", add_special_tokens=False).ids, backend.encode("a").ids
    more = len(wrapped) - len(plain)
    start = next((at for at in range(more + 1) if wrapped[at : at + len(plain)] == plain), more)
    return wrapped[:start], wrapped[start + len(plain) :]


def _pieces(backend: Backend, where: str) -> list[str | None]:
    vocabulary = backend.get_vocab(with_added_tokens=True)
    last = max(vocabulary.values(), default=-1)
    if last >= MAX_TOKENS:
        raise FormatError(f"{where}: found a token with the id {last}, expected ids below {MAX_TOKENS}.")
    pieces: list[str | None] = [None] * (last + 1)
    for piece, token in vocabulary.items():
        pieces[token] = piece
    return pieces


def _decoding(backend: Backend, where: str) -> tuple[Style, bool]:
    """How pieces become bytes, and whether a leading space is dropped, from the decoder."""
    decoder = backend.decoder
    if decoder is None:
        return "plain", False
    description = json.loads(decoder.__getstate__())
    steps = description.get("decoders", [description])
    kinds = {step["type"] for step in steps}
    unknown = kinds - {"ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace"}
    if unknown:
        found = ", ".join(sorted(unknown))
        raise UnsupportedError(f"{where}: decoder: found {found}, expected byte-level or SentencePiece pieces.")
    if "ByteLevel" in kinds:
        return "byte_level", False
    strip = any(step["type"] == "Strip" and step.get("start", 0) > 0 and step.get("content") == " " for step in steps)
    strip = strip or any(step["type"] == "Metaspace" and step.get("prepend_scheme") != "never" for step in steps)
    return "sentencepiece", strip
