"""Logits against Hugging Face transformers, for every architecture and every kind of file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import colibri
from colibri.engine.model import Model

from .conftest import ALL_FILES, GOLDEN, distance, files_of, golden_of

Load = Callable[..., Model]
PLAIN = 2e-3  # of the logits' range: the cache rounds keys and values to float16, the oracle does not
ROUNDED = 2e-4  # where the oracle rounds too; a difference in the last bit before rounding remains


@pytest.mark.parametrize("path", ALL_FILES)
def test_logits_equal_transformers(load: Load, path: Path) -> None:
    golden = golden_of(path)
    logits = load(path, precision="exact").infer(golden["ids"].tolist())
    assert logits.dtype == np.float32
    assert logits.shape == golden["logits"].shape
    assert distance(logits, golden["logits_half"]) < ROUNDED
    assert distance(logits, golden["logits"]) < PLAIN
    assert (logits.argmax(axis=1) == golden["logits"].argmax(axis=1)).all()


@pytest.mark.parametrize("path", ALL_FILES)
def test_logits_of_a_text_over_several_cache_blocks(load: Load, path: Path) -> None:
    golden = golden_of(path)
    expected = golden["long_logits"]
    logits = load(path, precision="exact").infer(golden["long_ids"].tolist())[-len(expected) :]
    assert distance(logits, expected) < ROUNDED


@pytest.mark.parametrize("path", ALL_FILES)
def test_fast_mode_agrees_with_transformers(load: Load, path: Path) -> None:
    """Float weights take float activations in both modes; quantised ones lose a little."""
    golden = golden_of(path)
    model = load(path)
    logits = model.infer(golden["ids"].tolist())
    if model.describe()["quantization"] in ("F32", "F16", "BF16"):
        np.testing.assert_array_equal(logits, load(path, precision="exact").infer(golden["ids"].tolist()))
    else:
        error = np.sqrt(np.mean((logits - golden["logits"]) ** 2)) / golden["logits"].std()
        assert error < 0.1  # random weights let it grow from layer to layer as trained ones do not


@pytest.mark.parametrize(
    "name", ["mixtral-gqa-f32", "qwen3_moe-gqa-f32", "qwen3_moe-yarn-bf16", "olmoe-mha-f32", "olmoe-clip-bf16"]
)
def test_gguf_gives_the_bits_of_the_directory(load: Load, name: str) -> None:
    """Row order, merged or separate experts and the container change nothing."""
    ids = golden_of(GOLDEN / name)["ids"].tolist()
    first, *others = (load(path).infer(ids) for path in files_of(name))
    assert others
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_infer_in_one_call() -> None:
    path = GOLDEN / "olmoe-mha-f32"
    golden = golden_of(path)
    logits = colibri.infer(path, golden["ids"].tolist(), precision="exact")
    assert distance(logits, golden["logits_half"]) < ROUNDED
