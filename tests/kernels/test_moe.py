"""The experts of a batch: as the specification, whatever the batch, the threads and the order experts arrive in."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import reference
from kernel_weights import close, plain, random_weight, same_everywhere, tiled
from numpy.typing import NDArray

from colibri import ops

Formats = tuple[str, str, str]  # of gate, up, down
Glu = reference.Activation
GLUS = [Glu("silu"), Glu("gelu_tanh"), Glu("gelu_erf"), Glu("relu2")]
GLUS += [Glu("silu_clamped", limit=0.7), Glu("swiglu_oai", 1.5, 0.9)]
MIXTURES = [
    ("Q4_K", "Q4_K", "Q6_K"),
    ("Q8_0", "Q4_K", "MXFP4"),
    ("F16", "BF16", "F32"),
    ("Q5_K", "Q4_0", "Q4_K"),
]
HIDDEN, INTERMEDIATE, EXPERTS = 256, 512, 6


def make_expert(e: int, formats: Formats, biases: bool, intermediate: int = INTERMEDIATE) -> reference.Expert:
    shapes = ((intermediate, HIDDEN), (intermediate, HIDDEN), (HIDDEN, intermediate))
    parts = [random_weight(formats[i], *shape, seed=10 * e + i) for i, shape in enumerate(shapes)]
    bias = [np.random.default_rng(e + i).standard_normal(shape[0], np.float32) for i, shape in enumerate(shapes)]
    return reference.Expert(*parts, *bias) if biases else reference.Expert(*parts)  # type: ignore[arg-type]


def table_of(experts: list[reference.Expert]) -> ops.ExpertTable:
    table = ops.ExpertTable(len(experts), HIDDEN, experts[0].up.shape[0])
    for number, e in enumerate(experts):
        biases = (None if b is None else plain(b) for b in (e.gate_bias, e.up_bias, e.down_bias))
        table.set(number, None if e.gate is None else tiled(e.gate), tiled(e.up), tiled(e.down), *biases)
    return table


def batch(n: int, k: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    random = np.random.default_rng(seed)
    x = 0.1 * random.standard_normal((n, HIDDEN), np.float32)
    ids = np.array([random.permutation(EXPERTS)[:k] for _ in range(n)], np.int32)
    return x, ids


def run(
    table: ops.ExpertTable,
    x: NDArray[np.float32],
    ids: NDArray[np.int32],
    activation: Glu = GLUS[0],
    exact: bool = False,
    only: list[int] | None = None,
    slots: ops.Tensor | None = None,
    input_weights: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    slots = slots or ops.tensor("F32", (ids.size, HIDDEN))
    wanted = None if only is None else plain(np.array(only, np.int32))
    weights = None if input_weights is None else plain(input_weights)
    ops.moe(slots, plain(x), table, plain(ids), ops.Activation(*activation), exact, wanted, weights)
    return slots.numpy().copy()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("activation", GLUS)
@pytest.mark.parametrize("formats", MIXTURES)
def test_close_to_the_specification(formats: Formats, activation: Glu, exact: bool) -> None:
    experts = [make_expert(e, formats, biases=activation.name in ("gelu_erf", "swiglu_oai")) for e in range(EXPERTS)]
    table, (x, ids) = table_of(experts), batch(7, 2)
    found = same_everywhere(lambda: run(table, x, ids, activation, exact))
    # a value of h that lies between two steps may fall to either side in fast mode
    close(found, reference.moe(x, experts, ids, activation, exact), 1e-5 if exact or formats[2] == "F32" else 2e-2)


@pytest.mark.parametrize("activation", GLUS[1:5])
@pytest.mark.parametrize("up_and_down", [("Q4_K", "Q6_K"), ("Q8_0", "F32"), ("BF16", "BF16")])
def test_experts_without_a_gate(up_and_down: tuple[str, str], activation: Glu) -> None:
    up, down = up_and_down
    gated = [make_expert(e, (up, up, down), True, 288 if down != "Q6_K" else INTERMEDIATE) for e in range(EXPERTS)]
    experts = [e._replace(gate=None, gate_bias=None) for e in gated]
    x, ids = batch(7, 2)
    table = table_of(experts)
    found = same_everywhere(lambda: run(table, x, ids, activation))
    close(found, reference.moe(x, experts, ids, activation), 1e-5 if down in ("F32", "BF16") else 2e-2)


@pytest.mark.parametrize("activation", GLUS)
def test_activations_are_the_functions_that_they_are_named_after(activation: Glu) -> None:
    """Matrices that pass their input on show the activation itself, far out too."""
    one = reference.Weight("F32", np.eye(HIDDEN, dtype=np.float32).tobytes(), (HIDDEN, HIDDEN))
    shift = np.linspace(-3, 3, HIDDEN, dtype=np.float32)[::-1].copy()
    x = np.linspace(-12, 12, HIDDEN, dtype=np.float32)[None]
    gated = activation.name == "swiglu_oai"
    expert = reference.Expert(one if gated else None, one, one, None, shift if gated else None)
    found = run(table_of([expert]), x, np.zeros((1, 1), np.int32), activation, exact=True)
    expected = reference.glu(activation, x, x + shift if gated else None)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-7)


@pytest.mark.parametrize("activation", GLUS)
def test_what_is_not_a_number_goes_through(activation: Glu) -> None:
    table = table_of([make_expert(0, ("F32", "F32", "F32"), False)])
    x = batch(1, 1)[0]
    x[0, 7] = np.nan
    assert np.isnan(run(table, x, np.zeros((1, 1), np.int32), activation)).all()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_weights_of_the_input(k: int, exact: bool) -> None:
    experts = [make_expert(e, ("Q4_K", "Q8_0", "Q4_K"), True) for e in range(EXPERTS)]
    table, (x, ids) = table_of(experts), batch(150, k)
    weights = np.random.default_rng(3).uniform(0, 1, ids.shape).astype(np.float32)
    whole = same_everywhere(lambda: run(table, x, ids, exact=exact, input_weights=weights))
    few = slice(0, 7)
    expected = reference.moe(x[few], experts, ids[few], exact=exact, input_weights=weights[few])
    close(whole[: 7 * k], expected, 1e-5 if exact else 2e-2)
    slots = ops.tensor("F32", (ids.size, HIDDEN))
    for only in ([4, 0], [1], [2, 3, 5]):
        run(table, x, ids, exact=exact, only=only, slots=slots, input_weights=weights)
    assert slots.numpy().tobytes() == whole.tobytes()
    alone = run(table, x[40:41], ids[40:41], exact=exact, input_weights=weights[40:41])
    assert alone.tobytes() == whole[40 * k : 41 * k].tobytes()


def test_wrong_arguments_are_named() -> None:
    table = table_of([make_expert(0, ("Q8_0",) * 3, False)._replace(gate=None)])
    (x, _), ids = batch(1, 1), np.zeros((1, 1), np.int32)
    with pytest.raises(ValueError, match="activation: found 'relu', expected 'silu', 'gelu_tanh', 'gelu_erf', 'relu2'"):
        ops.Activation("relu")
    for limit in (-1.0, np.nan):
        with pytest.raises(ValueError, match="limit: found"):
            ops.Activation("silu_clamped", limit=limit)
    with pytest.raises(ValueError, match="alpha: found"):
        ops.Activation("swiglu_oai", np.inf)
    with pytest.raises(ValueError, match="swiglu_oai and expert 0 without a gate, expected experts with a gate"):
        run(table, x, ids, Glu("swiglu_oai"))
    with pytest.raises(ValueError, match=r"input_weights: found F32 \(1, 2\), expected F32 \(1, 1\)"):
        run(table, x, ids, input_weights=np.ones((1, 2), np.float32))
    slots = ops.tensor("F32", (1, HIDDEN))
    weight = slots.reshape(HIDDEN, 1).rows(0, 1)
    with pytest.raises(ValueError, match="slots: found memory that input_weights is in"):
        ops.moe(slots, plain(x), table, plain(ids), input_weights=weight)
    ops.moe(slots, plain(x), table, plain(ids), "gelu_erf")  # a name is enough


@pytest.mark.parametrize("intermediate", [32, 288, 768, 1440])
def test_intermediate_sizes_that_end_within_a_block(intermediate: int) -> None:
    experts = [make_expert(e, ("Q8_0", "MXFP4", "Q8_0"), True, intermediate) for e in range(EXPERTS)]
    x, ids = batch(5, 3)
    table = table_of(experts)
    found = same_everywhere(lambda: run(table, x, ids))
    close(found, reference.moe(x, experts, ids), 2e-2)


@pytest.mark.parametrize("exact", [False, True])
def test_a_token_does_not_depend_on_the_batch(exact: bool) -> None:
    table = table_of([make_expert(e, ("Q4_K", "Q4_K", "Q6_K"), False) for e in range(EXPERTS)])
    x, ids = batch(150, 2)
    whole = run(table, x, ids, exact=exact).reshape(150, 2, HIDDEN)
    for first, last in ((0, 1), (3, 12), (70, 150)):
        part = run(table, x[first:last], ids[first:last], exact=exact)
        assert part.tobytes() == whole[first:last].tobytes()


def test_experts_in_any_order_give_the_same_bits() -> None:
    table = table_of([make_expert(e, ("Q4_K", "Q4_K", "Q4_K"), False) for e in range(EXPERTS)])
    x, ids = batch(20, 3)
    whole, slots = run(table, x, ids), ops.tensor("F32", (60, HIDDEN))
    for only in ([4], [0, 5], [], [1, 2, 3]):
        run(table, x, ids, only=only, slots=slots)
    assert slots.numpy().tobytes() == whole.tobytes()


def test_only_leaves_the_other_slots_alone() -> None:
    table = table_of([make_expert(e, ("Q8_0", "Q8_0", "Q8_0"), False) for e in range(EXPERTS)])
    x, ids = batch(4, 2)
    slots = ops.tensor("F32", (8, HIDDEN))
    slots.numpy()[...] = 7
    run(table, x, ids, only=[2], slots=slots)
    assert ((slots.numpy() == 7).all(axis=1) == (ids.reshape(-1) != 2)).all()


def test_an_expert_that_is_not_set_is_an_error_before_any_work() -> None:
    table = table_of([make_expert(e, ("Q8_0", "Q8_0", "Q8_0"), False) for e in range(EXPERTS)])
    table.clear(3)
    x, slots = batch(1, 2)[0], ops.tensor("F32", (2, HIDDEN))
    with pytest.raises(ValueError, match="3"):
        run(table, x, np.array([[1, 3]], np.int32), slots=slots)
    assert not slots.numpy().any()
    run(table, x, np.array([[1, 3]], np.int32), only=[1], slots=slots)
    assert slots.numpy()[0].any()
    assert not slots.numpy()[1].any()


def test_a_caller_with_a_small_stack() -> None:
    """Threads have 128 KiB on musl; a child, since an overflow ends the process."""
    table, (x, ids) = table_of([make_expert(e, ("Q4_K", "Q4_K", "Q6_K"), False) for e in range(EXPERTS)]), batch(300, 2)
    child = os.fork()
    if not child:
        threading.stack_size(128 << 10)
        caller = threading.Thread(target=run, args=(table, x, ids))
        caller.start()
        caller.join()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
