"""Tokenizers of Hugging Face directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizer_samples import QWEN2, TEXTS, byte_level_metadata, load_metadata, train_byte_level
from tokenizers import Regex, Tokenizer as Backend, decoders, models, normalizers, pre_tokenizers, processors

from colibri.errors import ArgumentError, FileError, FormatError, UnsupportedError
from colibri.text import load_tokenizer
from colibri.text.gguf_tokenizer import merges_from_scores
from colibri.text.pretokenizers import PRE_TOKENIZERS


def write(path: Path, backend: Backend, **files: Any) -> Path:
    """A directory with tokenizer.json and the JSON files given by name."""
    backend.save(str(path / "tokenizer.json"))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.fixture
def backend() -> Backend:
    return train_byte_level((QWEN2,), nfc=True)


def llama_backend(sentencepiece: dict[str, Any], *, metaspace: bool) -> Backend:
    """The two ways in which tokenizer.json files write a SentencePiece model."""
    pieces = sentencepiece["pieces"]
    merges = merges_from_scores(pieces, sentencepiece["scores"], sentencepiece["types"])
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    return backend


def test_ids_are_those_of_the_file(tmp_path: Path, backend: Backend) -> None:
    for source in (write(tmp_path, backend), tmp_path / "tokenizer.json", str(tmp_path)):
        tokenizer = load_tokenizer(source)
        for text in TEXTS:
            ids = backend.encode(text).ids
            assert tokenizer.encode(text) == ids
            assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=False)
    assert tokenizer.vocab_size == backend.get_vocab_size()
    assert tokenizer.notes == ()


@pytest.mark.parametrize("metaspace", [False, True])
def test_sentencepiece_pieces(tmp_path: Path, sentencepiece: dict[str, Any], metaspace: bool) -> None:
    backend = llama_backend(sentencepiece, metaspace=metaspace)
    tokenizer = load_tokenizer(write(tmp_path, backend, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"}))
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (1, {2}, True)
    for text, ids in sentencepiece["texts"]:
        # Metaspace puts no space before a text that begins with one.
        if text and not (metaspace and text.startswith(" ")):
            assert tokenizer.encode(text) == [1, *ids], text
        assert tokenizer.decode([1, *ids], skip_special=True) == text
        assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=False)


def test_directory_and_gguf_agree(tmp_path: Path, backend: Backend) -> None:
    directory = load_tokenizer(write(tmp_path, backend))
    rebuilt = load_metadata(byte_level_metadata(backend))
    for text in TEXTS:
        assert directory.encode(text, add_special=False) == rebuilt.encode(text, add_special=False)
    for token in range(directory.vocab_size + 3):
        assert directory.token_bytes(token) == rebuilt.token_bytes(token)
        assert directory.is_special(token) == rebuilt.is_special(token)


@pytest.mark.parametrize("eos", [["<|im_end|>"], ["<|im_end|>", "<think>"]])
def test_all_end_tokens_are_found(tmp_path: Path, backend: Backend, eos: list[str]) -> None:
    ids = [backend.token_to_id(piece) for piece in eos]
    write(
        tmp_path,
        backend,
        generation_config={"eos_token_id": ids if len(ids) > 1 else ids[0]},
        tokenizer_config={"eos_token": {"content": "<|im_end|>"}},
    )
    tokenizer = load_tokenizer(tmp_path)
    # <|endoftext|> is a control token with the name of an end.
    assert tokenizer.eos_ids == {*ids, backend.token_to_id("<|endoftext|>")}
    assert tokenizer.eos_id == backend.token_to_id("<|im_end|>")


def test_end_token_of_config_alone(tmp_path: Path, backend: Backend) -> None:
    tokenizer = load_tokenizer(write(tmp_path, backend, config={"eos_token_id": 7}))
    assert tokenizer.eos_id == 7
    assert 7 in tokenizer.eos_ids


@pytest.mark.parametrize("outside", [-1, 1 << 20, 1 << 63])
def test_special_tokens_outside_the_vocabulary_are_ignored(tmp_path: Path, backend: Backend, outside: int) -> None:
    config = {"eos_token_id": [7, outside], "bos_token_id": outside}
    tokenizer = load_tokenizer(write(tmp_path, backend, config=config))
    assert tokenizer.bos_id is None
    assert outside not in tokenizer.eos_ids
    assert 7 in tokenizer.eos_ids
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_begin_token_where_the_configuration_asks(tmp_path: Path, backend: Backend) -> None:
    config = {"bos_token": "<|im_start|>", "add_bos_token": True}
    tokenizer = load_tokenizer(write(tmp_path, backend, tokenizer_config=config))
    assert tokenizer.encode("x") == [tokenizer.bos_id, *tokenizer.encode("x", add_special=False)]
    assert tokenizer.encode("", add_special=False) == []
    tokenizer = load_tokenizer(write(tmp_path, backend, tokenizer_config=config | {"add_bos_token": False}))
    assert tokenizer.encode("x") == tokenizer.encode("x", add_special=False)


def test_begin_token_that_only_the_post_processor_names(tmp_path: Path, sentencepiece: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(write(tmp_path, llama_backend(sentencepiece, metaspace=False)))
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_ids) == (1, True, frozenset())
    assert any("no end token" in note for note in tokenizer.notes)


def test_a_prompt_is_never_cut_or_padded(tmp_path: Path, backend: Backend) -> None:
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = load_tokenizer(write(tmp_path, backend))
    assert len(tokenizer.encode("a b c d e f g h i j k l m n")) > 8
    assert len(tokenizer.encode("a")) == 1


def test_tokens_that_only_the_configuration_declares(tmp_path: Path, backend: Backend) -> None:
    new, think = backend.get_vocab_size(), backend.token_to_id("<think>")
    declared = {
        str(new): {"content": "<|tool|>", "special": True},
        str(think): {"content": "<think>", "special": True},
        str(new + 5): {"content": "<|gap|>", "special": True},
        "x": {"content": 5},
    }
    tokenizer = load_tokenizer(write(tmp_path, backend, tokenizer_config={"added_tokens_decoder": declared}))
    assert tokenizer.encode("<|tool|>x")[0] == new
    assert tokenizer.is_special(new)
    assert tokenizer.is_special(think)
    assert any("<|gap|>" in note for note in tokenizer.notes)


def test_templates_in_all_their_places(tmp_path: Path, backend: Backend) -> None:
    write(tmp_path, backend)
    assert load_tokenizer(tmp_path).chat_template is None
    write(tmp_path, backend, chat_template={"chat_template": "packed"})
    assert load_tokenizer(tmp_path).chat_template == "packed"
    named = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "tools"}]
    write(tmp_path, backend, tokenizer_config={"chat_template": named})
    assert load_tokenizer(tmp_path).chat_templates == {"default": "listed", "tool_use": "tools"}
    write(tmp_path, backend, tokenizer_config={"chat_template": "plain"})
    assert load_tokenizer(tmp_path).chat_template == "plain"
    (tmp_path / "chat_template.jinja").write_text("file é", encoding="utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag", encoding="utf-8")
    assert load_tokenizer(tmp_path).chat_templates == {"default": "file é", "rag": "rag"}


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(FileError, match=r"tokenizer\.model"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "BPE"}}', b"{" * 100_000])
def test_broken_tokenizer_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path).encode("x")


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer_config", "generation_config"])
def test_a_name_that_appears_twice(tmp_path: Path, backend: Backend, name: str) -> None:
    write(tmp_path, backend, tokenizer_config={"a": {"b": 1}}, generation_config={"a": {"b": 1}})
    file = tmp_path / f"{name}.json"
    text = file.read_text(encoding="utf-8")
    place = text.index("{", 1) + 1
    first = text[place : text.index(",", place) if name == "tokenizer" else text.index("}", place)]
    file.write_text(f"{text[:place]}{first},{text[place:]}", encoding="utf-8")
    with pytest.raises(FormatError, match=rf"{name}\.json: is not valid JSON: the name .* appears twice"):
        load_tokenizer(tmp_path).encode("x")


def test_control_tokens_may_be_taken_as_text(tmp_path: Path, backend: Backend) -> None:
    tokenizer = load_tokenizer(write(tmp_path, backend))
    control = next(token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token))
    text = f"a{tokenizer.token_text(control)}b"
    assert control in tokenizer.encode(text)
    ids = tokenizer.encode(text, parse_special=False)
    assert control not in ids
    assert tokenizer.decode(ids) == text
    assert control in tokenizer.encode(text)


def test_a_merge_longer_than_any_piece(tmp_path: Path, backend: Backend) -> None:
    """The library panics at it."""
    content = json.loads(write(tmp_path, backend).joinpath("tokenizer.json").read_text("utf-8"))
    longest = max(content["model"]["vocab"], key=lambda piece: len(piece.encode()))
    content["model"]["merges"] = [[longest, longest]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path).encode("x")


@pytest.mark.parametrize("name", ["tokenizer_config", "generation_config"])
@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{", b"[" * 100_000])
def test_broken_configuration(tmp_path: Path, backend: Backend, name: str, content: bytes) -> None:
    write(tmp_path, backend)
    (tmp_path / f"{name}.json").write_bytes(content)
    with pytest.raises(FormatError, match=name):
        load_tokenizer(tmp_path).encode("x")


@pytest.mark.parametrize("value", ["2", [1, "x"], True, 1.5, {"a": 1}])
def test_end_ids_of_another_kind(tmp_path: Path, backend: Backend, value: Any) -> None:
    write(tmp_path, backend, generation_config={"eos_token_id": value})
    with pytest.raises(FormatError, match="eos_token_id"):
        load_tokenizer(tmp_path).encode("x")


@pytest.mark.parametrize("value", [5, [5], [{"name": "x"}], {"default": 5}])
def test_templates_of_another_kind(tmp_path: Path, backend: Backend, value: Any) -> None:
    write(tmp_path, backend, tokenizer_config={"chat_template": value})
    with pytest.raises(FormatError, match="chat_template"):
        assert load_tokenizer(tmp_path).chat_templates


def test_other_decoders_are_unsupported(tmp_path: Path, backend: Backend) -> None:
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="WordPiece"):
        load_tokenizer(write(tmp_path, backend)).encode("x")


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_the_text(backend: Backend, name: str) -> None:
    splitter = PRE_TOKENIZERS[name].splitter()
    alphabet = {character: byte for byte, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for text in TEXTS:
        words = [word for word, _ in splitter.pre_tokenize_str(text)]
        assert sum(map(len, words)) == len(text.encode())
        assert all(character in alphabet for word in words for character in word)


WORDS = {
    "qwen2": ("I'LL x12", ["I", "'LL", " x", "1", "2"]),
    "llama-bpe": ("x1234", ["x", "123", "4"]),
    "gpt-2": ("I'll I'LL 123", ["I", "'ll", " I", "'", "LL", " 123"]),
    "starcoder": ("x 123", ["x", " ", "1", "2", "3"]),
    "default": ("a,b 1234", ["a", ",", "b", " ", "123", "4"]),
    "falcon": ("a`b 1234", ["a", "`", "b", " ", "123", "4"]),
    "gpt-4o": ("camelCase1234 it's", ["camel", "Case", "123", "4", " it's"]),
    "tekken": ("camelCase12 it's", ["camel", "Case", "1", "2", " it", "'s"]),
    "deepseek-v3": ("x12345 .com", ["x", "123", "45", " .", "com"]),
    "deepseek-llm": ("ab12 cd", ["ab", "12", " cd"]),
    "deepseek-coder": ("ab12 cd", ["ab", "1", "2", " cd"]),
    "kimi-k2": ("abC1234", ["ab", "C", "123", "4"]),
    "bailingmoe": ("I'M\n\n12", ["I", "'M", "\n\n", "1", "2"]),
    "seed-coder": ("a!\n1", ["a", "!", "\n", "1"]),
    "glm4": ("a!\n1234", ["a", "!\n", "123", "4"]),
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    text, expected = WORDS[name]
    words = [word for word, _ in PRE_TOKENIZERS[name].splitter().pre_tokenize_str(text)]
    assert [word.replace("Ġ", " ").replace("Ċ", "\n") for word in words] == expected


def test_a_pattern_that_gives_up_is_a_typed_error(tmp_path: Path, backend: Backend) -> None:
    endless = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([endless, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer = load_tokenizer(write(tmp_path, backend))
    with pytest.raises(ArgumentError, match="gave up on it"):
        tokenizer.encode("a" * 54 + "!")
    assert tokenizer.decode(tokenizer.encode("still here")) == "still here"
