"""Tokenizers for the tests of the text layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizer_samples import QWEN2, byte_level_metadata, train_byte_level
from tokenizers import Tokenizer


@pytest.fixture(scope="session")
def qwen() -> Tokenizer:
    """A tokenizer like Qwen's."""
    return train_byte_level((QWEN2,), nfc=True)


@pytest.fixture
def qwen_metadata(qwen: Tokenizer) -> dict[str, Any]:
    """Its GGUF metadata, free to change."""
    return byte_level_metadata(qwen)


@pytest.fixture
def llama_metadata(sentencepiece: dict[str, Any]) -> dict[str, Any]:
    """The GGUF metadata of that model."""
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(sentencepiece["pieces"]),
        "tokenizer.ggml.scores": np.array(sentencepiece["scores"], np.float32),
        "tokenizer.ggml.token_type": np.array(sentencepiece["types"], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
