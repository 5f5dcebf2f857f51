"""Settings refuse what is wrong, naming field, found and expected."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from colibri.config import LoadOptions, ModelConfig, RopeConfig, SamplingParams
from colibri.errors import ArgumentError

MODEL = ModelConfig(
    architecture="olmoe", name="tiny", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16, vocab_size=128,
    context_length=640, experts=4, experts_per_token=2, expert_intermediate=24, norm_eps=1e-5,
    rope=RopeConfig(theta=1e4, rotary=16), renormalize=False,
)  # fmt: skip


@pytest.mark.parametrize(("field", "value", "expected"), [
    ("max_tokens", -1, "at least 0"), ("max_tokens", 1.5, "an integer"), ("max_tokens", True, "an integer"),
    ("temperature", -0.1, "at least 0"), ("temperature", float("nan"), "a number"), ("temperature", "1", "a number"),
    ("top_k", -1, "at least 0"), ("top_p", 0, "above 0"), ("top_p", 1.1, "at most 1"), ("min_p", 2, "at most 1"),
    ("repetition_penalty", 0, "at least 0.01"),
    ("repetition_penalty", 1e-300, "at least 0.01"), ("repetition_penalty", 1e300, "at most 100"),
    ("seed", -1, "within"), ("seed", 1 << 64, "within"),
    ("stop", ("a", ""), "not empty"), ("stop", (1,), "texts"), ("ignore_eos", 1, "True or False"),
])  # fmt: skip
def test_sampling(field: str, value: Any, expected: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{field}: found .*{expected}"):
        SamplingParams(**{field: value})


def test_memory_is_asked_for_in_bytes() -> None:
    with pytest.raises(ArgumentError, match="ram: found '90M', expected a whole number of bytes"):
        LoadOptions(ram="90M")  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [
    ("ram", 0), ("threads", 0), ("threads", 1.0), ("threads", 257), ("context", 0), ("precision", "exakt"),
    ("sequences", 0), ("chunk", 0), ("ram", "90M"), ("beside", -1),
])  # fmt: skip
def test_load_options(field: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{field}: found"):
        LoadOptions(**{field: value})


@pytest.mark.parametrize(("field", "value"), [
    ("layers", 0), ("heads", 3), ("kv_heads", 3), ("experts_per_token", 5), ("norm_eps", -1.0),
    ("norm_eps", float("nan")), ("rope", RopeConfig(theta=1e4, rotary=32)), ("clip_qkv", 0.0), ("window", -1),
    ("expert_scale", 0.0), ("expert_scale", 1e39), ("activation", "relu"),
])  # fmt: skip
def test_model(field: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"found .*expected"):
        replace(MODEL, **{field: value})


@pytest.mark.parametrize("fields", [
    {"theta": 1.0}, {"rotary": 15}, {"rotary": 0}, {"scaling": "yarn"}, {"scaling": "longrope"}, {"factor": 0.0},
    {"attention_factor": float("inf")},
])  # fmt: skip
def test_rope(fields: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="rope"):
        RopeConfig(**({"theta": 1e4, "rotary": 16} | fields))


def test_widths() -> None:
    assert (MODEL.query_width, MODEL.kv_width) == (64, 32)


def test_a_stop_may_be_one_text() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().top_k = 5  # type: ignore[misc]


def test_a_path_may_be_text() -> None:
    assert LoadOptions(path="model.gguf").path == Path("model.gguf")  # type: ignore[arg-type]
