"""The router: every score, ties, biases; equal bits on every path."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from hypothesis import given, settings, strategies as st
from kernel_weights import plain
from numpy.typing import NDArray

from colibri import ops
from colibri.ops import _native

SCORES = ("softmax", "sigmoid")
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def route(
    logits: F32, k: int, score: str, renormalize: bool, bias: F32 | None = None, scale: float = 1.0
) -> tuple[I32, F32]:
    ids, weights = ops.tensor("I32", (len(logits), k)), ops.tensor("F32", (len(logits), k))
    rule = ops.Routing(score, renormalize, None if bias is None else plain(bias), scale)
    assert ops.router(ids, weights, plain(logits), rule)
    return np.array(ids.numpy()), np.array(weights.numpy())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("experts", "k"), [(1, 1), (8, 2), (17, 17), (60, 4), (128, 8), (513, 10)])
def test_matches_the_specification(score: str, renormalize: bool, with_bias: bool, experts: int, k: int) -> None:
    rng = np.random.default_rng(experts)
    logits = rng.normal(0, 4, (33, experts)).astype(np.float32)
    bias = rng.normal(0, 0.1, experts).astype(np.float32) if with_bias else None
    expected_ids, expected = reference.router(logits, k, score, renormalize, bias, 2.5)  # type: ignore[arg-type]
    first = None
    for isa in ops.isas():
        for threads in (1, 2, 3, 7):
            _native.use_isa(isa)
            ops.set_threads(threads)
            ids, weights = route(logits, k, score, renormalize, bias, 2.5)
            first = first or (ids.tobytes(), weights.tobytes())
            assert (ids.tobytes(), weights.tobytes()) == first
    assert (ids == expected_ids).all()
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("score", SCORES)
def test_of_equal_logits_the_lower_id_comes_first(score: str) -> None:
    logits = np.zeros((1, 40), np.float32)
    logits[0, [3, 20, 33]] = 1
    ids, _ = route(logits, 6, score, False)
    assert ids.tolist() == [[3, 20, 33, 0, 1, 2]]


def test_all_logits_negative() -> None:
    ids, weights = route(np.array([[-9, -5, -7, -6]], np.float32), 2, "softmax", True)
    assert ids.tolist() == [[1, 3]]
    assert weights.sum() == pytest.approx(1)


def test_the_bias_chooses_but_does_not_weigh() -> None:
    logits = np.array([[2, 1, 0]], np.float32)
    ids, weights = route(logits, 1, "sigmoid", False, np.array([0, 0, 9], np.float32))
    assert ids.tolist() == [[2]]
    assert weights[0, 0] == 0.5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=70), st.sampled_from(SCORES), st.data())
def test_any_logits(values: list[float], score: str, data: st.DataObject) -> None:
    logits, k = np.array([values], np.float32), data.draw(st.integers(1, len(values)))
    ids, weights = route(logits, k, score, True)
    assert sorted(set(ids[0].tolist())) == sorted(ids[0].tolist())
    order = np.argsort(-logits[0], kind="stable")[:k]
    assert ids[0].tolist() == order.tolist()
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("score", SCORES)
def test_what_is_not_finite_is_reported(bad: float, score: str) -> None:
    logits = np.zeros((3, 24), np.float32)
    logits[2, 23] = bad
    ids, weights = ops.tensor("I32", (3, 2)), ops.tensor("F32", (3, 2))
    assert not ops.router(ids, weights, plain(logits), ops.Routing(score, True))


def test_wrong_arguments_are_named() -> None:
    ids, weights, logits = ops.tensor("I32", (1, 2)), ops.tensor("F32", (1, 2)), ops.tensor("F32", (1, 8))
    with pytest.raises(ValueError, match="score: found 'max', expected 'softmax', 'sigmoid'"):
        ops.Routing("max", False)
    with pytest.raises(ValueError, match="weights"):
        ops.router(ids, ops.tensor("F32", (1, 9)), logits, ops.Routing("softmax", False))
    with pytest.raises(ValueError, match=r"ids: found F32 \(1, 2\), expected I32 \(1, 2\)"):
        ops.router(weights, weights, logits, ops.Routing("softmax", False))
    with pytest.raises(ValueError, match="bias"):
        ops.router(ids, weights, logits, ops.Routing("softmax", False, weights))
