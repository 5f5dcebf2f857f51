"""The ids before and after a conversion: rules that GGUF's keys cannot say, and files that contradict themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_samples import LLAMA3, QWEN2, TEXTS, expected_of, random_texts, train_byte_level
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from colibri.conversion.probe_texts import probe_texts
from colibri.conversion.tokenizer_check import check_tokenizer
from colibri.conversion.tokenizer_export import tokenizer_metadata
from colibri.errors import ColibriError, FormatError, UnsupportedError
from colibri.text import Tokenizer as Loaded, load_tokenizer
from colibri.text.embedded_json import JSON
from colibri.text.gguf_tokenizer import merges_from_scores
from colibri.text.special_tokens import MORE_ENDS
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import gguf_header
from colibri.weights.json_file import MAX_PARTS
from colibri.weights.metadata import Metadata

pytestmark = pytest.mark.filterwarnings("ignore:.*tokenizer.ggml.pre")  # the way of splitting is not the family's
Change = Callable[[Tokenizer], Tokenizer | None]  # of a tokenizer, or another in its place
AROUND = ["<think> a", "a <think> b", "a<think>b", "  <think>  b", "<|im_start|>user\nhi<|im_end|>\n", "<|im_end|> x"]
MORE = ["HELLO World", "\ufb01ne \u2460", "  a  ", "1234567", "<s>[INST] hi", "<s>hello", "a</s> <s> you", "a\n\n\n\nb"]


def byte_level(change: Change) -> Tokenizer:
    tokenizer = train_byte_level((QWEN2,), nfc=True)
    return change(tokenizer) or tokenizer


def metaspace(sentencepiece: dict[str, Any], scheme: str) -> Tokenizer:
    """As the tokenizer.json files of Mistral's later models are made."""
    pieces, types = sentencepiece["pieces"], sentencepiece["types"]
    merges = merges_from_scores(pieces, sentencepiece["scores"], types)
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece in ("<unk>", "<s>", "</s>")])
    return tokenizer


def rules(**flags: bool) -> Change:
    """An added token with strip rules or one that is a word of its own."""

    def change(tokenizer: Tokenizer) -> None:
        tokenizer.add_special_tokens([AddedToken("<mask>", **flags)])

    return change


def normalizer(*steps: Any) -> Change:
    return lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.Sequence([*steps]))


def wrap(before: tuple[str, ...], behind: tuple[str, ...]) -> Change:
    """A post-processor that adds these around a text."""

    def change(tokenizer: Tokenizer) -> None:
        used = [(name, tokenizer.token_to_id(name)) for name in {*before, *behind}]
        template = " ".join([*before, "$A", *behind])
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)

    return change


def split_digits(tokenizer: Tokenizer) -> None:
    digits = pre_tokenizers.Digits(individual_digits=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=True)])


def gpt2_with_whole_words(_: Tokenizer) -> Tokenizer:
    state = json.loads(train_byte_level((), ignore_merges=True).to_str())
    state["model"]["merges"] = state["model"]["merges"][::2]  # so no merges lead to many words
    return Tokenizer.from_str(json.dumps(state))


BYTE_LEVEL: dict[str, Change] = {
    "nfkc": normalizer(normalizers.NFKC()),
    "lowercase": normalizer(normalizers.Lowercase()),
    "strip": normalizer(normalizers.Strip(), normalizers.NFC()),
    "digits": split_digits,
    "ignore_merges": gpt2_with_whole_words,
    "lstrip": rules(lstrip=True, normalized=False),
    "rstrip": rules(rstrip=True, normalized=False),
    "both": rules(lstrip=True, rstrip=True, normalized=True),
    "single_word": rules(single_word=True, normalized=False),
    "two begin tokens": wrap(("<|endoftext|>", "<|im_start|>"), ()),
    "an end token": wrap((), ("<|im_end|>",)),
    "both ends": wrap(("<|endoftext|>",), ("<|im_end|>",)),
}


