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

SCORES = ("softmax", "sigmoid", "sqrt_softplus", "identity")
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def native(rule: reference.Routing) -> ops.Routing:
    values = {name: plain(v) if isinstance(v, np.ndarray) else v for name, v in rule._asdict().items()}
    return ops.Routing(values.pop("score"), **values)


def route(logits: F32, k: int, rule: reference.Routing) -> tuple[I32, F32]:
    ids, weights = ops.tensor("I32", (len(logits), k)), ops.tensor("F32", (len(logits), k))
    assert ops.router(ids, weights, plain(logits), native(rule))
    return np.array(ids.numpy()), np.array(weights.numpy())


def check(logits: F32, k: int, rule: reference.Routing) -> None:
    """As the specification, with the same bits on every instruction set and any number of threads."""
    expected_ids, expected = reference.router(logits, k, rule)
    first = None
    for isa in ops.isas():
        for threads in (1, 2, 3, 7):
            _native.use_isa(isa)
            ops.set_threads(threads)
            ids, weights = route(logits, k, rule)
            first = first or (ids.tobytes(), weights.tobytes())
            assert (ids.tobytes(), weights.tobytes()) == first
    assert (ids == expected_ids).all()
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(("experts", "k"), [(1, 1), (8, 2), (17, 17), (60, 4), (128, 8), (513, 10)])
def test_matches_the_specification(score: reference.Score, renormalize: bool, corrected: bool, experts: int,
                                   k: int) -> None:  # fmt: skip
    rng = np.random.default_rng(experts)
    logits = rng.normal(0, 4, (33, experts)).astype(np.float32)
    correction = rng.normal(0, 0.1, experts).astype(np.float32) if corrected else None
    renormalize &= score != "identity"
    check(logits, k, reference.Routing(score, renormalize=renormalize, scale=2.5, correction=correction))


