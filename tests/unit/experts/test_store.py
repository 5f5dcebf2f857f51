"""Experts are found in merged and single tensors, and what does not fit together is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from expert_files import EXPERTS, HIDDEN, INTERMEDIATE, LAYERS, expert_specs, open_experts, router_spec, write_file

from colibri.errors import FormatError, UnsupportedError
from colibri.experts.occupancy import load_biases
from colibri.experts.store import ExpertStore
from colibri.weights.gguf_writer import TensorSpec


def test_merged(store: ExpertStore) -> None:
    assert (store.layers, store.experts, store.hidden, store.intermediate) == (LAYERS, EXPERTS, HIDDEN, INTERMEDIATE)
    assert store.moe_layers() == tuple(range(LAYERS))
    assert len(set(store.layouts.values())) == 2
    assert sum(store.layout_counts().values()) == LAYERS * EXPERTS
    first, second = (store.expert(2, expert).by_name["down"] for expert in (0, 1))
    assert second.offset - first.offset == first.nbytes


def test_single_tensors_and_a_dense_layer(tmp_path: Path) -> None:
    specs = [router_spec(1, 3), *(spec for expert in range(3) for spec in expert_specs(1, None, f".{expert}"))]
    store = open_experts(write_file(tmp_path / "m.gguf", specs, 1), 3, 3)
    assert (store.layers, store.moe_layers(), store.experts) == (3, (1,), 3)
    assert not store.has(0)


def test_layers_that_the_model_does_not_have(tmp_path: Path) -> None:
    odd = [TensorSpec(name, "Q4_0", (32, 32)) for name in ("blk", "blk.1", "blk.x.ffn_down_exps.weight")]
    specs = [router_spec(0), *expert_specs(0), *expert_specs(1), *expert_specs(2)[:1], *odd]
    store = open_experts(write_file(tmp_path / "m.gguf", specs, 1), 1)
    assert (store.layers, store.moe_layers()) == (1, (0,))


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        (expert_specs(0)[:1] + expert_specs(0)[2:], r"ffn_up_exps.* is missing"),
        ([*expert_specs(0)[:2], expert_specs(0, EXPERTS - 1)[2]], r"ffn_down_exps.*expected"),
        ([*expert_specs(0)[:2], TensorSpec("blk.0.ffn_down_exps.weight", "Q4_0", (EXPERTS, HIDDEN, 32))], "expected"),
        ([spec for e in range(3) for spec in expert_specs(0, None, f".{e}")], r"ffn_gate\.3.* is missing"),
        ([spec for e in range(EXPERTS) for spec in expert_specs(e == 5, None, f".{e}")], "is missing"),
    ],
)
def test_refused(tmp_path: Path, specs: list[TensorSpec], text: str) -> None:
    with pytest.raises(FormatError, match=text):
        open_experts(write_file(tmp_path / "m.gguf", [router_spec(0), *specs], 1))


def test_experts_of_different_types(tmp_path: Path) -> None:
    odd = [TensorSpec(spec.name, "Q8_0", spec.shape) for spec in expert_specs(0, None, ".5")]
    specs = [spec for e in range(EXPERTS) for spec in (odd if e == 5 else expert_specs(0, None, f".{e}"))]
    with pytest.raises(FormatError, match=r"expert 5, layer 0: found gate Q8_0 .*expected gate Q4_0"):
        open_experts(write_file(tmp_path / "m.gguf", [router_spec(0), *specs], 1))


def with_biases(path: Path, **types: str) -> ExpertStore:
    shapes = {"gate": (EXPERTS, INTERMEDIATE), "up": (EXPERTS, INTERMEDIATE), "down": (EXPERTS, HIDDEN)}
    specs = [TensorSpec(f"blk.0.ffn_{name}_exps.bias", kind, shapes[name]) for name, kind in types.items()]
    return open_experts(write_file(path, [router_spec(0), *expert_specs(0), *specs], 1), 1)


def test_biases_are_widened(tmp_path: Path) -> None:
    store = with_biases(tmp_path / "m.gguf", gate="F16", up="F16", down="F16")
    for info, found in zip(store.biases(0), load_biases(store)[0][5], strict=True):
        stored = np.fromfile(info.file, "<f2", info.shape[0] * info.shape[1], offset=info.offset).reshape(info.shape)
        assert (found.numpy() == stored[5].astype(np.float32)).all()


def test_biases_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"m\.gguf: layer 0 has biases for some"):
        with_biases(tmp_path / "m.gguf", gate="F16", up="F16")
    odd = TensorSpec("blk.0.ffn_down_exps.bias", "F16", (EXPERTS, HIDDEN + 1))
    with pytest.raises(FormatError, match=r"ffn_down_exps.bias has shape .* is expected"):
        open_experts(write_file(tmp_path / "m.gguf", [router_spec(0), *expert_specs(0), odd], 1), 1)
    with pytest.raises(UnsupportedError, match=r"F16 or BF16 is expected"):
        load_biases(with_biases(tmp_path / "m.gguf", gate="Q4_0", up="Q4_0", down="Q4_0"))
