"""lm-eval over local-completions, where it is installed (pip install "lm-eval[api]" transformers; no torch)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import colibri

from .conftest import GOLDEN, serving

ROOT = Path(__file__).resolve().parents[2]
TEXT = GOLDEN / "qwen3_moe-gqa-f32"
PROGRAM = shutil.which("lm-eval")


@pytest.mark.skipif(PROGRAM is None, reason="lm-eval is not installed")
def test_likelihoods_are_the_models_own(tmp_path: Path) -> None:
    with serving("-m", str(TEXT), "--name", "text") as server:
        arguments = {
            "model": "text", "base_url": f"{server.url}/v1/completions", "num_concurrent": 4,
            "tokenized_requests": True, "tokenizer_backend": "huggingface", "tokenizer": TEXT,
        }  # fmt: skip
        command = [
            *(str(PROGRAM), "run", "--model", "local-completions", "--tasks", "colibri_small"),
            *("--include_path", "examples/lm_eval", "--output_path", str(tmp_path), "--log_samples"),
            *("--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())),
        ]  # fmt: skip
        environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stderr
    samples = [json.loads(line) for line in next(tmp_path.rglob("samples_*.jsonl")).read_text().splitlines()]
    assert len(samples) == 8
    with colibri.load(TEXT) as model:
        for sample in samples:
            for place, (response,) in enumerate(sample["resps"]):
                request = sample["arguments"][f"gen_args_{place}"]
                before, after = (model.tokenizer.encode(request[f"arg_{part}"], add_special=False) for part in (0, 1))
                logits = model.infer([*before, *after]).astype(np.float64)
                logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
                own = sum(logprobs[len(before) - 1 + step, token] for step, token in enumerate(after))
                assert float(response[0]) == pytest.approx(own, abs=1e-3)
