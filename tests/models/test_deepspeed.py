"""States that DeepSpeed saved, converted: the logits are those of its own mixtures in Megatron's model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri.conversion.calibration import calibrate
from colibri.conversion.convert import Options, convert
from colibri.conversion.source import open_source
from colibri.conversion.verify import verify
from colibri.engine.model import Model
from colibri.errors import NumericalError, UnsupportedError
from colibri.models.registry import open_checkpoint

from .conftest import GOLDEN, golden_of

Load = Callable[..., Model]
NAMES = ["deepspeed-top1", "deepspeed-residual", "deepspeed-newer"]
PLAIN, ROUNDED = 2e-3, 2e-4  # of the logits' range, as in test_golden.py


def converted(name: str, tmp_path: Path, quantization: str = "f32") -> Path:
    path = tmp_path / f"{name}.gguf"
    convert(open_source(GOLDEN / name), path, Options(quantization))
    return path


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.ptp(expected))


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_deepspeeds(load: Load, name: str, tmp_path: Path) -> None:
    golden = golden_of(GOLDEN / name)
    model = load(converted(name, tmp_path), precision="exact")
    logits = model.infer(golden["ids"].tolist())
    assert distance(logits, golden["logits_half"]) < ROUNDED
    assert distance(logits, golden["logits"]) < PLAIN
    assert (logits.argmax(axis=1) == golden["logits"].argmax(axis=1)).all()
    expected = golden["long_logits"]
    assert distance(model.infer(golden["long_ids"].tolist())[-len(expected) :], expected) < ROUNDED


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_chunks_or_memory(load: Load, name: str, tmp_path: Path) -> None:
    path, ids = converted(name, tmp_path, "q8_0"), golden_of(GOLDEN / name)["ids"].tolist()
    whole = load(path).infer(ids)
    np.testing.assert_array_equal(load(path, chunk=5).infer(ids), whole)
    np.testing.assert_array_equal(load(path, threads=1).infer(ids), whole)


def test_experts_without_a_gate_come_and_go(load: Load, tmp_path: Path) -> None:
    """Few slots, a quantised file converted again: two matrices an expert everywhere."""
    path = converted("deepspeed-residual", tmp_path, "q8_0")
    ids = golden_of(GOLDEN / "deepspeed-residual")["ids"].tolist()
    model = load(path)
    whole = model.infer(ids)
    model.experts.set_limits(dict.fromkeys(model.experts.store.layout_counts(), 1))
    np.testing.assert_array_equal(model.infer(ids), whole)
    again = tmp_path / "again.gguf"
    convert(open_source(path), again, Options("q8_0"))
    np.testing.assert_array_equal(load(again).infer(ids), whole)
    assert verify(open_checkpoint(again)).damages == ()
    with pytest.raises(UnsupportedError, match="biases"):
        convert(open_source(path), tmp_path / "one.gguf", Options("q8_0", only_expert=2))
    with pytest.raises(UnsupportedError, match="biases"):
        model.swap_expert(1, path)


def test_importance_of_experts_without_a_gate(load: Load, tmp_path: Path) -> None:
    model = load(converted("deepspeed-top1", tmp_path))
    found = calibrate(model, golden_of(GOLDEN / "deepspeed-top1")["ids"].tolist(), window=24)
    experts = {name for name in found.sums if "_exps" in name}
    assert experts == {f"blk.{layer}.ffn_{part}_exps.weight" for layer in (1, 3) for part in ("up", "down")}
    assert all(found.counts[name].sum() == 24 for name in experts)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_damaged_choice_between_shared_and_routed_experts_is_reported(
    load: Load, tmp_path: Path, value: float
) -> None:
    path, name = converted("deepspeed-residual", tmp_path), "ffn_gate_inp_shexp.weight"
    tensors = open_checkpoint(path).tensors
    first = next(info for info in tensors.values() if info.name.endswith(name))
    with path.open("r+b") as file:
        file.seek(first.offset)
        file.write(np.float32(value).tobytes())
    with pytest.raises(NumericalError, match=name):
        load(path).infer([5, 6, 7])
