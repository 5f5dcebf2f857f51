"""Streamed text, joined, is the decoded text, and never holds half a character."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizer_samples import TEXTS, byte_level_metadata, load_metadata

from colibri.text import Tokenizer


@pytest.fixture(scope="module")
def byte_level(qwen: Any) -> Tokenizer:
    return load_metadata(byte_level_metadata(qwen))


@pytest.fixture(scope="module")
def pieces(sentencepiece: dict[str, Any]) -> Tokenizer:
    return load_metadata(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": sentencepiece["pieces"],
            "tokenizer.ggml.scores": sentencepiece["scores"],
            "tokenizer.ggml.token_type": sentencepiece["types"],
        }
    )


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    decoder = tokenizer.decoder(**options)
    return [*map(decoder.feed, ids), decoder.finish()]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_stream_like_they_decode(
    data: st.DataObject, skip: bool, byte_level: Tokenizer, pieces: Tokenizer
) -> None:
    for tokenizer in (byte_level, pieces):
        # The first 300 ids hold all single bytes, so characters fall apart often.
        ids = data.draw(
            st.lists(st.one_of(st.integers(0, 300), st.integers(0, tokenizer.vocab_size + 20)), max_size=40)
        )
        parts = stream(tokenizer, ids, skip_special=skip)
        assert "".join(parts) == tokenizer.decode(ids, skip_special=skip)
        kept = [token for token in ids if not (skip and tokenizer.is_special(token))]
        whole = b"".join(map(tokenizer.token_bytes, kept)).decode("utf-8", "replace")
        assert whole.removeprefix(" " if tokenizer is pieces else "") == "".join(parts)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_text_comes_back(text: str, byte_level: Tokenizer, pieces: Tokenizer) -> None:
    assert pieces.decode(pieces.encode(text), skip_special=True) == text
    # Qwen's tokenizer composes characters first.
    composed = byte_level.decode(byte_level.encode(text))
    assert composed == byte_level.decode(byte_level.encode(composed))
    if text.isascii():
        assert composed == text


@pytest.mark.parametrize("text", ["😊", "日本", "é😊é", "👨‍👩‍👧", *TEXTS])
def test_no_half_characters_on_the_way(text: str, byte_level: Tokenizer, pieces: Tokenizer) -> None:
    for tokenizer in (byte_level, pieces):
        parts = stream(tokenizer, tokenizer.encode(text), skip_special=False)
        assert "\ufffd" not in "".join(parts)


def test_a_character_waits_for_its_last_byte(pieces: Tokenizer) -> None:
    ids = [pieces.token_id(f"<0x{byte:02X}>") or 0 for byte in "😊".encode()]
    assert stream(pieces, ids) == ["", "", "", "😊", ""]
    assert stream(pieces, ids[:3]) == ["", "", "", "\ufffd"]
    assert stream(pieces, [ids[1], *ids]) == ["\ufffd", "", "", "", "😊", ""]


def test_invalid_bytes_never_raise(pieces: Tokenizer, byte_level: Tokenizer) -> None:
    for tokenizer in (pieces, byte_level):
        for token in range(300):
            decoder = tokenizer.decoder(skip_special=False)
            assert isinstance(decoder.feed(token) + decoder.finish(), str)


def test_leading_space_belongs_to_a_text_that_goes_on(pieces: Tokenizer) -> None:
    ids = pieces.encode("the", add_special=False)
    assert "".join(stream(pieces, ids)) == "the"
    assert "".join(stream(pieces, ids, continues=True)) == " the"
    assert "".join(stream(pieces, [1, *ids])) == "the"


def test_special_tokens_are_skipped_or_written(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<|im_end|><think>b")
    assert byte_level.decode(ids) == "a<|im_end|><think>b"
    assert byte_level.decode(ids, skip_special=True) == "a<think>b"
    assert "".join(stream(byte_level, ids)) == "a<think>b"
