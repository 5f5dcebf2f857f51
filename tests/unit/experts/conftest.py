"""Fixtures: the small model file of expert_files.py and residencies over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from expert_files import CHOSEN, LAYERS, expert_specs, open_experts, router_spec, write_file

from colibri.experts.residency import Residency
from colibri.experts.store import ExpertStore
from colibri.weights.tensor_info import Layout


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """A model file whose tensors start at odd places."""
    specs = [spec for layer in range(LAYERS) for spec in (router_spec(layer), *expert_specs(layer))]
    return write_file(tmp_path / "model.gguf", specs, 7)


@pytest.fixture
def store(model_path: Path) -> ExpertStore:
    """Its experts."""
    return open_experts(model_path)


@pytest.fixture
def make_residency(store: ExpertStore) -> Iterator[Callable[..., Residency]]:
    """Makes residencies of `slots` slots a layout (None: all) that are closed afterwards."""
    made: list[Residency] = []

    def make(slots: int | None = None, **settings: Any) -> Residency:
        limits: dict[Layout, int] | None = None
        if slots is not None:
            limits = dict.fromkeys(store.layouts.values(), slots)
        made.append(Residency(store, CHOSEN, limits=limits, **settings))
        return made[-1]

    yield make
    for residency in made:
        residency.close()
