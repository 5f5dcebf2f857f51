# ruff: noqa: RUF001 (letters of other scripts are meant)
"""Texts, and small tokenizers trained on the spot with the GGUF metadata a converter would write for them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from colibri.models.registry import FAMILIES
from colibri.text import Tokenizer as LoadedTokenizer, load_tokenizer
from colibri.weights.family import PreTokenizers
from colibri.weights.metadata import Metadata

# The patterns as the models' own tokenizer.json files have them.
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)

TEXTS = [
    "Hello world! Café déjà vu — 123 😊",
    "X.<|im_end|>",
    "<|im_start|>user\nhi there<|im_end|>\n",
    "    def f(x):\n        return x  +  1\n\n\n\tif  a:\t\t\tb",
    "a  b   c    d     e      f",
    "3 33 333 3333 33333 333333 1234567.89",
    "我想在apple工作1314151天～ 日本語テキスト カタカナ 한국어 텍스트",
    "ὕβρις Ελληνικά русский ТЕКСТ العربية हिन्दी ภาษาไทย",
    "🚀 (normal) 😶‍🌫️ (multiple emojis concatenated) ✅ 🦙🦙",
    "I'm I'LL we've WE'VE don't DON'T 'tis it's",
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n",
    "e\u0301 cafe\u0301 A\u030a \u1100\u1161",
    "\u00a0nbsp\u3000ideographic\u2003em",
    "HTTPServer camelCaseWord XMLHttpRequest fooBAR",
    "",
    " ",
    "   ",
    "\n",
    "a\x00b",
    "!!!???...,,,;;; @#$%^&*()_+-=[]{}|\\:\"'<>/?`~\r\n",
    "①②③ ½ ⅷ ² ³ x²",
    "ﬁ ligature Ǆ ǅ ǆ ß ẞ İ ı",
    "\u200b\u200d\ufeff zero",
    "<think>\nok\n</think>\n\nx",
]


_WORDS = (
    "the of and to in is that it was for on are with as his they at be this from have or by one had not but what"
    " all were when we there can an your which their said if do will each about how up out them then she many some"
    " so these would other into has more her two like him see time could no make than first been its who now people"
    " return def self import print value lambda HTTPServer camelCase Server user assistant system"
    " Café déjà vu über Straße naïve élève 我想在苹果工作 日本語 テキスト 한국어 русский текст Ελληνικά हिन्दी 😊 🚀"
)


def corpus() -> list[str]:
    """Enough text for a few hundred merges in several scripts."""
    words = _WORDS.split()
    generator = random.Random(7)
    lines = []
    for _ in range(400):
        line = " ".join(generator.choice(words) for _ in range(generator.randrange(3, 14)))
        lines.append("    " * generator.randrange(3) + line + generator.choice([".", "!\n", " 123 45", "'s it'll\n\n"]))
    return lines


def random_texts(count: int, seed: int = 3) -> list[str]:
    """Strings from many scripts with runs of spaces, digits and line ends."""
    generator = random.Random(seed)
    ranges = [(32, 127), (0xA0, 0x250), (0x370, 0x400), (0x4E00, 0x4E20), (0x3040, 0x3060), (0xAC00, 0xAC10)]
    ranges += [(0x1F600, 0x1F610), (0x900, 0x940)]
    alphabet = [chr(code) for low, high in ranges for code in range(low, high)] + list(" \n\t'  \r0123456789") * 10
    return ["".join(generator.choice(alphabet) for _ in range(generator.randrange(1, 50))) for _ in range(count)]


def train_byte_level(
    patterns: tuple[str, ...], *, nfc: bool = False, ignore_merges: bool = False, digits: bool = False
) -> Tokenizer:
    """A byte-level BPE tokenizer made as tokenizer.json files make it, with Qwen-like added tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    splits += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    return tokenizer


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level_metadata(tokenizer: Tokenizer, pre: str | None = "qwen2", architecture: str = "") -> dict[str, Any]:
    """What a converter writes to a GGUF file for a byte-level tokenizer."""
    state = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    types = np.ones(len(pieces), np.int32)
    for token, added in tokenizer.get_added_tokens_decoder().items():
        types[token] = 3 if added.special else 4
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": vocabulary["<|im_end|>"],
        "tokenizer.ggml.bos_token_id": vocabulary["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata


def expected_of(architecture: str) -> PreTokenizers:
    """What the checkpoints of a family say of splitting."""
    family = FAMILIES.by_architecture.get(architecture)
    return PreTokenizers() if family is None else family.pre_tokenizers


def load_metadata(values: dict[str, Any]) -> LoadedTokenizer:
    """The tokenizer of a GGUF file with this metadata."""
    metadata = Metadata(Path("model.gguf"), values)
    return load_tokenizer(metadata, expected_of(metadata.text("general.architecture", "")))
