"""A converted file gives the logits of the checkpoint that it came from: the same bits where nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri.conversion.convert import Options, convert
from colibri.engine.model import Model
from colibri.weights.checkpoint import open_checkpoint

from .conftest import GOLDEN, NAMES, golden_of

Load = Callable[..., Model]
DIRECTORIES = [name for name in NAMES if (GOLDEN / name / "config.json").exists()]


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_file_of_the_same_precision_gives_the_same_bits(load: Load, tmp_path: Path, name: str) -> None:
    source, ids = GOLDEN / name, golden_of(GOLDEN / name)["ids"].tolist()
    precision = name.rpartition("-")[2]
    convert(open_checkpoint(source), tmp_path / "m.gguf", Options(precision))
    for mode in ("exact", "fast"):
        original = load(source, precision=mode).infer(ids)
        converted = load(tmp_path / "m.gguf", precision=mode).infer(ids)
        if "llama3" in name:  # its scaling became a table of float32
            np.testing.assert_allclose(converted, original, rtol=0, atol=2e-3 * np.ptp(original))
        else:
            np.testing.assert_array_equal(converted, original)


@pytest.mark.parametrize("name", ["mixtral-gqa-f32", "qwen3_moe-gqa-f32", "olmoe-mha-f32"])
@pytest.mark.parametrize(("quantization", "near"), [("q8_0", 0.1), ("bf16", 0.05), ("q4_k_m", 0.4), ("mxfp4", 0.6)])
def test_a_quantised_file_stays_near(load: Load, tmp_path: Path, name: str, quantization: str, near: float) -> None:
    golden = golden_of(GOLDEN / name)
    convert(open_checkpoint(GOLDEN / name), tmp_path / "m.gguf", Options(quantization))
    logits = load(tmp_path / "m.gguf", precision="exact").infer(golden["ids"].tolist())
    difference = np.sqrt(np.mean(np.square(logits - golden["logits"]))) / golden["logits"].std()
    assert difference < near
