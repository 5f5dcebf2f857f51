"""The random models of tools/make_random_moe.py are valid and their weights have the deviation that was asked for."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest
from checkpoint_files import load_matrix

import colibri
from colibri import ops
from colibri.models.registry import model_spec, open_checkpoint
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf_writer import TensorSpec

TOOL = Path(__file__).parents[3] / "tools" / "make_random_moe.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("make_random_moe", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", [name for name, form in ops.BLOCK_TYPES.items() if form.code >= 0])
@pytest.mark.parametrize("deviation", [0.02, 0.5])
def test_blocks_have_the_deviation(tool: Any, kind: str, deviation: float) -> None:
    spec = TensorSpec("t", kind, (64, 1024))
    data = np.concatenate([chunk.ravel() for chunk in tool.random_tensor(np.random.default_rng(1), spec, deviation)])
    assert data.nbytes == spec.nbytes
    rows = data.reshape(64, -1)
    values = reference.quants.dequantize(rows, reference.GGMLQuantizationType[kind])
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.05 * deviation
    assert 0.7 * deviation < values.std() < 1.4 * deviation
    assert len(np.unique(rows, axis=0)) == 64


def test_tiny_models_open(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.gguf"
    for quantization in tool.MIXES:
        monkeypatch.setattr(sys, "argv", ["tool", str(path), "--quantization", quantization, "--skew", "1"])
        tool.main()
        checkpoint = open_checkpoint(path)
        tensor = load_matrix(checkpoint.experts(1)[3].by_name["up"], FileReader())
        assert 0.03 < ops.dequantize(tensor).std() < 0.12  # 1 / sqrt(256)
        assert len(checkpoint.metadata.strings("tokenizer.ggml.tokens")) == 512


@pytest.mark.parametrize("shape", ["deepseek-v2-lite", "deepseek-v3", "glm-4.7-flash"])
def test_shapes_with_latent_attention_make_models(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Of their real sizes only the first layers, and few experts."""
    whole = tool.SHAPES[shape]
    small = replace(whole, layers=whole.dense[0] + 1, experts=16, hidden=256, intermediate=256, vocabulary=512, heads=2,
                    dense=(whole.dense[0], 512))  # fmt: skip
    monkeypatch.setitem(tool.SHAPES, shape, small)
    monkeypatch.setattr(sys, "argv", ["tool", str(tmp_path / "t.gguf"), "--shape", shape])
    tool.main()
    spec = model_spec(open_checkpoint(tmp_path / "t.gguf"))
    mixer = spec.layers[0].mixer
    assert mixer.key_dim == 576
    assert mixer.query_dim == whole.head_dim
    with colibri.load(tmp_path / "t.gguf") as model:
        assert np.isfinite(model.infer([1, 2, 3])).all()


def test_a_model_with_windows_runs(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.gguf"
    small = ["--layers", "6", "--experts", "12", "--hidden", "256", "--intermediate", "352", "--vocabulary", "512"]
    monkeypatch.setattr(sys, "argv", ["tool", str(path), "--shape", "gemma-4", *small])
    tool.main()
    mixers = [layer.mixer for layer in model_spec(open_checkpoint(path)).layers]
    assert [(mixer.window, mixer.head_dim, mixer.kv_heads) for mixer in mixers] == [(1024, 256, 8)] * 5 + [(0, 512, 2)]
    with colibri.load(path) as model:
        logits = model.infer([3, 4, 5])
    assert logits.std() > 0.1 and np.abs(logits).max() < 20


@pytest.mark.parametrize("shape", ["qwen3.6", "qwen3next"])
def test_models_with_states_run(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    path = tmp_path / "t.gguf"
    small = ["--layers", "4", "--experts", "12", "--hidden", "256", "--intermediate", "256", "--vocabulary", "512"]
    monkeypatch.setattr(sys, "argv", ["tool", str(path), "--shape", shape, *small])
    tool.main()
    with colibri.load(path) as model:
        logits = model.infer([3, 4, 5])
    assert logits.shape == (3, 512) and logits.std() > 0.1


@pytest.mark.parametrize(("quantization", "kind"), [("q4_k_m", "Q5_0"), ("q5_k", "Q5_1"), ("iq4_xs", "IQ4_NL")])
def test_odd_widths_get_smaller_blocks(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str, kind: str
) -> None:
    path = tmp_path / "t.gguf"
    arguments = ["tool", str(path), "--quantization", quantization, "--intermediate", "352"]
    monkeypatch.setattr(sys, "argv", arguments)
    tool.main()
    down = open_checkpoint(path).experts(0)[3].by_name["down"]
    assert down.type == kind
    assert ops.dequantize(load_matrix(down, FileReader())).shape == (256, 352)


def test_skew_shapes_the_use_of_experts(tool: Any) -> None:
    shape = tool.SHAPES["olmoe"]
    rng = np.random.default_rng(1)
    scales = tool.router_scales(shape, 0.7, rng)
    chosen = np.argpartition(-rng.standard_normal((8192, shape.experts)) * scales, shape.used, axis=1)[:, : shape.used]
    use = np.bincount(chosen.ravel(), minlength=shape.experts) / len(chosen)
    assert 0.4 < use[0] < 0.5
    assert use[0] > 2 * use[8] > 3 * use[40] > 0
    assert (tool.router_scales(shape, 0.0, rng) == 1).all()