FAMILIES = {
    "gpt-oss": (32, 4, {"score": "identity", "softmax_of_chosen": True, "bias": True}),
    "granite": (40, 8, {"score": "identity", "softmax_of_chosen": True}),
    "deepseek-v2": (160, 6, {"groups": 8, "kept_groups": 3, "scale": 16.0}),
    "deepseek-v3": (256, 8, {"score": "sigmoid", "renormalize": True, "sum_added": 1e-20, "scale": 2.5, "groups": 8,
                             "kept_groups": 4, "group_score": "sum_of_two", "correction": True}),
    "glm-4.5": (128, 8, {"score": "sigmoid", "renormalize": True, "sum_added": 1e-20, "correction": True}),
    "lfm2": (32, 4, {"score": "sigmoid", "renormalize": True, "sum_added": 1e-6, "correction": True}),
    "ernie": (64, 6, {"renormalize": True, "sum_least": 1e-12, "correction": True}),
    "gemma4": (128, 8, {"renormalize": True, "expert_scale": True}),
    "deepseek-v4": (256, 6, {"score": "sqrt_softplus", "renormalize": True, "sum_added": 1e-20, "scale": 1.5,
                             "correction": True}),
    "odd": (39, 5, {"score": "sqrt_softplus", "groups": 3, "kept_groups": 2, "group_score": "sum_of_two", "bias": True,
                    "expert_scale": True, "softmax_of_chosen": True}),
    "groups of one": (19, 5, {"groups": 19, "kept_groups": 7, "bias": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_rules_of_families(name: str) -> None:
    experts, k, given_rule = FAMILIES[name]
    rng = np.random.default_rng(experts)
    vectors = {"bias", "correction", "expert_scale"} & given_rule.keys()
    rule = {**given_rule, **{v: rng.normal(0.5, 0.5, experts).astype(np.float32) for v in sorted(vectors)}}
    check(rng.normal(0, 2, (50, experts)).astype(np.float32), k, reference.Routing(**rule))


def test_very_many_experts() -> None:
    rng = np.random.default_rng(0)
    logits = rng.integers(-9, 9, (2, 65536)).astype(np.float32)  # ties everywhere
    check(logits, 3, reference.Routing())
    check(logits, 9, reference.Routing("sigmoid", groups=256, kept_groups=5, group_score="sum_of_two"))


def test_of_equal_groups_the_lower_ones_are_kept() -> None:
    logits = np.array([[0, 5, 4, 4, 5, 0, 1, 1]], np.float32)  # sums of two: 5 8 5 2
    for score, chosen in (("max", [1, 4, 0, 5]), ("sum_of_two", [1, 2, 3, 0])):
        rule = reference.Routing("identity", groups=4, kept_groups=2, group_score=score)  # type: ignore[arg-type]
        assert route(logits, 4, rule)[0].tolist() == [chosen]


def test_softplus_is_right_far_out() -> None:
    logits = np.concatenate([np.linspace(-80, 80, 4001), [-3e38, 3e38]]).astype(np.float32)[:, None]
    weights = route(logits, 1, reference.Routing("sqrt_softplus"))[1]
    np.testing.assert_allclose(weights, np.sqrt(np.logaddexp(0, logits.astype(np.float64))), rtol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_of_equal_logits_the_lower_id_comes_first(score: reference.Score) -> None:
    logits = np.zeros((1, 40), np.float32)
    logits[0, [3, 20, 33]] = 1
    ids, _ = route(logits, 6, reference.Routing(score))
    assert ids.tolist() == [[3, 20, 33, 0, 1, 2]]


def test_all_logits_negative() -> None:
    ids, weights = route(np.array([[-9, -5, -7, -6]], np.float32), 2, reference.Routing(renormalize=True))
    assert ids.tolist() == [[1, 3]]
    assert weights.sum() == pytest.approx(1)


def test_the_bias_chooses_but_does_not_weigh() -> None:
    logits = np.array([[2, 1, 0]], np.float32)
    ids, weights = route(logits, 1, reference.Routing("sigmoid", correction=np.array([0, 0, 9], np.float32)))
    assert ids.tolist() == [[2]]
    assert weights[0, 0] == 0.5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=70), st.sampled_from(SCORES), st.data())
def test_any_logits(values: list[float], score: reference.Score, data: st.DataObject) -> None:
    logits, k = np.array([values], np.float32), data.draw(st.integers(1, len(values)))
    ids, weights = route(logits, k, reference.Routing(score, renormalize=score != "identity"))
    assert sorted(set(ids[0].tolist())) == sorted(ids[0].tolist())
    order = np.argsort(-logits[0], kind="stable")[:k]
    assert ids[0].tolist() == order.tolist()
    assert np.isfinite(weights).all()
    assert (weights >= 0).all() or score == "identity"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("score", SCORES)
def test_what_is_not_finite_is_reported(bad: float, score: str) -> None:
    logits, vector = np.zeros((3, 24), np.float32), np.zeros(24, np.float32)
    ids, weights = ops.tensor("I32", (3, 2)), ops.tensor("F32", (3, 2))
    vector[0] = bad
    for name in ("bias", "correction", "expert_scale"):
        assert not ops.router(ids, weights, plain(logits), ops.Routing(score, **{name: plain(vector)}))  # type: ignore[arg-type]
    logits[2, 23] = bad
    assert not ops.router(ids, weights, plain(logits), ops.Routing(score))


def test_wrong_arguments_are_named() -> None:
    ids, weights, logits = ops.tensor("I32", (1, 2)), ops.tensor("F32", (1, 2)), ops.tensor("F32", (1, 8))
    with pytest.raises(ValueError, match="score: found 'max', expected 'softmax', 'sigmoid', 'sqrt_softplus', 'id"):
        ops.Routing("max")
    with pytest.raises(ValueError, match="group_score: found 'softmax', expected 'max', 'sum_of_two'"):
        ops.Routing("softmax", group_score="softmax")
    with pytest.raises(ValueError, match="renormalize: found True with identity scores"):
        ops.Routing("identity", renormalize=True)
    with pytest.raises(ValueError, match="groups: found 0"):
        ops.Routing("softmax", groups=0)
    for kept in (0, 5):
        with pytest.raises(ValueError, match=f"kept_groups: found {kept}, expected 1 to 4"):
            ops.Routing("softmax", groups=4, kept_groups=kept)
    for value in (-1.0, np.nan, np.inf):
        for name in ("sum_added", "sum_least"):
            with pytest.raises(ValueError, match=f"{name}: found"):
                ops.Routing("softmax", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weights"):
        ops.router(ids, ops.tensor("F32", (1, 9)), logits, ops.Routing("softmax"))
    with pytest.raises(ValueError, match=r"ids: found F32 \(1, 2\), expected I32 \(1, 2\)"):
        ops.router(weights, weights, logits, ops.Routing("softmax"))
    with pytest.raises(ValueError, match="correction: found F32"):
        ops.Routing("softmax", correction=weights)
    for name in ("bias", "correction", "expert_scale"):
        rule = ops.Routing("softmax", **{name: ops.tensor("F32", (7,))})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rf"{name}: found F32 \(7,\), expected F32 \(8,\)"):
            ops.router(ids, weights, logits, rule)
    with pytest.raises(ValueError, match="groups: found 3, expected a divisor of 8 experts"):
        ops.router(ids, weights, logits, ops.Routing("softmax", groups=3))
    with pytest.raises(ValueError, match="groups: found 8"):
        ops.router(ids, weights, logits, ops.Routing("softmax", groups=8, group_score="sum_of_two"))
    with pytest.raises(ValueError, match="2 columns, expected 1 to 1, the experts of the kept groups"):
        ops.router(ids, weights, logits, ops.Routing("softmax", groups=8))
