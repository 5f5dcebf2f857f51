"""Tokenizers written as GGUF metadata give the ids of the tokenizer.json that they came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizer_samples import (
    DEEPSEEK_V3,
    GPT4O,
    LLAMA3,
    QWEN2,
    TEXTS,
    expected_of,
    load_metadata,
    random_texts,
    train_byte_level,
)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from colibri.conversion.tokenizer_export import tokenizer_metadata
from colibri.errors import FileError, UnsupportedError
from colibri.text import load_tokenizer
from colibri.text.embedded_json import JSON
from colibri.text.gguf_tokenizer import TokenType, merges_from_scores

CONFIG = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": "{{ messages }}"}
# patterns, what else the tokenizer has, architecture -> names of which one is expected
DETECTED: list[tuple[tuple[str, ...], dict[str, bool], str, set[str]]] = [
    ((QWEN2,), {"nfc": True}, "qwen3moe", {"qwen2"}),
    ((LLAMA3,), {"ignore_merges": True}, "llama", {"llama3", "llama-bpe"}),
    ((LLAMA3,), {}, "glm4moe", {"glm4", "chatglm-bpe"}),
    ((LLAMA3,), {}, "dbrx", {"dbrx"}),
    ((GPT4O,), {"ignore_merges": True}, "gpt-oss", {"gpt-4o"}),
    (DEEPSEEK_V3, {}, "deepseek2", {"deepseek-v3"}),
    ((), {}, "llama", {"gpt-2"}),
    ((), {"nfc": True}, "olmoe", {"olmo"}),
    ((), {"digits": True}, "granitemoe", {"refact"}),
]


def write(directory: Path, tokenizer: Tokenizer, config: dict[str, Any] | None = None, **files: Any) -> Path:
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(CONFIG if config is None else config))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def export(directory: Path, architecture: str = "llama", vocab_size: int = 0, **options: Any) -> dict[str, Any]:
    """The keys that llama.cpp reads."""
    notes: list[str] = []
    keys = tokenizer_metadata(directory, expected_of(architecture), vocab_size, notes.append, **options)
    assert notes == []
    del keys[JSON]
    return {"general.architecture": architecture, **keys}


@pytest.mark.parametrize(("patterns", "options", "architecture", "names"), DETECTED)
def test_the_way_of_splitting_is_found_and_the_ids_are_the_same(
    tmp_path: Path, patterns: tuple[str, ...], options: dict[str, bool], architecture: str, names: set[str]
) -> None:
    original = train_byte_level(patterns, **options)
    keys = export(write(tmp_path, original), architecture)
    assert keys["tokenizer.ggml.pre"] in names
    rebuilt = load_metadata(keys)
    for text in [*TEXTS, *random_texts(100)]:
        assert rebuilt.encode(text, add_special=False) == original.encode(text, add_special_tokens=False).ids


def test_roles_types_padding_and_templates(tmp_path: Path) -> None:
    original = train_byte_level((QWEN2,), nfc=True)
    size = original.get_vocab_size()
    templates = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    write(tmp_path, original, CONFIG | {"chat_template": templates}, generation_config={"eos_token_id": [size - 4]})
    keys = export(tmp_path, vocab_size=size + 3)
    ids = original.get_vocab()
    assert len(keys["tokenizer.ggml.tokens"]) == len(keys["tokenizer.ggml.token_type"]) == size + 3
    assert keys["tokenizer.ggml.tokens"][-1] == f"[PAD{size + 2}]"
    types = keys["tokenizer.ggml.token_type"]
    assert types[-1] == TokenType.UNUSED
    assert types[ids["<|im_end|>"]] == TokenType.CONTROL
    assert types[ids["<think>"]] == TokenType.USER_DEFINED
    assert keys["tokenizer.ggml.bos_token_id"] == ids["<|endoftext|>"]
    assert keys["tokenizer.ggml.eos_token_id"] == ids["<|im_end|>"]
    assert keys["tokenizer.ggml.add_bos_token"] is False
    assert keys["tokenizer.chat_template"] == "A"
    assert keys["tokenizer.chat_template.tool_use"] == "B"
    rebuilt = load_metadata(keys)
    assert rebuilt.eos_ids == load_tokenizer(tmp_path).eos_ids
    assert rebuilt.chat_templates == {"default": "A", "tool_use": "B"}


def test_a_begin_token_that_the_post_processor_adds(tmp_path: Path) -> None:
    original = train_byte_level((LLAMA3,), ignore_merges=True)
    begin = original.token_to_id("<|endoftext|>")
    original.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", begin)]
    )
    keys = export(write(tmp_path, original))
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert load_metadata(keys).encode("hi") == original.encode("hi").ids


def sentencepiece_tokenizer(sentencepiece: dict[str, Any]) -> Tokenizer:
    """As the tokenizer.json files of Llama 2 and Mixtral are made."""
    pieces, types = sentencepiece["pieces"], sentencepiece["types"]
    merges = merges_from_scores(pieces, sentencepiece["scores"], types)
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = [piece for piece, kind in zip(pieces, types, strict=True) if kind in (2, 3)]
    backend.add_special_tokens([AddedToken(piece, normalized=False) for piece in special])
    return backend


def test_sentencepiece_ids_are_the_same_with_and_without_merges(tmp_path: Path, sentencepiece: dict[str, Any]) -> None:
    original = sentencepiece_tokenizer(sentencepiece)
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    keys = export(write(tmp_path, original, config))
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.token_type"][0] == TokenType.UNKNOWN
    assert keys["tokenizer.ggml.token_type"].tolist().count(int(TokenType.BYTE)) == 256
    assert keys["tokenizer.ggml.add_bos_token"] is True
    scored = {key: value for key, value in keys.items() if key != "tokenizer.ggml.merges"}
    for rebuilt in (load_metadata(keys), load_metadata(scored)):
        for text in [*TEXTS, *random_texts(100)]:
            assert rebuilt.encode(text, add_special=False) == original.encode(text, add_special_tokens=False).ids


def test_gemma4_has_a_name_for_its_tokenizer(tmp_path: Path, sentencepiece: dict[str, Any]) -> None:
    original = sentencepiece_tokenizer(sentencepiece)
    keys = export(write(tmp_path, original), "gemma4")
    assert keys["tokenizer.ggml.model"] == "gemma4"
    rebuilt = load_metadata({key: value for key, value in keys.items() if key != JSON})
    for text in [*TEXTS, *random_texts(100)]:
        assert rebuilt.encode(text, add_special=False) == original.encode(text, add_special_tokens=False).ids


def test_tokens_without_a_row_in_the_model_are_left_out(tmp_path: Path) -> None:
    original = train_byte_level((QWEN2,), nfc=True)
    size = original.get_vocab_size()
    notes: list[str] = []
    keys = tokenizer_metadata(write(tmp_path, original), expected_of("llama"), size - 1, notes.append)
    lengths = [len(keys[f"tokenizer.ggml.{name}"]) for name in ("tokens", "token_type")]  # type: ignore[arg-type]
    assert lengths == [size - 1] * 2
    assert "left out" in notes[0]


def test_what_cannot_be_expressed_is_told_or_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        export(tmp_path)
    odd = train_byte_level((r"[aeiou]+|[^aeiou]+",))
    write(tmp_path, odd)
    notes: list[str] = []
    assert tokenizer_metadata(tmp_path, expected_of("llama"), 0, notes.append)["tokenizer.ggml.pre"] == "default"
    assert "--pre-tokenizer" in notes[0]
    assert export(tmp_path, pre="gpt-2")["tokenizer.ggml.pre"] == "gpt-2"
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.decoder = decoders.ByteLevel()
    words.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "isolated")
    write(tmp_path, words)
    with pytest.raises(UnsupportedError, match="WordLevel"):
        export(tmp_path)
