"""Settings refuse what is wrong, naming field, found and expected."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from colibri.config import LoadOptions, SamplingParams
from colibri.errors import ArgumentError


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


def test_a_stop_may_be_one_text() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().top_k = 5  # type: ignore[misc]


def test_a_path_may_be_text() -> None:
    assert LoadOptions(path="model.gguf").path == Path("model.gguf")  # type: ignore[arg-type]
