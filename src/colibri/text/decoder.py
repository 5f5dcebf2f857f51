"""Ids to text, one id at a time."""

from __future__ import annotations

import codecs

from colibri.text.pieces import Vocabulary


class IncrementalDecoder:
    """Turns a stream of ids into text that never holds half a character.

    The pieces that `feed` and `finish` return, joined, equal `Tokenizer.decode` of all ids. Bytes that are not UTF-8
    become U+FFFD; bytes that may still grow into a character wait for the next id. The work for an id is in
    proportion to its piece, whatever came before.

    `continues`: the ids follow a text, so a leading space is part of it (SentencePiece drops it from a whole text).
    """

    def __init__(self, vocabulary: Vocabulary, *, skip_special: bool = True, continues: bool = False) -> None:
        self._piece_bytes = vocabulary.piece_bytes
        self._skipped = vocabulary.special if skip_special else frozenset()
        self._strip = vocabulary.strip_leading_space and not continues
        self.held = b""  # bytes that wait for the rest of their character

    def feed(self, token: int) -> str:
        """The text that is complete after this id; may be empty."""
        if token in self._skipped:
            return ""
        return self._decode(self._piece_bytes(token), last=False)

    def finish(self) -> str:
        """What was held back, as U+FFFD: the text ends here."""
        return self._decode(b"", last=True)

    def _decode(self, piece: bytes, *, last: bool) -> str:
        data = self.held + piece
        text, used = codecs.utf_8_decode(data, "replace", last)
        self.held = data[used:]
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
