"""Tokenizers rebuilt from GGUF metadata give the ids of the tokenizers they were converted from."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import given, settings, strategies as st
from tokenizer_samples import (
    DEEPSEEK_V3,
    GPT4O,
    LLAMA3,
    QWEN2,
    TEXTS,
    byte_level_metadata,
    expected_of,
    load_metadata,
    random_texts,
    train_byte_level,
)
from tokenizers import Tokenizer as Backend

from colibri.errors import ArgumentError, ColibriError, FormatError, UnsupportedError
from colibri.text import load_tokenizer
from colibri.weights.gguf import read_gguf

# name in tokenizer.ggml.pre, patterns of the original (empty: the library's own GPT-2 splitting), what else it has
FAMILIES: list[tuple[str, tuple[str, ...], dict[str, bool]]] = [
    ("qwen2", (QWEN2,), {"nfc": True}),
    ("llama-bpe", (LLAMA3,), {"ignore_merges": True}),
    ("dbrx", (LLAMA3,), {}),
    ("glm4", (LLAMA3,), {}),
    ("gpt-4o", (GPT4O,), {"ignore_merges": True}),
    ("deepseek-v3", DEEPSEEK_V3, {}),
    ("gpt-2", (), {}),
    ("olmo", (), {"nfc": True}),
    ("starcoder", (), {"digits": True}),
    ("refact", (), {"digits": True}),
]


def same(original: Backend, rebuilt: Any, text: str) -> None:
    expected = original.encode(text, add_special_tokens=False).ids
    found = rebuilt.encode(text, add_special=False)
    assert found == expected, text
    assert rebuilt.decode(found) == original.decode(expected, skip_special_tokens=False), text


@pytest.mark.parametrize(("pre", "patterns", "options"), FAMILIES, ids=[family[0] for family in FAMILIES])
def test_byte_level_ids_equal_the_original(pre: str, patterns: tuple[str, ...], options: dict[str, bool]) -> None:
    original = train_byte_level(patterns, **options)
    rebuilt = load_metadata(byte_level_metadata(original, pre))
    for text in [*TEXTS, *random_texts(300)]:
        same(original, rebuilt, text)
    assert rebuilt.notes == ()


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_equals_the_original(qwen: Backend, text: str) -> None:
    same(qwen, load_metadata(byte_level_metadata(qwen)), text)


def test_added_tokens_are_split_first(qwen_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(qwen_metadata)
    end = tokenizer.token_id("<|im_end|>")
    assert tokenizer.encode("X.<|im_end|>")[-1] == end
    assert len(tokenizer.encode("X.<|im_end|>")) == 3
    assert tokenizer.encode("<|im_start|>user")[1:] == tokenizer.encode("user")


def test_end_ids_are_all_named_ends(qwen_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(qwen_metadata)
    assert tokenizer.eos_ids == {tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|endoftext|>")}
    assert tokenizer.is_special(tokenizer.token_id("<|im_start|>") or 0)
    assert not tokenizer.is_special(tokenizer.token_id("<think>") or 0)
    assert not tokenizer.is_special(0)
    assert not tokenizer.add_bos


def test_harmony_end_closes_only_a_part(qwen_metadata: dict[str, Any]) -> None:
    pieces = [*qwen_metadata["tokenizer.ggml.tokens"], "<|end|>", "<|return|>", "<|call|>"]
    types = np.append(qwen_metadata["tokenizer.ggml.token_type"], np.full(3, 3, np.int32))
    metadata = qwen_metadata | {"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": types}
    tokenizer = load_metadata(metadata)
    assert tokenizer.token_id("<|return|>") in tokenizer.eos_ids
    assert tokenizer.token_id("<|end|>") not in tokenizer.eos_ids


def test_merges_as_pairs_load_like_merges_as_strings(qwen: Backend, qwen_metadata: dict[str, Any]) -> None:
    pairs = [tuple(merge.split(" ")) for merge in qwen_metadata["tokenizer.ggml.merges"]]
    tokenizer = load_metadata(qwen_metadata | {"tokenizer.ggml.merges": pairs})
    for text in TEXTS:
        same(qwen, tokenizer, text)


def test_tokens_may_be_no_utf8(qwen: Backend, qwen_metadata: dict[str, Any]) -> None:
    pieces = qwen_metadata["tokenizer.ggml.tokens"]
    types = np.append(qwen_metadata["tokenizer.ggml.token_type"], np.array([5], np.int32))
    last = b"\xff\xfe".decode("utf-8", "surrogateescape")
    metadata = qwen_metadata | {"tokenizer.ggml.tokens": [*pieces, last], "tokenizer.ggml.token_type": types}
    tokenizer = load_metadata(metadata)
    same(qwen, tokenizer, TEXTS[0])
    assert tokenizer.token_bytes(len(pieces)) == b"\xff\xfe"
    assert tokenizer.token_text(len(pieces)) == "\ufffd\ufffd"


def test_repeated_tokens_keep_the_first_id(qwen: Backend, qwen_metadata: dict[str, Any]) -> None:
    pieces = [*qwen_metadata["tokenizer.ggml.tokens"], qwen_metadata["tokenizer.ggml.tokens"][5]]
    types = np.append(qwen_metadata["tokenizer.ggml.token_type"], np.array([1], np.int32))
    tokenizer = load_metadata(qwen_metadata | {"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": types})
    same(qwen, tokenizer, TEXTS[0])
    assert any("more than once" in note for note in tokenizer.notes)
    assert tokenizer.token_bytes(len(pieces) - 1) == tokenizer.token_bytes(5)
    assert tokenizer.decode([len(pieces) - 1, 5]) == 2 * tokenizer.decode([5])


@pytest.mark.parametrize("kind", [1, 3, 4])
@pytest.mark.parametrize("piece", ["!", "<|im_end|>", "<think>", "\u0120the"])
def test_the_text_of_a_repeated_token_is_its_piece(qwen_metadata: dict[str, Any], piece: str, kind: int) -> None:
    """Whatever type the other holder has; and no text becomes the id that only the model chooses."""
    old = qwen_metadata["tokenizer.ggml.tokens"]
    types = np.append(qwen_metadata["tokenizer.ggml.token_type"], np.array([kind], np.int32))
    pieces = [*old, piece]
    tokenizer = load_metadata(qwen_metadata | {"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": types})
    plain = load_metadata(qwen_metadata)
    written = piece if kind != 1 or piece[0] == "<" else piece.replace("\u0120", " ")
    assert tokenizer.decode([len(old)]) == written
    assert tokenizer.is_special(len(old)) == (kind == 3)
    assert (len(old) in tokenizer.eos_ids) == (kind == 3 and piece == "<|im_end|>")
    for text in (piece, "a !the", f"{piece}[repeated {len(old)}]", *TEXTS):
        assert tokenizer.encode(text) == plain.encode(text)


@pytest.mark.parametrize(
    ("pre", "architecture", "words"),
    [
        (None, "", "missing"),
        (None, "olmoe", "olmo"),
        ("made-up", "", "not known"),
        ("default", "gpt-oss", "gpt-4o"),
        ("gpt-2", "qwen3moe", "qwen2"),
    ],
)
def test_doubtful_pre_tokenizer_warns(qwen: Backend, pre: str | None, architecture: str, words: str) -> None:
    with pytest.warns(UserWarning, match=words):
        tokenizer = load_metadata(byte_level_metadata(qwen, pre, architecture))
    assert words in tokenizer.notes[0]
    assert tokenizer.decode(tokenizer.encode("Hello 1234  world")) == "Hello 1234  world"


def test_declared_default_is_obeyed(qwen: Backend) -> None:
    tokenizer = load_metadata(byte_level_metadata(qwen, "default"))
    assert tokenizer.notes == ()
    # 'default' cuts digits in threes, gpt-2 does not; the vocabulary has no merges of digits, so look at the letters.
    assert tokenizer.encode("a.b") == [token for part in ("a", ".", "b") for token in tokenizer.encode(part)]


BROKEN: list[tuple[str, Any]] = [
    ("tokenizer.ggml.merges", []),
    ("tokenizer.ggml.merges", None),
    ("tokenizer.ggml.merges", ["onlyone"]),
    ("tokenizer.ggml.merges", ["zzzz qqqq"]),
    ("tokenizer.ggml.merges", [1, 2]),
    ("tokenizer.ggml.merges", "a b"),
    ("tokenizer.ggml.tokens", []),
    ("tokenizer.ggml.tokens", None),
    ("tokenizer.ggml.tokens", [1, 2, 3]),
    ("tokenizer.ggml.tokens", "text"),
    ("tokenizer.ggml.token_type", np.ones(3, np.int32)),
    ("tokenizer.ggml.token_type", np.ones(3, np.float32)),
    ("tokenizer.ggml.token_type", 7),
    ("tokenizer.ggml.pre", 7),
    ("tokenizer.ggml.model", None),
    ("tokenizer.ggml.model", ["gpt2"]),
    ("tokenizer.ggml.eos_token_id", "2"),
    ("tokenizer.ggml.eos_token_id", True),
    ("tokenizer.ggml.add_bos_token", "yes"),
]


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_broken_metadata_names_file_and_key(qwen_metadata: dict[str, Any], key: str, value: Any) -> None:
    metadata = {k: v for k, v in (qwen_metadata | {key: value}).items() if v is not None}
    with pytest.raises(FormatError) as raised:
        load_metadata(metadata).encode("x")
    assert "model.gguf" in str(raised.value)
    assert key in str(raised.value)


def test_a_merge_longer_than_any_piece(qwen_metadata: dict[str, Any]) -> None:
    """The library panics at it."""
    longest = max(qwen_metadata["tokenizer.ggml.tokens"], key=lambda piece: len(piece.encode()))
    metadata = qwen_metadata | {"tokenizer.ggml.merges": [f"{longest} {longest}"]}
    with pytest.raises(FormatError, match=r"model\.gguf: tokenizer\.ggml\.merges is .* without a token"):
        load_metadata(metadata).encode("x")


def test_other_families_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="bert"):
        load_metadata({"tokenizer.ggml.model": "bert"})


def test_id_outside_the_vocabulary_is_ignored_with_a_note(qwen_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(qwen_metadata | {"tokenizer.ggml.bos_token_id": (1 << 32) - 1})
    assert tokenizer.bos_id is None
    assert any("bos_token_id" in note for note in tokenizer.notes)


def test_begin_token_by_metadata_and_by_pre_tokenizer(qwen: Backend) -> None:
    metadata = byte_level_metadata(qwen, "llama-bpe")
    assert load_metadata(metadata).encode("x")[:1] != [metadata["tokenizer.ggml.bos_token_id"]]
    del metadata["tokenizer.ggml.add_bos_token"]
    tokenizer = load_metadata(metadata)
    assert tokenizer.encode("x") == [tokenizer.bos_id, *tokenizer.encode("x", add_special=False)]
    assert tokenizer.add_bos
    tokenizer = load_metadata(metadata | {"tokenizer.ggml.add_eos_token": True})
    assert tokenizer.encode("x")[-1] == tokenizer.eos_id


def test_without_types_control_tokens_are_known_by_their_look(qwen: Backend, qwen_metadata: dict[str, Any]) -> None:
    del qwen_metadata["tokenizer.ggml.token_type"]
    tokenizer = load_metadata(qwen_metadata)
    assert len(tokenizer.encode("X.<|im_end|>")) == 3
    assert len(tokenizer.eos_ids) == 2


def test_lone_surrogates_and_other_kinds(qwen_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(qwen_metadata)
    assert tokenizer.encode("a\ud83d") == tokenizer.encode("a\ufffd")
    with pytest.raises(ArgumentError):
        tokenizer.encode(5)  # type: ignore[arg-type]


def test_a_padded_id_has_no_bytes(qwen_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(qwen_metadata)
    assert tokenizer.token_bytes(tokenizer.vocab_size + 200) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""
    assert tokenizer.token_bytes(0) != b""


def test_metadata_read_from_a_file(tmp_path: Path, qwen: Backend, qwen_metadata: dict[str, Any]) -> None:
    file = tmp_path / "model.gguf"
    writer = GGUFWriter(file, "olmoe")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(qwen_metadata["tokenizer.ggml.tokens"])
    writer.add_token_types(qwen_metadata["tokenizer.ggml.token_type"].tolist())
    writer.add_token_merges(qwen_metadata["tokenizer.ggml.merges"])
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_eos_token_id(5)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.warns(UserWarning, match=r"model\.gguf.*olmoe checkpoints use olmo"):
        tokenizer = load_tokenizer(read_gguf(file).metadata, expected_of("olmoe"))
    for text in TEXTS:
        same(qwen, tokenizer, text)
    assert tokenizer.eos_id == 5


# SentencePiece


def test_sentencepiece_ids_equal_the_package(sentencepiece: dict[str, Any], llama_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(llama_metadata)
    for text, expected in sentencepiece["texts"]:
        assert tokenizer.encode(text, add_special=False) == expected, text
        assert tokenizer.decode(expected) == text
    assert tokenizer.encode("a")[0] == 1
    assert tokenizer.notes == ()


def test_no_stray_space_after_a_special_token(llama_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(llama_metadata)
    word = tokenizer.encode("the", add_special=False)
    assert tokenizer.encode("<s>the", add_special=False) == [1, *word]
    assert tokenizer.encode("<|im_start|>the", add_special=False) == [3, *word]
    assert tokenizer.encode("</s>the", add_special=False) == [2, *word]


def test_without_space_prefix(llama_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(llama_metadata | {"tokenizer.ggml.add_space_prefix": False})
    ids = tokenizer.encode("the", add_special=False)
    assert tokenizer.token_bytes(ids[0])[:1] != b" "
    assert tokenizer.decode(tokenizer.encode(" the", add_special=False)) == " the"


def test_user_defined_spaces_are_found_in_the_text(llama_metadata: dict[str, Any]) -> None:
    pieces = [*llama_metadata["tokenizer.ggml.tokens"], "\u2581" * 31]
    metadata = llama_metadata | {
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.append(llama_metadata["tokenizer.ggml.scores"], np.float32(0)),
        "tokenizer.ggml.token_type": np.append(llama_metadata["tokenizer.ggml.token_type"], np.int32(4)),
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = load_metadata(metadata)
    assert tokenizer.encode("a" + " " * 31 + "b", add_special=False)[1] == len(pieces) - 1
    assert tokenizer.token_bytes(len(pieces) - 1) == b" " * 31


def test_a_merge_table_beside_scores_is_used(llama_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(llama_metadata | {"tokenizer.ggml.merges": ["t h", "th e"]})
    ids = tokenizer.encode("then", add_special=False)
    assert [tokenizer.token_bytes(token) for token in ids] == [b" ", b"the", b"n"]


def test_gemma4_merges_raw_text_by_its_table() -> None:
    """As its tokenizer.json does: spaces are written otherwise, none is put in front, runs of newlines are pieces."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "a", "b", "\n", "\n\n", "ab", "\u2581ab", "\u2581\u2581", "<|channel>"]
    first = pieces.index("\u2581")
    types = [3, 3, 3, 2, *[6] * 256, *[1] * 8, 4]
    metadata = {
        "general.architecture": "gemma4",
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": ["\n \n", "a b", "\u2581 ab", "\u2581 \u2581"],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    tokenizer = load_metadata(metadata)
    space, a, b, line, lines, ab, space_ab, spaces, channel = range(first, first + 9)
    for text, expected in (
        ("ab ab", [ab, space_ab]), ("  b", [spaces, b]), ("a\n\n\nb", [a, lines, line, b]),
        ("<|channel>ab", [channel, ab]), ("\xe9 ", [4 + 0xC3, 4 + 0xA9, space]),
    ):  # fmt: skip
        assert tokenizer.encode(text, add_special=False) == expected, text
        assert tokenizer.decode(expected) == text
    assert tokenizer.encode("a") == [2, a]
    assert tokenizer.notes == ()
    with pytest.raises(FormatError, match="merge table of a gemma4 tokenizer"):
        load_metadata({**metadata, "tokenizer.ggml.merges": []}).encode("a")


def test_equal_scores_fall_back_to_the_order_of_ids(
    sentencepiece: dict[str, Any], llama_metadata: dict[str, Any]
) -> None:
    scores = np.full(len(sentencepiece["pieces"]), -1000, np.float32)
    tokenizer = load_metadata(llama_metadata | {"tokenizer.ggml.scores": scores})
    assert all(tokenizer.encode(text, add_special=False) == ids for text, ids in sentencepiece["texts"])
    assert any("scores" in note for note in tokenizer.notes)


@pytest.mark.parametrize(
    "scores",
    [
        np.zeros(1500, np.uint8),
        np.zeros(1500, np.int32),
        np.zeros(7, np.float32),
        [0] * 1500,
        np.full(1500, np.nan, np.float32),
        "text",
        None,
        3.5,
        [0.5, "x"] * 750,
    ],
)
def test_scores_are_floats_one_for_each_token(llama_metadata: dict[str, Any], scores: Any) -> None:
    metadata = {k: v for k, v in (llama_metadata | {"tokenizer.ggml.scores": scores}).items() if v is not None}
    with pytest.raises(FormatError, match=r"tokenizer\.ggml\.scores"):
        load_metadata(metadata).encode("x")


def test_a_long_line_is_encoded(llama_metadata: dict[str, Any], qwen_metadata: dict[str, Any]) -> None:
    text = "the quick brown fox " * 20_000
    for metadata in (llama_metadata, qwen_metadata):
        tokenizer = load_metadata(metadata)
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


JUNK = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.binary(max_size=3), st.lists(st.text(max_size=2)))),
    st.builds(lambda values: np.array(values, np.float32), st.lists(st.floats(width=32), max_size=5)),
    st.builds(lambda values: np.array(values, np.int64), st.lists(st.integers(-9, 9), max_size=5)),
)
KEYS = "tokens scores token_type merges model pre bos_token_id eos_token_id add_bos_token add_space_prefix".split()  # noqa: SIM905


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from(KEYS), value=JUNK, llama=st.booleans())
def test_junk_is_refused_or_harmless(
    key: str, value: Any, llama: bool, qwen: Backend, sentencepiece: dict[str, Any]
) -> None:
    metadata = byte_level_metadata(qwen)
    if llama:
        metadata = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": sentencepiece["pieces"],
            "tokenizer.ggml.scores": sentencepiece["scores"],
            "tokenizer.ggml.token_type": sentencepiece["types"],
        }
    with contextlib.suppress(ColibriError), warnings.catch_warnings(action="ignore"):
        tokenizer = load_metadata(metadata | {f"tokenizer.ggml.{key}": value})
        tokenizer.decode(tokenizer.encode("Hello <|im_end|> é\n"))
        assert isinstance(tokenizer.eos_ids, frozenset)