def write(directory: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def written(directory: Path, vocab_size: int = 0) -> Metadata:
    """The tokenizer's keys as a reader of the converted file has them."""
    notes: list[str] = []
    keys = tokenizer_metadata(directory, expected_of("qwen3moe"), vocab_size, notes.append)
    file = directory / "header.gguf"
    file.write_bytes(gguf_header({"general.architecture": "qwen3moe", **keys}, []))
    return read_gguf(file).metadata


def assert_same(source: Loaded, result: Loaded, backend: Tokenizer) -> None:
    texts = [*TEXTS, *AROUND, *MORE, *random_texts(60), *probe_texts(source.vocabulary)]
    texts += [text.replace("<think>", "<mask>") for text in AROUND]
    for text in texts:
        assert result.encode(text, add_special=False) == backend.encode(text, add_special_tokens=False).ids
        assert result.encode(text) == source.encode(text)
        assert result.encode(text, parse_special=False) == source.encode(text, parse_special=False)
    assert (result.bos_id, result.eos_id, result.eos_ids) == (source.bos_id, source.eos_id, source.eos_ids)
    assert result.add_bos == source.add_bos


@pytest.mark.parametrize("name", BYTE_LEVEL)
@pytest.mark.parametrize("config", [{}, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}])
def test_byte_level_ids_stay_and_what_llama_cpp_cannot_do_is_told(
    tmp_path: Path, name: str, config: dict[str, str]
) -> None:
    backend = byte_level(BYTE_LEVEL[name])
    source = load_tokenizer(write(tmp_path, backend, tokenizer_config=config))
    metadata = written(tmp_path)
    assert_same(source, load_tokenizer(metadata), backend)
    note = check_tokenizer(source, metadata)
    if name in ("both ends", "an end token") and config:
        assert note is None
    else:
        assert note is not None
        assert "llama.cpp" in note


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_the_space_before_a_text_stays(tmp_path: Path, sentencepiece: dict[str, Any], scheme: str) -> None:
    backend = metaspace(sentencepiece, scheme)
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    source = load_tokenizer(write(tmp_path, backend, tokenizer_config=config))
    metadata = written(tmp_path)
    assert_same(source, load_tokenizer(metadata), backend)
    assert metadata["tokenizer.ggml.add_space_prefix"] == (scheme != "never")


def test_an_end_token_that_is_added_does_not_become_the_begin_token(tmp_path: Path) -> None:
    write(tmp_path, byte_level(wrap((), ("<|im_end|>",))))
    metadata = written(tmp_path)
    assert "tokenizer.ggml.bos_token_id" not in metadata
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert load_tokenizer(metadata).bos_id is load_tokenizer(tmp_path).bos_id is None


def test_all_ends_that_are_named_stay(tmp_path: Path) -> None:
    backend = byte_level(lambda tokenizer: None)
    ends = [5, 6, 7, 8, 9]
    source = load_tokenizer(write(tmp_path, backend, generation_config={"eos_token_id": ends}))
    metadata = written(tmp_path)
    assert metadata[MORE_ENDS].tolist() == ends
    assert load_tokenizer(metadata).eos_ids == source.eos_ids >= {*ends}


def test_tokens_that_only_the_configuration_declares_are_in_the_file(tmp_path: Path) -> None:
    backend = byte_level(lambda tokenizer: None)
    size = backend.get_vocab_size()
    declared = {str(size): {"content": "<extra>", "special": True, "lstrip": True}}
    source = load_tokenizer(write(tmp_path, backend, tokenizer_config={"added_tokens_decoder": declared}))
    result = load_tokenizer(written(tmp_path))
    assert result.encode("a  <extra>b") == source.encode("a  <extra>b")
    assert size in result.encode("a  <extra>b")


def test_tokens_without_a_row_are_in_neither_vocabulary(tmp_path: Path) -> None:
    backend = byte_level(lambda tokenizer: None)
    size = backend.get_vocab_size() - 40  # without the added tokens and some that merges make
    source = load_tokenizer(write(tmp_path, backend))
    metadata = written(tmp_path, size)
    result = load_tokenizer(metadata)
    assert result.vocab_size == len(metadata["tokenizer.ggml.tokens"]) == size
    assert all(max(result.encode(text), default=0) < size for text in TEXTS)
    check_tokenizer(source, metadata)


