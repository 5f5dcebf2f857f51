"""Importances: what the matrices see, computed again by the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import reference

from colibri.conversion.calibration import calibrate, write_imatrix
from colibri.conversion.convert import Options, convert
from colibri.conversion.imatrix import read_imatrix
from colibri.engine.model import Model
from colibri.errors import ArgumentError, UnsupportedError
from colibri.models.registry import open_checkpoint

from .conftest import GOLDEN, golden_of

Load = Callable[..., Model]
NAME = "mixtral-gqa-f32"


def tensors() -> dict[str, np.ndarray]:
    reader = gguf.GGUFReader(GOLDEN / NAME / "model.gguf")
    return {tensor.name: tensor.data for tensor in reader.tensors}


def test_sums_are_those_of_the_reference(load: Load) -> None:
    ids, weights = golden_of(GOLDEN / NAME)["ids"].tolist()[:20], tensors()
    model = load(GOLDEN / NAME / "model.gguf", precision="exact")
    before = model.infer(ids)
    calibration = calibrate(model, ids, window=10)
    np.testing.assert_array_equal(model.infer(ids), before)
    embedded = weights["token_embd.weight"][ids]
    normed = reference.rms_norm(embedded, weights["blk.0.attn_norm.weight"], model.spec.norm.eps)
    np.testing.assert_allclose(calibration.sums["blk.0.attn_q.weight"][0], np.square(normed).sum(axis=0), rtol=1e-4)
    assert calibration.counts["blk.0.attn_output.weight"].tolist() == [20]


def test_experts_count_their_tokens_and_see_their_own_inputs(load: Load) -> None:
    ids, weights = golden_of(GOLDEN / NAME)["ids"].tolist()[:20], tensors()
    model = load(GOLDEN / NAME / "model.gguf", precision="exact")
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    calibration = calibrate(model, ids, window=20)

    class Tap:
        def begin(self, rows: object) -> None: ...

        def mixed(self, layer: int, mixer: object, rows: object) -> None: ...

        def fed_forward(self, layer: int, rows: object) -> None:
            if layer == 1:
                seen.append((rows.normed.numpy().copy(), rows.chosen_array[1].copy()))  # type: ignore[attr-defined]

    model.watch(Tap())
    model.infer(ids)
    model.watch(None)
    (normed, chosen) = seen[0]
    counts = calibration.counts["blk.1.ffn_up_exps.weight"]
    assert counts.tolist() == [int((chosen == expert).sum()) for expert in range(model.spec.experts)]
    expert = int(counts.argmax())
    rows = normed[(chosen == expert).any(axis=1)].astype(np.float64)
    gate, up = (weights[f"blk.1.ffn_{part}_exps.weight"][expert].astype(np.float64) for part in ("gate", "up"))
    inner = reference.glu(reference.Activation(), (rows @ gate.T).astype(np.float32), (rows @ up.T).astype(np.float32))
    np.testing.assert_allclose(
        calibration.sums["blk.1.ffn_down_exps.weight"][expert], np.square(inner).sum(axis=0), rtol=1e-3
    )


def test_experts_without_a_gate(load: Load) -> None:
    """relu^2 of one product is what goes into the matrix down."""
    path, layer = GOLDEN / "families" / "nemotron_h-f32", 1
    ids = golden_of(path)["ids"].tolist()[:20]
    calibration = calibrate(load(path, precision="exact"), ids, window=20)
    counts = calibration.counts[f"blk.{layer}.ffn_up_exps.weight"]
    assert counts.sum() == 2 * 20
    expert = int(counts.argmax())
    squares = calibration.sums[f"blk.{layer}.ffn_up_exps.weight"][expert].sum()
    inner = np.sqrt(calibration.sums[f"blk.{layer}.ffn_down_exps.weight"][expert])
    up = open_checkpoint(path).experts(layer)[expert].by_name["up"]
    weight = np.fromfile(up.file, np.float32, up.nbytes // 4, offset=up.offset).reshape(up.shape)
    most = np.square(weight, dtype=np.float64).sum(axis=1) * squares  # of the square of a product, by Cauchy-Schwarz
    assert (inner > 0).any() and (inner <= most).all()


def test_experts_narrower_than_the_model_are_refused(load: Load) -> None:
    model = load(GOLDEN / "families" / "nemotron_h-latent-bf16")
    with pytest.raises(UnsupportedError, match="narrower than the model"):
        calibrate(model, [3] * 20, window=10)


def test_the_file_goes_into_a_conversion(load: Load, tmp_path: Path) -> None:
    golden = golden_of(GOLDEN / NAME)
    source = GOLDEN / NAME / "model.gguf"
    model = load(source, precision="exact")
    calibration = calibrate(model, golden["long_ids"].tolist(), window=64, most_windows=4)
    write_imatrix(tmp_path / "i.gguf", calibration, "text", 4, 64)
    importance = read_imatrix(tmp_path / "i.gguf")
    assert set(importance.weights) == set(calibration.sums)
    options = Options("q4_0", importance=importance)
    convert(open_checkpoint(source), tmp_path / "m.gguf", options)
    assert np.isfinite(load(tmp_path / "m.gguf").infer(golden["ids"].tolist())).all()


def test_texts_that_are_too_short(load: Load) -> None:
    model = load(GOLDEN / NAME / "model.gguf")
    with pytest.raises(ArgumentError, match="one window"):
        calibrate(model, [1, 2, 3], window=10)
    with pytest.raises(ArgumentError, match="context"):
        calibrate(model, [1] * 10, window=1 << 30)
