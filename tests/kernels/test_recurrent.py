"""Recurrent mixers: against the numpy specification, and the same bits however the tokens come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import reference
from kernel_weights import close, plain, same_everywhere
from numpy.typing import NDArray

from colibri import ops
from colibri.ops import _native

F32 = NDArray[np.float32]
Run = list[tuple[int, int, int]]  # sequence, first and last position of each run of a step


class Mixer:
    """Random inputs of sequences for one mixer; states for more sequences than there are, all NaN at first."""

    width: int
    state_shape: tuple[int, ...]

    def __init__(self, lengths: Sequence[int], seed: int = 0) -> None:
        self.rng, self.lengths = np.random.default_rng(seed), lengths
        self.slots = self.rng.permutation(len(lengths) + 2)[: len(lengths)].astype(np.int32)

    def normal(self, *shape: int, size: float = 1.0) -> F32:
        return (self.rng.standard_normal(shape) * size).astype(np.float32)

    def each(self, *shape: int, size: float = 1.0) -> list[F32]:
        return [self.normal(n, *shape, size=size) for n in self.lengths]

    def fresh_state(self) -> ops.Tensor:
        state = ops.tensor("F32", (len(self.lengths) + 2, *self.state_shape))
        state.numpy()[...] = np.nan
        return state

    def batch(self, runs: Run) -> ops.Batch:
        positions = np.concatenate([np.arange(first, last) for _, first, last in runs]).astype(np.int32)
        sequence = np.concatenate([np.full(last - first, s) for s, first, last in runs]).astype(np.int32)
        tables = [np.arange(-(-n // ops.KV_BLOCK), dtype=np.int32) for n in self.lengths]
        return ops.Batch(positions, sequence, tables, self.slots)

    def rows(self, arrays: Sequence[F32], runs: Run) -> ops.Tensor:
        return plain(np.concatenate([arrays[s][first:last] for s, first, last in runs]).reshape(-1, arrays[0][0].size))

    def call(self, out: ops.Tensor, runs: Run, state: ops.Tensor) -> bool:
        raise NotImplementedError

    def expected(self, sequence: int) -> F32:
        raise NotImplementedError

    def step(self, runs: Run, state: ops.Tensor) -> list[F32]:
        out = ops.tensor("F32", (sum(last - first for _, first, last in runs), self.width))
        out.numpy()[...] = np.nan
        assert self.call(out, runs, state)
        ends = np.cumsum([last - first for _, first, last in runs])
        return np.split(np.array(out.numpy()), ends[:-1])

    def whole(self) -> Run:
        return [(s, 0, n) for s, n in enumerate(self.lengths)]

    def all_at_once(self) -> F32:
        return np.concatenate(self.step(self.whole(), self.fresh_state()))

    def in_chunks(self, size: int) -> tuple[F32, F32]:
        """`size` tokens of every sequence a step; what came out, and the states."""
        state, parts = self.fresh_state(), [[np.empty((0, self.width), np.float32)] for _ in self.lengths]
        for first in range(0, max(self.lengths), size):
            runs = [(s, first, min(first + size, n)) for s, n in enumerate(self.lengths) if first < n]
            for (s, _, _), out in zip(runs, self.step(runs, state), strict=True):
                parts[s].append(out)
        return np.concatenate([part for sequence in parts for part in sequence]), np.array(state.numpy())


class Delta(Mixer):
    def __init__(self, lengths: Sequence[int], key_heads: int, heads: int, key_size: int, size: int,
                 tiled: bool = False) -> None:  # fmt: skip
        super().__init__(lengths)
        self.heads, self.size, self.tiled, self.width = heads, size, tiled, heads * size
        self.state_shape = (heads, key_size * -(-size // 16) * 16)
        self.q, self.k = self.each(key_heads, key_size), self.each(key_heads, key_size, size=3)
        self.v, self.beta, self.dt = self.each(heads, size), self.each(heads, size=2), self.each(heads, size=2)
        self.decay, self.bias = -self.rng.uniform(0.01, 4, heads).astype(np.float32), self.normal(heads)
        self.rule = ops.DeltaRule(plain(self.decay), plain(self.bias), key_heads, key_size, tiled=tiled)

    def call(self, out: ops.Tensor, runs: Run, state: ops.Tensor) -> bool:
        flat = [
            np.concatenate([x[s].reshape(n, -1) for x in (self.q, self.k, self.v)], axis=1)
            for s, n in enumerate(self.lengths)
        ]
        rows, beta, dt = self.rows(flat, runs), self.rows(self.beta, runs), self.rows(self.dt, runs)
        return ops.delta_net(out, rows, beta, dt, state, self.batch(runs), self.rule)

    def expected(self, sequence: int) -> F32:
        inputs = (x[sequence] for x in (self.q, self.k, self.v, self.beta, self.dt))
        out, _ = reference.delta_net(*inputs, self.decay, self.bias, tiled=self.tiled)
        return out.reshape(len(out), -1)


class Mamba(Mixer):
    def __init__(self, lengths: Sequence[int], groups: int, heads: int, state_size: int, size: int,
                 limits: tuple[float, float] = (0.0, np.inf)) -> None:  # fmt: skip
        super().__init__(lengths)
        self.width, self.limits = heads * size, limits
        self.state_shape = (heads, state_size * -(-size // 16) * 16)
        self.x, self.b, self.c = self.each(heads, size), self.each(groups, state_size), self.each(groups, state_size)
        self.dt = self.each(heads, size=2)
        self.decay, self.bias, self.skip = -self.rng.uniform(0.5, 8, heads).astype(np.float32), *self.normal(2, heads)
        vectors = (plain(x) for x in (self.decay, self.bias))
        self.rule = ops.StateSpace(*vectors, groups, state_size, plain(self.skip), *limits)

    def call(self, out: ops.Tensor, runs: Run, state: ops.Tensor) -> bool:
        flat = [
            np.concatenate([x[s].reshape(n, -1) for x in (self.x, self.b, self.c)], axis=1)
            for s, n in enumerate(self.lengths)
        ]
        return ops.mamba2(out, self.rows(flat, runs), self.rows(self.dt, runs), state, self.batch(runs), self.rule)

    def expected(self, sequence: int) -> F32:
        inputs = (x[sequence] for x in (self.x, self.b, self.c, self.dt))
        out, _ = reference.mamba2(*inputs, self.decay, self.bias, self.skip, self.limits)
        return out.reshape(len(out), -1)


class Conv(Mixer):
    def __init__(self, lengths: Sequence[int], taps: int, channels: int, bias: bool = False, silu: bool = False,
                 gated: bool = False) -> None:  # fmt: skip
        super().__init__(lengths)
        self.width, self.silu, self.gated, self.state_shape = channels, silu, gated, (taps - 1, channels)
        self.x, self.weight = self.each(3 * channels if gated else channels), self.normal(taps, channels)
        self.bias = self.normal(channels) if bias else None
        self.rule = ops.Convolution(plain(self.weight), None if self.bias is None else plain(self.bias), silu, gated)

    def call(self, out: ops.Tensor, runs: Run, state: ops.Tensor) -> bool:
        return ops.short_conv(out, self.rows(self.x, runs), state, self.batch(runs), self.rule)

    def expected(self, sequence: int) -> F32:
        return reference.short_conv(self.x[sequence], self.weight, self.bias, self.silu, self.gated)


LENGTHS = [1, 130, 3, 65]
MIXERS: dict[str, Callable[[], Mixer]] = {
    "delta one head": lambda: Delta(LENGTHS, 1, 1, 64, 64),
    "delta": lambda: Delta(LENGTHS, 2, 6, 96, 128),
    "delta tiled": lambda: Delta(LENGTHS, 3, 6, 128, 64, tiled=True),
    "delta odd": lambda: Delta(LENGTHS, 5, 5, 7, 37),
    "mamba": lambda: Mamba(LENGTHS, 1, 3, 128, 64),
    "mamba groups": lambda: Mamba(LENGTHS, 2, 6, 64, 80, (0.01, 1.5)),
    "mamba odd": lambda: Mamba(LENGTHS, 1, 1, 5, 9),
    "conv 4": lambda: Conv(LENGTHS, 4, 1200, silu=True),
    "conv bias": lambda: Conv(LENGTHS, 4, 520, bias=True, silu=True),
    "conv 3 gated": lambda: Conv(LENGTHS, 3, 513, gated=True),
    "conv 6": lambda: Conv(LENGTHS, 6, 5, bias=True),
}
each_mixer = pytest.mark.parametrize("name", MIXERS)


@each_mixer
@pytest.mark.parametrize("isa", ops.isas())
def test_matches_the_specification(name: str, isa: str) -> None:
    mixer = MIXERS[name]()
    _native.use_isa(isa)
    for sequence, found in enumerate(mixer.step(mixer.whole(), mixer.fresh_state())):
        close(found, mixer.expected(sequence), 1e-5)


@each_mixer
@pytest.mark.parametrize("size", [1, 2, 5, 64, 100])
def test_chunks_and_batches_change_no_bit(name: str, size: int) -> None:
    mixer = MIXERS[name]()
    whole, last = mixer.in_chunks(max(LENGTHS))
    parts, state = mixer.in_chunks(size)
    assert parts.tobytes() == whole.tobytes() == mixer.all_at_once().tobytes()
    assert state.tobytes() == last.tobytes()
    unused = np.setdiff1d(np.arange(len(state)), mixer.slots)
    assert np.isnan(state[unused]).all() and np.isfinite(state[mixer.slots]).all()


@each_mixer
def test_a_sequence_alone_has_the_same_bits(name: str) -> None:
    mixer = MIXERS[name]()
    together = mixer.step(mixer.whole(), mixer.fresh_state())
    for run, found in zip(mixer.whole(), together, strict=True):
        assert mixer.step([run], mixer.fresh_state())[0].tobytes() == found.tobytes()


@each_mixer
def test_instruction_sets_and_threads_change_no_bit(name: str) -> None:
    mixer = MIXERS[name]()
    same_everywhere(mixer.all_at_once)
    same_everywhere(lambda: mixer.in_chunks(50)[1])


BAD = {
    Delta: ["q", "k", "v", "beta", "dt"],
    Mamba: ["x", "b", "c", "dt"],
    Conv: ["x"],
}
POISONED = [(name, field) for name in ("delta", "mamba groups", "conv bias", "conv 3 gated")
            for field in BAD[type(MIXERS[name]())]]  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "field"), POISONED)
@pytest.mark.parametrize("token", [0, 64, 129])
def test_what_is_not_finite_is_found_and_stays_in_its_sequence(name: str, field: str, token: int, value: float) -> None:
    mixer, clean = MIXERS[name](), MIXERS[name]()
    good = clean.step(clean.whole(), clean.fresh_state())
    getattr(mixer, field)[1][token].reshape(-1)[-1] = value
    state, out = mixer.fresh_state(), ops.tensor("F32", (sum(LENGTHS), mixer.width))
    assert not mixer.call(out, mixer.whole(), state)
    rows = np.split(np.array(out.numpy()), np.cumsum(LENGTHS)[:-1])
    for sequence in (0, 2, 3):
        assert rows[sequence].tobytes() == good[sequence].tobytes()
    # The slot is taken by a new sequence, which does not see what the other left.
    assert clean.step(clean.whole(), state)[1].tobytes() == good[1].tobytes()


def test_numbers_too_large_are_found() -> None:
    mixer = Delta([3], 1, 1, 16, 16)
    mixer.k[0][1] = 3e38
    assert not mixer.call(ops.tensor("F32", (3, 16)), [(0, 0, 3)], mixer.fresh_state())


def test_gates_far_out() -> None:
    mixer = Delta([40], 1, 2, 32, 16)
    mixer.dt[0][:, 0] = np.linspace(-200, 200, 40)
    mixer.beta[0][:, 1] = np.linspace(-200, 200, 40)
    close(mixer.all_at_once(), mixer.expected(0), 1e-5)


def test_state_of_the_delta_rule_is_laid_out_as_documented() -> None:
    mixer = Delta([20], 2, 4, 24, 40)
    state = mixer.fresh_state()
    mixer.step([(0, 0, 20)], state)
    inputs = (x[0] for x in (mixer.q, mixer.k, mixer.v, mixer.beta, mixer.dt))
    _, expected = reference.delta_net(*inputs, mixer.decay, mixer.bias)
    pair, last = np.split(state.numpy()[mixer.slots[0]], [24 * 32], axis=1)  # columns 0..31 and 32..47
    columns = np.concatenate([pair.reshape(4, 24, 32), last.reshape(4, 24, 16)], axis=2)
    close(columns[:, :, :40], expected.astype(np.float32), 1e-5)
    assert not columns[:, :, 40:].any()


@pytest.mark.parametrize("isa", ops.isas())
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize(("groups", "size", "shared"), [(32, 128, True), (3, 40, False), (1, 1536, True), (5, 7, True)])
def test_gated_norm(isa: str, gate_first: bool, groups: int, size: int, shared: bool) -> None:
    rng = np.random.default_rng(size)
    x, gate = rng.standard_normal((2, 9, groups * size)).astype(np.float32)
    weight = rng.standard_normal(size if shared else groups * size).astype(np.float32)
    norm = ops.Norm(plain(weight), 1e-6)
    _native.use_isa(isa)

    def run() -> F32:
        out = ops.tensor("F32", x.shape)
        assert ops.gated_norm(out, plain(x), plain(gate), norm, groups, gate_first)
        return np.array(out.numpy())

    close(run(), reference.gated_norm(x, gate, weight, 1e-6, groups, gate_first), 1e-5)
    same_everywhere(run)
    for spoilt in (x, gate):
        for value in (np.nan, np.inf, -np.inf):
            kept, spoilt[4, 3] = spoilt[4, 3], value
            assert not ops.gated_norm(ops.tensor("F32", x.shape), plain(x), plain(gate), norm, groups, gate_first)
            spoilt[4, 3] = kept


def test_gated_norm_in_place() -> None:
    x, gate = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    rows, out, norm = plain(x), ops.tensor("F32", x.shape), ops.Norm(plain(x[0]), 1e-6)
    assert ops.gated_norm(out, rows, plain(gate), norm) and ops.gated_norm(rows, rows, plain(gate), norm)
    assert out.numpy().tobytes() == rows.numpy().tobytes()


# ---- arguments -----------------------------------------------------------------------------------------------


def batch(positions: Sequence[int], sequence: Sequence[int], slots: Sequence[int] | None) -> ops.Batch:
    tables = [np.zeros(1, np.int32)] * 2
    integers = np.array(positions, np.int32), np.array(sequence, np.int32)
    return ops.Batch(*integers, tables, None if slots is None else np.array(slots, np.int32))


@pytest.mark.parametrize(
    ("positions", "sequence", "slots", "message"),
    [
        ([0], [0], [0], "slots: found 1 values, expected 2"),
        ([0], [0], [0, -1], "slots: found -1"),
        ([0, 0], [0, 1], [1, 1], "one slot for two sequences"),
        ([0, 2], [0, 0], [0, 1], "rows of a sequence that are apart"),
        ([0, 0, 1], [0, 1, 0], [0, 1], "rows of a sequence that are apart"),
    ],
)
def test_slots_are_checked(positions: list[int], sequence: list[int], slots: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch(positions, sequence, slots)


def test_sequences_without_rows_may_share_a_slot() -> None:
    assert len(batch([0], [1], [3, 3])) == 1


def tensors(**shapes: tuple[int, ...]) -> dict[str, ops.Tensor]:
    return {name: ops.tensor("F32", shape) for name, shape in shapes.items()}


VECTOR = ops.tensor("F32", (4,))
RULES: dict[str, tuple[Callable[..., bool], dict[str, tuple[int, ...]], Any]] = {
    "delta_net": (ops.delta_net,
                  {"out": (2, 80), "qkv": (2, 112), "beta": (2, 4), "dt": (2, 4), "state": (3, 4, 8 * 32)},
                  ops.DeltaRule(VECTOR, VECTOR, 2, 8)),
    "mamba2": (ops.mamba2, {"out": (2, 80), "xbc": (2, 112), "dt": (2, 4), "state": (3, 4, 8 * 32)},
               ops.StateSpace(VECTOR, VECTOR, 2, 8)),
    "short_conv": (ops.short_conv, {"out": (2, 6), "x": (2, 6), "state": (3, 3, 6)},
                   ops.Convolution(ops.tensor("F32", (4, 6)))),
}  # fmt: skip
WRONG = [(op, name) for op, (_, shapes, _) in RULES.items() for name in shapes]


@pytest.mark.parametrize("op", RULES)
def test_arguments_that_fit(op: str) -> None:
    call, shapes, rule = RULES[op]
    assert call(**tensors(**shapes), batch=batch([0, 1], [1, 1], [0, 2]), rule=rule)
    assert call(**tensors(**shapes | {n: (0, *s[1:]) for n, s in shapes.items() if n != "state"}),
                batch=batch([], [], [0, 1]), rule=rule)  # fmt: skip


@pytest.mark.parametrize(("op", "name"), WRONG)
@pytest.mark.parametrize("where", [0, -1])
def test_shapes_are_checked(op: str, name: str, where: int) -> None:
    call, shapes, rule = RULES[op]
    wrong = list(shapes[name])
    wrong[where] += 1
    if name == "state" and where == 0:
        wrong[0] = 2  # no place for slot 2
    with pytest.raises(ValueError, match="batch" if name == "state" and where == 0 else "found"):
        call(**tensors(**shapes | {name: tuple(wrong)}), batch=batch([0, 1], [1, 1], [0, 2]), rule=rule)


@pytest.mark.parametrize("op", RULES)
def test_slots_are_asked_for(op: str) -> None:
    call, shapes, rule = RULES[op]
    with pytest.raises(ValueError, match="no slots"):
        call(**tensors(**shapes), batch=batch([0, 1], [1, 1], None), rule=rule)


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, name in WRONG if name not in ("out", "dt", "beta")])
def test_what_is_written_is_apart(op: str, name: str) -> None:
    call, shapes, rule = RULES[op]
    memory = ops.Memory(1 << 20)
    shared = {n: ops.tensor("F32", shapes[n], memory, 0 if n in ("out", name) else 1 << 16) for n in shapes}
    with pytest.raises(ValueError, match="memory of its own"):
        call(**shared, batch=batch([0, 1], [1, 1], [0, 2]), rule=rule)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.DeltaRule(VECTOR, VECTOR, 3, 8), "key_heads: found 3"),
        (lambda: ops.DeltaRule(VECTOR, VECTOR, 0, 8), "key_heads: found 0"),
        (lambda: ops.DeltaRule(VECTOR, VECTOR, 2, 0), "key_size: found 0"),
        (lambda: ops.DeltaRule(VECTOR, VECTOR, 2, 8, 0.0), "eps: found 0"),
        (lambda: ops.DeltaRule(VECTOR, ops.tensor("F32", (3,)), 2, 8), "dt_bias: found F32"),
        (lambda: ops.StateSpace(VECTOR, VECTOR, 2, 8, None, 2.0, 1.0), "least, most: found 2, 1"),
        (lambda: ops.StateSpace(VECTOR, VECTOR, 2, 8, None, -1.0), "least, most: found -1"),
        (lambda: ops.StateSpace(VECTOR, VECTOR, 2, 8, ops.tensor("F32", (3,))), "skip: found F32"),
        (lambda: ops.Convolution(ops.tensor("F32", (1, 6))), "weight: found F32"),
        (lambda: ops.Convolution(ops.tensor("F32", (9, 6))), "weight: found F32"),
        (lambda: ops.Convolution(ops.tensor("F32", (4, 6)), VECTOR), "bias: found F32"),
    ],
)
def test_rules_are_checked(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_gated_norm_checks_its_arguments() -> None:
    x, out, gate = (ops.tensor("F32", (2, 12)) for _ in range(3))
    norm = ops.Norm(VECTOR, 1e-6)
    assert ops.gated_norm(out, x, gate, norm, 3)
    for groups, message in [(5, "groups: found 5"), (0, "groups: found 0"), (2, r"norm: found 4 values, expected 6")]:
        with pytest.raises(ValueError, match=message):
            ops.gated_norm(out, x, gate, norm, groups)
    with pytest.raises(ValueError, match="norm: found a bias"):
        ops.gated_norm(out, x, gate, ops.Norm(VECTOR, 1e-6, VECTOR), 3)
    with pytest.raises(ValueError, match="memory of its own"):
        ops.gated_norm(out, x, out, norm, 3)