def test_padding_is_marked_and_means_nothing(tmp_path: Path) -> None:
    backend = byte_level(lambda tokenizer: None)
    size = backend.get_vocab_size()
    write(tmp_path, backend)
    metadata = written(tmp_path, size + 5)
    assert len(metadata["tokenizer.ggml.tokens"]) == size + 5
    assert load_tokenizer(metadata).vocab_size == size


def test_another_tokenizer_is_refused_with_the_texts(tmp_path: Path) -> None:
    source = load_tokenizer(write(tmp_path, byte_level(normalizer(normalizers.Lowercase()))))
    (tmp_path / "other").mkdir()
    other = written(write(tmp_path / "other", byte_level(lambda tokenizer: None)))
    with pytest.raises(UnsupportedError, match=r"Hello world! .* there, .* here"):
        check_tokenizer(source, other)
    keys = {key: value for key, value in written(tmp_path).items() if key != JSON}
    with pytest.raises(UnsupportedError, match="Nothing is written"):
        check_tokenizer(source, Metadata(Path("m.gguf"), keys))


# ---- files of others ----


def test_a_file_without_the_json_is_read_by_its_own_keys(tmp_path: Path) -> None:
    backend = train_byte_level((LLAMA3,), ignore_merges=True)
    write(tmp_path, backend)
    keys = {key: value for key, value in written(tmp_path).items() if key != JSON}
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre"):
        result = load_tokenizer(Metadata(Path("m.gguf"), keys), expected_of("qwen3moe"))
    for text in TEXTS:
        assert result.encode(text, add_special=False) == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(("change", "found"), [
    (lambda keys: keys["tokenizer.ggml.tokens"].pop(), "a tokenizer of"),
    (lambda keys: keys["tokenizer.ggml.tokens"].__setitem__(40, "other"), "'other', as tokenizer.ggml.tokens has it"),
    (lambda keys: keys["tokenizer.ggml.tokens"].append("more"), "token_type"),
    (lambda keys: keys.update({JSON: "{}"}), "expected a tokenizer.json"),
    (lambda keys: keys.update({JSON: "\udcff"}), "not valid JSON"),
    (lambda keys: keys.update({JSON: "[" * 100_000}), "not valid JSON"),
    (lambda keys: keys.update({JSON: '{"model": 1, "model": 2}'}), "appears twice"),
    (lambda keys: keys.update({JSON: "[" + "1," * MAX_PARTS}), "more than"),
    (lambda keys: keys.update({JSON: 7}), "is int 7"),
])  # fmt: skip
def test_a_json_that_is_none_or_contradicts_the_file_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], found: str
) -> None:
    write(tmp_path, byte_level(lambda tokenizer: None))
    keys: dict[str, Any] = dict(written(tmp_path))
    keys["tokenizer.ggml.tokens"] = list(keys["tokenizer.ggml.tokens"])
    change(keys)
    with pytest.raises(FormatError, match=found):
        load_tokenizer(Metadata(Path("m.gguf"), keys)).encode("x")


def test_padding_of_another_type_is_refused(tmp_path: Path) -> None:
    backend = byte_level(lambda tokenizer: None)
    write(tmp_path, backend)
    keys: dict[str, Any] = dict(written(tmp_path, backend.get_vocab_size() + 1))
    keys["tokenizer.ggml.token_type"] = np.where(keys["tokenizer.ggml.token_type"] == 5, 1, 4).astype(np.int32)
    with pytest.raises(ColibriError, match="without token"):
        load_tokenizer(Metadata(Path("m.gguf"), keys)).encode("x")


def test_a_file_with_nothing_but_the_json(tmp_path: Path) -> None:
    backend = byte_level(normalizer(normalizers.Lowercase()))
    write(tmp_path, backend)
    bare = load_tokenizer(Metadata(Path("m.gguf"), {JSON: (tmp_path / "tokenizer.json").read_text()}))
    assert bare.encode("ABC <think>") == backend.encode("ABC <think>").ids
    assert bare.normalized("ABC") == "abc"
