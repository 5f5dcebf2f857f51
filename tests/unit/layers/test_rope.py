"""Rotary tables against transformers' (stored with the golden checkpoints) and against the definitions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import model_metadata, write_model

from colibri.layers.rope import attention_factor, inverse_frequencies, rope_tables
from colibri.models.registry import model_spec, open_checkpoint
from colibri.spec import RopeSpec

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
DIRECTORIES = sorted(path.parent for path in GOLDEN.glob("*/config.json"))


@pytest.mark.parametrize("path", DIRECTORIES, ids=lambda path: path.name)
def test_frequencies_equal_those_of_transformers(path: Path) -> None:
    (rope,) = model_spec(open_checkpoint(path)).ropes
    with np.load(path / "golden.npz") as golden:
        np.testing.assert_allclose(inverse_frequencies(rope, 640), golden["inverse_frequencies"], rtol=3e-6)
        assert attention_factor(rope) == pytest.approx(float(golden["attention_factor"]), rel=1e-6)


def test_tables_hold_cosine_and_sine() -> None:
    rope = RopeSpec(theta=10000.0, rotary=8)
    cosine, sine = rope_tables(rope, 50)
    assert cosine.shape == sine.shape == (50, 4)
    for position in (0, 1, 49):
        for pair in range(4):
            angle = position * 10000.0 ** (-2 * pair / 8)
            assert cosine.numpy()[position, pair] == pytest.approx(math.cos(angle), abs=1e-6)
            assert sine.numpy()[position, pair] == pytest.approx(math.sin(angle), abs=1e-6)


def test_factors_of_a_file_replace_the_scaling() -> None:
    rope = RopeSpec(theta=10000.0, rotary=4, scaling="linear", factor=8.0)
    np.testing.assert_allclose(inverse_frequencies(rope, 10, np.array([1.0, 2.0])), [1.0, 0.005])


def test_dynamic_scaling_depends_on_the_context_of_the_model_only() -> None:
    """transformers' formula for seq_len 64 of 32: base * (factor * 2 - (factor - 1)) ^ (dim / (dim - 2))."""
    rope = RopeSpec(theta=10000.0, rotary=8, scaling="dynamic", factor=2.0, original_context=32)
    base = 10000.0 * 3.0 ** (8 / 6)
    np.testing.assert_allclose(inverse_frequencies(rope, 64), base ** -(np.arange(0, 8, 2) / 8))
    np.testing.assert_allclose(inverse_frequencies(rope, 32), 10000.0 ** -(np.arange(0, 8, 2) / 8))


def test_an_attention_factor_of_the_checkpoint_wins() -> None:
    rope = RopeSpec(theta=1e4, rotary=8, scaling="yarn", factor=4.0, original_context=32, attention_factor=1.5)
    assert attention_factor(rope) == 1.5
    assert rope_tables(rope, 4)[0].numpy()[0, 0] == 1.5


@pytest.mark.parametrize(("keys", "scaling", "factor"), [
    ({"scaling.factor": 4.0}, "linear", 4.0), ({"scale_linear": 2.0}, "linear", 2.0),
    ({"scale_linear": 0.0}, "none", 1.0), ({"scaling.factor": 8.0, "scale_linear": 2.0}, "linear", 8.0),
    ({"scaling.type": "none"}, "none", 1.0), ({}, "none", 1.0),
])  # fmt: skip
def test_a_factor_without_a_type(tmp_path: Path, keys: dict[str, Any], scaling: str, factor: float) -> None:
    """As llama.cpp reads them."""
    given = {f"olmoe.rope.{key}": value for key, value in keys.items()}
    write_model(tmp_path / "m.gguf", model_metadata("olmoe") | given)
    (rope,) = model_spec(open_checkpoint(tmp_path / "m.gguf")).ropes
    assert (rope.scaling, rope.factor) == (scaling, factor)
