"""From a vocabulary's pieces to the bytes they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from tokenizers import Tokenizer as Backend

Style = Literal["byte_level", "sentencepiece", "plain"]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
KEPT_PIECES = 1 << 16  # whose bytes are remembered
_SPACE = "\u2581"  # SentencePiece writes a space as this block


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()


@dataclass(frozen=True)
class Vocabulary:
    """A backend that encodes, and what decoding needs to know of each id."""

    backend: Backend
    pieces: Sequence[str | None]  # by id; None where an id has no token
    special: frozenset[int]  # control tokens: no part of the text
    literal: frozenset[int]  # added tokens: the piece is the text itself
    style: Style
    strip_leading_space: bool  # the text's first space was put there by the encoder
    encodes_special: bool = False  # the backend itself adds the begin and end tokens

    @cached_property
    def piece_bytes(self) -> Callable[[int], bytes]:
        """Gives the bytes of an id; empty for one that the vocabulary has no token for (models pad their output)."""
        return lru_cache(KEPT_PIECES)(self._piece_bytes)

    def _piece_bytes(self, token: int) -> bytes:
        piece = self.pieces[token] if 0 <= token < len(self.pieces) else None
        if piece is None:
            return b""
        if token in self.literal or self.style == "plain":
            return encode_piece(piece)
        if self.style == "sentencepiece":
            return _sentencepiece_bytes(piece)
        return _byte_level_bytes(piece)


def encode_piece(piece: str) -> bytes:
    """UTF-8, with bytes that were never UTF-8 (kept as surrogates) restored."""
    return piece.encode("utf-8", "surrogateescape")


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(BYTE_ALPHABET[character] for character in piece)
    except KeyError:
        return encode_piece(piece)


def _sentencepiece_bytes(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    if byte is not None:
        return bytes((int(byte[1], 16),))
    return encode_piece(piece.replace(_SPACE, " "))
