"""The tokenizer of the golden checkpoints: byte-level BPE with a handful of merges, special tokens and a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("e", "r"), ("Ġ", "a"), ("o", "n")]
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write tokenizer.json and its settings; ids 0..2 are special, then come bytes, then merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = SPECIALS + alphabet + ["".join(pair) for pair in MERGES]
    vocab = {word: number for number, word in enumerate(words)}
    assert len(words) <= vocab_size
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    split = pre_tokenizers.Split(__import__("tokenizers").Regex(QWEN2_SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in SPECIALS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    ends = {"eos_token_id": [2, 0], "pad_token_id": 0}
    (directory / "generation_config.json").write_text(json.dumps(ends, indent=1) + "\n")


def add_tokenizer(writer: Any, directory: Path) -> None:
    """The same tokenizer as GGUF metadata."""
    content = json.loads((directory / "tokenizer.json").read_text())
    config = json.loads((directory / "config.json").read_text())
    words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    padding = [f"[PAD{number}]" for number in range(len(words), config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words + padding)
    writer.add_token_types([3 if word in SPECIALS else 1 for word in words] + [5] * len(padding))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
