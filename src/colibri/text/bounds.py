"""How few tokens a text can have, known from its length alone: encoding a very long one takes seconds and gigabytes."""

from __future__ import annotations

import json
from typing import Any, Final

from colibri.text.pieces import BYTE_ALPHABET, Vocabulary

# What a step may make shorter: NFC at most to a third (three Hangul letters of 3 bytes become one character of 3).
_NORMALIZERS: Final = {"Prepend": 1, "ByteLevel": 1, "NFC": 3}
_PRE_TOKENIZERS: Final = {"ByteLevel", "Digits", "Metaspace", "UnicodeScripts"}
_SPACES: Final = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}


def bytes_a_token(vocabulary: Vocabulary) -> int | None:
    """Bytes of a text that one token covers at most; None where the tokenizer may drop parts of a text."""
    shrinking = _shrinking(vocabulary)
    if shrinking is None or not _knows_all_bytes(vocabulary):
        return None
    if any(token.lstrip or token.rstrip for token in vocabulary.backend.get_added_tokens_decoder().values()):
        return None  # these swallow the spaces around them
    longest = max(len(vocabulary.piece_bytes(token)) for token in range(len(vocabulary.pieces)))
    return max(1, longest) * shrinking


def _shrinking(vocabulary: Vocabulary) -> int | None:
    """The factor by which text can get shorter on its way to the model; None where that has no bound."""
    factor = 1
    for step in _steps(vocabulary.backend.normalizer, "normalizers"):
        if step["type"] not in _NORMALIZERS and step != _SPACES:
            return None
        factor *= _NORMALIZERS.get(step["type"], 1)
    for step in _steps(vocabulary.backend.pre_tokenizer, "pretokenizers"):
        keeps = step["type"] in ("Split", "Punctuation") and step["behavior"] != "Removed"
        if step["type"] not in _PRE_TOKENIZERS and not keeps:
            return None
    return factor


def _steps(component: Any, parts: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences opened."""
    if component is None:
        return []
    waiting, steps = [json.loads(component.__getstate__())], []
    while waiting:
        step = waiting.pop(0)
        if step["type"] == "Sequence":
            waiting = step[parts] + waiting
        else:
            steps.append(step)
    return steps


def _knows_all_bytes(vocabulary: Vocabulary) -> bool:
    """Whether there is a token for each byte, so that nothing is left out and no run of bytes becomes one unknown."""
    known = set(vocabulary.pieces)
    if vocabulary.style == "byte_level":
        return known.issuperset(BYTE_ALPHABET)
    fallback = getattr(vocabulary.backend.model, "byte_fallback", False)
    return bool(fallback) and known.issuperset(f"<0x{byte:02X}>" for byte in range(256))
