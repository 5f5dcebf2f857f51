"""Experts are found in merged and single tensors, and what does not fit together is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from expert_files import EXPERTS, HIDDEN, INTERMEDIATE, LAYERS, expert_specs, write_file

from colibri.errors import FormatError, UnsupportedError
from colibri.experts.store import ExpertStore
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import TensorSpec


def test_merged(store: ExpertStore) -> None:
    assert (store.layers, store.experts, store.hidden, store.intermediate) == (LAYERS, EXPERTS, HIDDEN, INTERMEDIATE)
    assert store.moe_layers() == tuple(range(LAYERS))
    assert len(set(store.layouts.values())) == 2
    assert sum(store.layout_counts().values()) == LAYERS * EXPERTS
    first, second = store.expert(2, 0).down, store.expert(2, 1).down
    assert second.offset - first.offset == first.nbytes


def test_single_tensors_and_a_dense_layer(tmp_path: Path) -> None:
    specs = [spec for expert in range(3) for spec in expert_specs(1, None, f".{expert}")]
    store = ExpertStore(read_gguf(write_file(tmp_path / "m.gguf", specs, 1)), 3)
    assert (store.layers, store.moe_layers()) == (3, (1,))
    assert [store.count(layer) for layer in range(3)] == [0, 3, 0]
    assert not store.has(0)


def test_layers_that_the_model_does_not_have(tmp_path: Path) -> None:
    odd = [TensorSpec(name, "Q4_0", (32, 32)) for name in ("blk", "blk.1", "blk.x.ffn_down_exps.weight")]
    specs = [*expert_specs(0), *expert_specs(1), *expert_specs(2)[:1], *odd]
    store = ExpertStore(read_gguf(write_file(tmp_path / "m.gguf", specs, 1)), 1)
    assert (store.layers, store.moe_layers()) == (1, (0,))


def refused(tmp_path: Path, specs: list[TensorSpec], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ExpertStore(read_gguf(write_file(tmp_path / "m.gguf", specs, 1)), LAYERS)


def test_no_experts(tmp_path: Path) -> None:
    refused(tmp_path, [TensorSpec("blk.0.ffn_down.weight", "Q4_0", (32, 32))], UnsupportedError, "no routed experts")


def test_missing_projection(tmp_path: Path) -> None:
    refused(tmp_path, expert_specs(0)[:1] + expert_specs(0)[2:], FormatError, r"lacks blk\.0\.ffn_up_exps")


def test_counts_that_differ(tmp_path: Path) -> None:
    specs = [*expert_specs(0, 8)[:2], expert_specs(0, 7)[2]]
    refused(tmp_path, specs, FormatError, "different numbers of experts")


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    wrong = TensorSpec("blk.0.ffn_down_exps.weight", "Q4_0", (EXPERTS, HIDDEN, 2 * INTERMEDIATE))
    refused(tmp_path, [*expert_specs(0)[:2], wrong], FormatError, "shapes do not fit")
