"""Directories of Gemma 4 as they are released, and what of the family is not run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.engine.model import Model
from colibri.errors import FormatError, UnsupportedError
from colibri.models.registry import model_spec, open_checkpoint
from colibri.spec import AttentionSpec
from colibri.weights.file_reader import FileReader
from colibri.weights.load import load_plain
from colibri.weights.safetensors import read_directory

from .conftest import GOLDEN, golden_of
from .test_hybrid import write_safetensors

Load = Callable[..., Model]
TEXT = GOLDEN / "families" / "gemma4_text-sliding-f32"


def changed(folder: Path, **fields: Any) -> Path:
    """The golden with other fields in its configuration; None takes one out."""
    config = json.loads((TEXT / "config.json").read_text()) | fields
    given = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(given))
    shutil.copy(TEXT / "model.safetensors", folder)
    return folder


def test_sizes_as_they_were_named_before(load: Load, tmp_path: Path) -> None:
    """global_head_dim and num_global_key_value_heads, as the released config.json has them."""
    path = changed(tmp_path, per_layer_config=None, global_head_dim=24, num_global_key_value_heads=1)
    ids = golden_of(TEXT)["ids"].tolist()
    np.testing.assert_array_equal(load(path).infer(ids), load(TEXT).infer(ids))


def test_a_model_that_sees(load: Load, tmp_path: Path) -> None:
    config = json.loads((TEXT / "config.json").read_text()) | {"use_bidirectional_attention": "vision"}
    whole = {"model_type": "gemma4", "text_config": config, "vision_config": {"num_hidden_layers": 1}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = {
        name.replace("model.", "model.language_model.", 1): np.array(load_plain(info, FileReader()).numpy())
        for name, info in read_directory(TEXT).items()
    }
    some = np.ones((2, 3), np.float32)
    seeing = {"model.vision_tower.patch_embedder.input_proj.weight": some, "model.embed_vision.projection.weight": some}
    write_safetensors(tmp_path / "model.safetensors", tensors | seeing)
    assert open_checkpoint(tmp_path).notes == ("the part that sees pictures (vision tower) is not used",)
    ids = golden_of(TEXT)["ids"].tolist()
    np.testing.assert_array_equal(load(tmp_path).infer(ids), load(TEXT).infer(ids))


def test_layers_have_sizes_of_their_own() -> None:
    checkpoint = open_checkpoint(TEXT)
    sliding, full, _ = (layer.mixer for layer in model_spec(checkpoint).layers)
    assert isinstance(sliding, AttentionSpec) and isinstance(full, AttentionSpec)
    assert (sliding.head_dim, sliding.kv_heads, sliding.window, sliding.values_from_keys) == (16, 2, 7, False)
    assert (full.head_dim, full.kv_heads, full.window, full.values_from_keys) == (24, 1, 0, True)
    assert sliding.rope is not None and full.rope is not None
    assert (sliding.rope.theta, sliding.rope.rotary) == (1e4, 16)
    assert (full.rope.theta, full.rope.rotary, full.rope.turning) == (1e6, 24, 6)


@pytest.mark.parametrize(("fields", "message"), [
    ({"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input is 8; for gemma4_text 0 is run"),
    ({"num_kv_shared_layers": 1}, "num_kv_shared_layers is 1; for gemma4_text 0 is run"),
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
    ({"enable_moe_block": False}, "enable_moe_block is False"),
    ({"layer_types": ["sliding_attention", "chunked_attention", "full_attention"]}, "sliding and full are run"),
    ({"per_layer_config": {"0": {"head_dim": 24}}}, "one for full layers, all alike, is run"),
])  # fmt: skip
def test_what_is_not_run_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    path = changed(tmp_path, **fields)
    (path / "model.safetensors").write_bytes(b"")  # no weight is looked at
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(path)


def test_rope_of_one_kind_is_not_enough(tmp_path: Path) -> None:
    path = changed(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    with pytest.raises(FormatError, match="rope_parameters has no full_attention"):
        open_checkpoint(path)


def test_no_cap_is_said() -> None:
    """llama.cpp caps logits at 30 where a file is silent."""
    checkpoint = open_checkpoint(TEXT.parent / "gemma4_text-tied-bf16")
    assert checkpoint.metadata["gemma4.final_logit_softcapping"] == 0
    assert model_spec(checkpoint).logit_cap is None
