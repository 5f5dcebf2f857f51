"""Keys and values in int8: nearly the same logits, the same bits on every path, about half of the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri import ops
from colibri.config import LoadOptions, SamplingParams
from colibri.engine.loading import plan_model
from colibri.engine.model import Model
from colibri.errors import ArgumentError

from .conftest import GOLDEN, golden_of

Load = Callable[..., Model]
PATHS = [
    pytest.param(GOLDEN / "mixtral-window-f16", id="mixtral-window-f16"),
    pytest.param(GOLDEN / "qwen3_moe-quantized" / "model.gguf", id="qwen3_moe-quantized"),
    pytest.param(GOLDEN / "olmoe-mha-f32", id="olmoe-mha-f32"),
]


def ids_of(path: Path) -> list[int]:
    ids: list[int] = golden_of(path)["long_ids"].tolist()
    return ids[:300]


@pytest.mark.parametrize("path", PATHS)
def test_logits_are_nearly_those_of_half_floats(load: Load, path: Path) -> None:
    ids = ids_of(path)
    half, int8 = load(path).infer(ids), load(path, kv_type="q8_0").infer(ids)
    assert not (half == int8).all()
    assert np.median(np.abs(half - int8)) < 0.05 * half.std()  # where a row is routed otherwise it differs by more


@pytest.mark.parametrize("path", PATHS)
def test_same_bits_on_every_path(load: Load, path: Path) -> None:
    ids, params = ids_of(path), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    whole = load(path, kv_type="q8_0").infer(ids)
    for options in ({"chunk": 7}, {"chunk": 64, "threads": 1}, {"threads": 3}):
        np.testing.assert_array_equal(load(path, kv_type="q8_0", **options).infer(ids), whole)
    together = load(path, kv_type="q8_0", sequences=3, chunk=32)
    running = [together.generate(ids[:length], params) for length in (290, 30, 290)]
    for generation, length in zip(running, (290, 30, 290), strict=True):
        first = next(generation)
        assert first.id == int(whole[length - 1].argmax())
        list(generation)
    assert running[0].token_ids == running[2].token_ids


def test_the_cache_and_the_plan_take_less() -> None:
    path = GOLDEN / "qwen3_moe-gqa-f32"
    half, int8 = (plan_model(LoadOptions(path=path, context=512, kv_type=kind)) for kind in ("f16", "q8_0"))
    layers, mixer = half.spec.layers, half.spec.layers[0].mixer
    tokens = 2 * ops.KV_BLOCK
    scales = 2 * -(-mixer.head_dim // 32)
    values = 2 * len(layers) * mixer.kv_heads * tokens
    assert half.plan.needs.cache == values * 2 * mixer.head_dim
    assert int8.plan.needs.cache == values * (mixer.head_dim + scales)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ArgumentError, match="kv_type: found 'q4', expected one of f16, q8_0"):
        LoadOptions(kv_type="q4")  # type: ignore[arg-type]
