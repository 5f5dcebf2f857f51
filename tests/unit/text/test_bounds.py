"""What is known of a text's tokens before it is encoded: never more than there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizer_samples import QWEN2, TEXTS, load_metadata, train_byte_level
from tokenizers import AddedToken, Tokenizer as Backend, models, normalizers, pre_tokenizers

from colibri.text import load_tokenizer
from colibri.text.tokenizer import Tokenizer

SHRINKING = "\u1112\u1161\u11ab\u212a\u1fb3\u0300"  # NFC makes these characters fewer
LONG = st.text(st.sampled_from(SHRINKING + "ab \n\U0001f600\ud800"), min_size=1).map(lambda text: text * 40)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return saved(tmp_path_factory.mktemp("bytes"), train_byte_level((QWEN2,), nfc=True))


def saved(path: Path, backend: Backend) -> Tokenizer:
    backend.save(str(path / "tokenizer.json"))
    return load_tokenizer(path)


@given(text=LONG | st.sampled_from([text * 40 for text in TEXTS]))
def test_no_more_than_there_are(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.least_tokens(text, 1) <= len(byte_level.encode(text))


def test_a_sentencepiece_vocabulary(llama_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(llama_metadata)
    for text in TEXTS:
        assert tokenizer.least_tokens(text * 40, 1) <= len(tokenizer.encode(text * 40))
    assert tokenizer.least_tokens("a b " * 10_000, 100) > 100


def test_a_long_text_cannot_fit(byte_level: Tokenizer) -> None:
    assert byte_level.least_tokens("word " * 100_000, 100) > 100
    assert byte_level.least_tokens("word", 100) == 0


def _strips(backend: Backend) -> None:
    backend.normalizer = normalizers.Strip()


def _splits_spaces_off(backend: Backend) -> None:
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])


def _swallows(backend: Backend) -> None:
    backend.add_tokens([AddedToken("<x>", rstrip=True)])


def _lacks_bytes(backend: Backend) -> None:
    backend.model = models.BPE({"a": 0, "b": 1}, [])


@pytest.mark.parametrize("change", [_strips, _splits_spaces_off, _swallows, _lacks_bytes])
def test_nothing_is_said_where_text_may_be_dropped(tmp_path: Path, change: Any) -> None:
    backend = train_byte_level((QWEN2,), nfc=True)
    change(backend)
    tokenizer = saved(tmp_path, backend)
    for text in (" " * 10_000, "<x>" + " " * 10_000, "\u4e00" * 10_000):
        assert tokenizer.least_tokens(text, 10) <= len(tokenizer.encode(text))
