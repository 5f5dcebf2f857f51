"""What a model is made of refuses what is wrong, naming field, found and expected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colibri import ops
from colibri.errors import ArgumentError
from colibri.spec import (
    AttentionSpec,
    DeltaNetSpec,
    DenseSpec,
    LayerSpec,
    Mamba2Spec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    RopeSpec,
    RoutingSpec,
    SharedSpec,
    ShortConvSpec,
)

ATTENTION = AttentionSpec(heads=4, kv_heads=2, head_dim=16, rope=RopeSpec(theta=1e4, rotary=16))
DELTA = DeltaNetSpec(heads=4, key_heads=2, key_size=16, value_size=16)
MAMBA = Mamba2Spec(heads=4, head_dim=8, groups=2, state_size=16)
CONVOLUTION = ShortConvSpec(channels=64, taps=3)
ROUTING = RoutingSpec(experts=4, experts_per_token=2, renormalize=False)
DENSE = DenseSpec(width=24)
MOE = MoeSpec(routing=ROUTING, expert=DENSE)
NORM = NormSpec(eps=1e-5)
LAYER = LayerSpec(mixer=ATTENTION, ffn=MOE, norm=NORM)
MODEL = ModelSpec(
    architecture="olmoe", name="tiny", hidden_size=64, vocab_size=128, context_length=640, layers=(LAYER, LAYER),
    norm=NORM,
)  # fmt: skip


@pytest.mark.parametrize(("spec", "field", "value"), [
    (MODEL, "hidden_size", 0), (MODEL, "vocab_size", 0), (MODEL, "context_length", 0), (MODEL, "layers", ()),
    (ATTENTION, "heads", 3), (ATTENTION, "head_dim", 12),
    (ATTENTION, "kv_heads", 3), (ATTENTION, "rope", RopeSpec(theta=1e4, rotary=32)),
    (ATTENTION, "clip", 0.0), (ATTENTION, "scale", 0.0), (LAYER, "residual_scale", 0.0),
    (MODEL, "embedding_scale", 0.0), (MODEL, "logit_scale", float("inf")),
    (ATTENTION, "window", -1), (ATTENTION, "qk_norm", "row"),
    (DELTA, "heads", 3), (DELTA, "key_size", 0), (DELTA, "value_size", 5000), (DELTA, "taps", 1), (DELTA, "taps", 9),
    (replace(LAYER, ffn=None), "mixer", None), (replace(LAYER, mixer=None), "ffn", None), (MOE, "latent", -1),
    (MAMBA, "groups", 3), (MAMBA, "state_size", 0), (MAMBA, "taps", 1), (MAMBA, "least_step", -1.0),
    (CONVOLUTION, "channels", 0), (CONVOLUTION, "taps", 1), (CONVOLUTION, "taps", 9),
    (ROUTING, "experts", 0), (ROUTING, "experts_per_token", 5), (ROUTING, "scale", 0.0), (ROUTING, "scale", 1e39),
    (ROUTING, "score", "tanh"), (NORM, "eps", -1.0), (NORM, "eps", float("nan")), (NORM, "kind", "batch"),
    (DENSE, "activation", "relu"), (DENSE, "width", 0),
    (ATTENTION, "head_dim", 20), (ATTENTION, "window", 1 << 31),
    (replace(DENSE, gated=False), "activation", "swiglu_oai"),
    (replace(DENSE, activation="swiglu_oai"), "gated", False),
    (ROUTING, "sum_added", -1.0), (ROUTING, "sum_least", float("nan")),
    (replace(ROUTING, score="identity"), "renormalize", True),
    (replace(ROUTING, groups=4, kept_groups=4), "group_score", "sum_of_two"),
])  # fmt: skip
def test_wrong_fields(spec: Any, field: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"found .*expected"):
        replace(spec, **{field: value})


def test_a_head_that_the_kernels_do_not_take() -> None:
    """Refused where a model is described: by load, inspect, verify, convert and plan."""
    with pytest.raises(ArgumentError, match="head_dim: found 20, expected a multiple of 8"):
        replace(ATTENTION, head_dim=20)
    keys = ops.tensor("F16", (1, 2, 20, 256)), ops.tensor("F16", (1, 2, 256, 20))
    q, k, v, out = (ops.tensor("F32", (1, heads * 20)) for heads in (4, 2, 2, 4))
    batch = ops.Batch(np.zeros(1, np.int32), np.zeros(1, np.int32), [np.zeros(1, np.int32)])
    with pytest.raises(ValueError, match="multiples of 8"):
        ops.attention(out, q, k, v, *keys, batch, ops.AttentionRule())


def test_a_shared_experts_gate() -> None:
    with pytest.raises(ArgumentError, match="found 'tanh', expected one of"):
        SharedSpec(network=DENSE, gate="tanh")  # type: ignore[arg-type]


def test_all_mixtures_have_experts_of_one_number() -> None:
    other = replace(LAYER, ffn=replace(MOE, routing=replace(ROUTING, experts=8)))
    dense = replace(LAYER, ffn=DENSE)
    assert replace(MODEL, layers=(dense, LAYER)).experts == 4
    for layers in ((LAYER, other), (dense,)):
        with pytest.raises(ArgumentError, match="mixtures: found"):
            replace(MODEL, layers=layers)


@pytest.mark.parametrize("fields", [
    {"theta": 1.0}, {"rotary": 15}, {"rotary": 0}, {"scaling": "yarn"}, {"scaling": "longrope"}, {"factor": 0.0},
    {"attention_factor": float("inf")},
])  # fmt: skip
def test_rope(fields: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="rope"):
        RopeSpec(**({"theta": 1e4, "rotary": 16} | fields))


def test_widths() -> None:
    assert (ATTENTION.query_width, ATTENTION.kv_width) == (64, 32)


def test_what_attention_keeps() -> None:
    kept = replace(ATTENTION, window=8).keeps
    assert (kept.heads, kept.key_dim, kept.value_dim, kept.window) == (2, 16, 16, 8)


def test_layers_that_turn_alike_share_their_tables() -> None:
    other = replace(ATTENTION, rope=RopeSpec(theta=1e6, rotary=16))
    still = replace(ATTENTION, rope=None)
    layers = tuple(replace(LAYER, mixer=mixer) for mixer in (ATTENTION, other, still, replace(ATTENTION, window=8)))
    assert replace(MODEL, layers=layers).ropes == {ATTENTION.rope, other.rope}
