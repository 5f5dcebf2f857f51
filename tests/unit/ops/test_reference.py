"""The numpy specification against independent oracles: the gguf package's dequantisers and hand-made small cases."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import reference as ref
from kernel_weights import HALVES, put_split_half

RNG = np.random.default_rng(7)


def random_blocks(type: str, rows: int, k: int) -> np.ndarray:
    """Random bytes of a format, with finite scales."""
    form = ref.FORMATS[type]
    blocks = RNG.integers(0, 256, (rows * k // form.values, form.bytes), dtype=np.uint8)
    for at in HALVES.get(type, {"F16": [0], "BF16": [0]}.get(type, [])):
        blocks[:, at : at + 2] = RNG.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    if type == "MXFP4":
        blocks[:, 0] = RNG.integers(100, 140, len(blocks))
    if type == "IQ1_M":
        put_split_half(blocks, RNG.normal(size=len(blocks)).astype(np.float16))
    if type == "F32":
        blocks = RNG.normal(size=(len(blocks), 1)).astype(np.float32).view(np.uint8)
    return blocks


@pytest.mark.parametrize("type", [name for name, form in ref.FORMATS.items() if form.code >= 0])
def test_dequantize_equals_gguf_package(type: str) -> None:
    blocks = random_blocks(type, 3, 512)
    ours = ref.dequantize(type, blocks.tobytes(), (3, 512))
    theirs = gguf.quants.dequantize(blocks.reshape(3, -1), gguf.GGMLQuantizationType[type])
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs.reshape(3, 512))
    assert gguf.GGMLQuantizationType[type].value == ref.FORMATS[type].code
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]] == ref.FORMATS[type][1:3]


def test_mxfp4_smallest_scales_are_subnormal() -> None:
    block = np.full((1, 17), 0x11, np.uint8)
    block[0, 0] = 0
    assert ref.dequantize("MXFP4", block.tobytes(), (1, 32))[0, 0] == np.float32(2.0**-128)


@pytest.mark.parametrize("block", [32, 256])
def test_quantize_activations(block: int) -> None:
    x = RNG.normal(size=(2, 512)).astype(np.float32)
    x[1, :256] = 0
    q = ref.quantize_activations(x, block)  # type: ignore[arg-type]
    back = (q.q * q.scale[:, :, None]).reshape(x.shape)
    assert np.abs(back - x).max() <= np.abs(x).max() / 254 * 1.001
    assert (back[1, :256] == 0).all() and (q.sums[1, 0] == 0).all()
    np.testing.assert_array_equal(q.sums.sum(axis=2), q.q.sum(axis=2, dtype=np.int32))


def test_quantize_activations_rounds_half_to_even() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [127, 0.5, 1.5, 2.5, -0.5]
    np.testing.assert_array_equal(ref.quantize_activations(x, 32).q[0, 0, :5], [127, 0, 2, 2, 0])


def test_matmul_exact_and_fast_agree_within_the_activation_step() -> None:
    weight = ref.Weight("Q6_K", random_blocks("Q6_K", 5, 512).tobytes(), (5, 512))
    x = RNG.normal(size=(3, 512)).astype(np.float32)
    exact, fast = ref.matmul(x, weight, exact=True), ref.matmul(x, weight)
    assert 0 < np.abs(exact - fast).max() < 0.05 * np.abs(exact).max()
    np.testing.assert_allclose(exact, x @ ref.dequantize(*weight).T, rtol=1e-4, atol=1e-2)


def test_embed_refuses_foreign_ids() -> None:
    table = ref.Weight("F32", np.eye(4, dtype=np.float32).tobytes(), (4, 4))
    np.testing.assert_array_equal(ref.embed(table, np.array([2], np.int32))[0], [0, 0, 1, 0])
    with pytest.raises(IndexError):
        ref.embed(table, np.array([4], np.int32))


def test_glu() -> None:
    one = np.ones(1, np.float32)
    assert ref.glu(ref.Activation("silu"), one, 2 * one)[0] == pytest.approx(2 / (1 + np.exp(-1)))
    assert ref.glu(ref.Activation("gelu_tanh"), one, one)[0] == pytest.approx(0.841192, abs=1e-6)
    assert ref.glu(ref.Activation("silu"), -1000 * one, one)[0] == 0
    assert ref.glu(ref.Activation("relu2"), 3 * one, None)[0] == 9
    clamped = ref.glu(ref.Activation("silu_clamped", limit=2), 5 * one, -5 * one)
    assert clamped[0] == pytest.approx(-4 / (1 + np.exp(-2)))
    assert ref.glu(ref.Activation("swiglu_oai", 0.5, 2), 5 * one, 5 * one)[0] == pytest.approx(6 / (1 + np.exp(-1)))


def test_norm_and_rope() -> None:
    x = RNG.normal(size=(2, 3, 8)).astype(np.float32)
    normed = ref.rms_norm(x, np.ones(8, np.float32), 0.0)
    np.testing.assert_allclose((normed**2).mean(axis=-1), 1, rtol=1e-5)
    angles = np.arange(10)[:, None] * np.array([1.0, 0.1])
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    turned = ref.rope(x, np.array([0, 9], np.int32), cosine, sine)
    np.testing.assert_array_equal(turned[0], x[0])
    np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])
    complex_pairs = (x[1, :, :2] + 1j * x[1, :, 2:4]) * np.exp(1j * angles[9])
    np.testing.assert_allclose(turned[1, :, :2] + 1j * turned[1, :, 2:4], complex_pairs, rtol=1e-5, atol=1e-6)


def test_attention_is_causal_windowed_and_grouped() -> None:
    q = RNG.normal(size=(1, 4, 8)).astype(np.float32)
    keys, values = (RNG.normal(size=(6, 2, 8)).astype(np.float16).astype(np.float32) for _ in range(2))
    at = np.array([3], np.int32)
    first = ref.attention(q, keys, values, at, 0.5)
    np.testing.assert_array_equal(first, ref.attention(q, keys[:4], values[:4], at, 0.5))
    np.testing.assert_array_equal(ref.attention(q, keys, values, at, 0.5, window=1)[0, 3], values[3, 1])
    weights = np.exp(0.5 * keys[:4, 0] @ q[0, 1])
    np.testing.assert_allclose(first[0, 1], weights @ values[:4, 0] / weights.sum(), rtol=1e-5)
    sunk = ref.attention(q, keys, values, at, 0.5, sinks=np.zeros(4, np.float32))
    np.testing.assert_allclose(sunk[0, 1], weights @ values[:4, 0] / (weights.sum() + 1), rtol=1e-5)


def test_kv_append_places_keys_by_lane() -> None:
    keys, values = np.zeros((2, 1, 16, 4, 16), np.float16), np.zeros((2, 1, 256, 4), np.float16)
    k, v = np.arange(4, dtype=np.float32).reshape(1, 1, 4), np.ones((1, 1, 4), np.float32)
    ref.kv_append(keys, values, k, v, np.array([256 + 18], np.int32), np.array([1, 0], np.int32))
    np.testing.assert_array_equal(keys[0, 0, 1, :, 2], [0, 1, 2, 3])
    assert values[0, 0, 18].sum() == 4 and np.count_nonzero(keys) == 3


def test_router_rules() -> None:
    logits = np.log(np.array([[1, 4, 4, 2]], np.float32))
    ids, weights = ref.router(logits, 2, ref.Routing())
    np.testing.assert_array_equal(ids, [[1, 2]])
    np.testing.assert_allclose(weights, [[4 / 11, 4 / 11]], rtol=1e-6)
    np.testing.assert_allclose(ref.router(logits, 2, ref.Routing(renormalize=True, scale=3))[1], 1.5, rtol=1e-6)
    ids, weights = ref.router(logits, 2, ref.Routing("sigmoid", correction=np.array([9, 0, 0, 0], np.float32)))
    np.testing.assert_array_equal(ids, [[0, 1]])
    np.testing.assert_allclose(weights, [[1 / 2, 4 / 5]], rtol=1e-6)


def test_moe_and_combine() -> None:
    def weight(rows: int, k: int) -> ref.Weight:
        return ref.Weight("F32", RNG.normal(size=(rows, k)).astype(np.float32).tobytes(), (rows, k))

    experts = [ref.Expert(weight(6, 4), weight(6, 4), weight(4, 6)) for _ in range(3)]
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    ids = np.array([[2, 0], [0, 1]], np.int32)
    slots = ref.moe(x, experts, ids)
    np.testing.assert_array_equal(slots[1], ref.expert(x[:1], experts[0])[0])
    weights = np.array([[0.75, 0.25], [1, 0]], np.float32)
    out = ref.combine(x, slots, weights)
    np.testing.assert_allclose(out[0], x[0] + 0.75 * slots[0] + 0.25 * slots[1], rtol=1e-6)
    with pytest.raises(ValueError, match="expert 1 "):
        ref.moe(x, [experts[0], None, experts[2]], ids)
