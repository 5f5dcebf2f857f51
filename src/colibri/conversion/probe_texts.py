# ruff: noqa: RUF001 (letters and symbols of other scripts are meant)
"""Texts on which tokenizers differ: what is compared of a checkpoint's tokenizer and of the one that is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from colibri.text.pieces import Vocabulary

MAX_ADDED: Final = 128  # added tokens that are tried; those with rules of their own come first
MAX_PIECES: Final = 256  # pieces of the vocabulary that are tried as words

# The known ways of splitting words differ on these: digits, case, contractions, slashes, scripts, line ends.
WORDS: Final = (
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
# What normalizers and rules for spaces change: blanks, line ends, compatible characters, case, and nothing at all.
_BLANKS: Final = (
    "",
    " ",
    "  ",
    "     ",
    "\n",
    "\n\n",
    "\n\n\n\n",
    "\r\n\r\n",
    "\t\t\t",
    "a",
    " a",
    "  a",
    "a ",
    "a  ",
    "\na\n",
    "▁a ▁ b▁▁",
    "① Ⅷ ﬁ Ａｂ ｶﾅ ㍿ x\u00ad",
    "UPPER Lower ÉCOLE ẞ İI",
    "1 12 123 1234 12345 123456 ١٢٣ ４５６",
    "a\x00b \u200b\u200d\ufeff",
    "👩🏽‍🚀🇩🇪🇺🇸 ❤️ ☺",
    "def f(x):\n    return x  # 4\n\n\n\n\tif x:\n        y",
)
# Around an added token: it may take the spaces beside it, or count as a word of its own only.
_AROUND: Final = (
    "{}", "{}word", "{} word", "word{}word", "word {} word", "  {}  word", "{}{}", "{}\n\n{} {}", "word.{}",
)  # fmt: skip


def probe_texts(vocabulary: Vocabulary) -> Iterator[str]:
    """Texts that fit this vocabulary."""
    yield from WORDS
    yield from _BLANKS
    added: dict[int, Any] = vocabulary.backend.get_added_tokens_decoder()
    ruled = sorted(added.values(), key=lambda token: not (token.lstrip or token.rstrip or token.single_word))
    for token in ruled[:MAX_ADDED]:
        for around in _AROUND:
            yield around.replace("{}", token.content)
    contents = [token.content for token in ruled[:MAX_ADDED]]
    yield " ".join(contents)
    yield "text".join(contents)
    step = max(1, len(vocabulary.pieces) // MAX_PIECES)
    for token in range(0, len(vocabulary.pieces), step):
        yield vocabulary.piece_bytes(token).decode("utf-8", "ignore")
