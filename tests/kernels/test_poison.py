"""What an op writes depends on its inputs alone: not on what its scratch held, nor on what lay where it writes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
from kernel_weights import FORMATS, plain, random_weight, tiled
from numpy.typing import NDArray

from colibri import ops
from colibri.ops import _native

HIDDEN, WIDE, EXPERTS, K, HEADS, KV_HEADS, DIM, CONTEXT = 256, 512, 6, 3, 6, 2, 40, 300
QUANTIZED = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
POISONS = (0x00, 0xFF, 0x3F)  # as floats 0, a NaN and 0.75
Outputs = list[NDArray[np.generic]]


class Case(NamedTuple):
    """How many rows, the byte that outputs are full of, and a number that the inputs hold in one place."""

    n: int
    byte: int
    bad: float | None = None

    def normal(self, *shape: int, seed: int = 0) -> ops.Tensor:
        """An input: random, with the bad number in its last row."""
        tensor = normal(*shape, seed=seed)
        if self.bad is not None:
            tensor.numpy()[-1, 3] = self.bad
        return tensor

    def output(self, kind: str, *shape: int) -> ops.Tensor:
        return output(self.byte, kind, *shape)


Op = Callable[[Case], Outputs]


def normal(*shape: int, seed: int = 0) -> ops.Tensor:
    return plain(np.random.default_rng(seed + sum(shape)).standard_normal(shape, np.float32))


def output(byte: int, kind: str, *shape: int) -> ops.Tensor:
    tensor = ops.tensor(kind, shape)
    tensor.reshape(tensor.nbytes // tensor.numpy().itemsize).numpy().view(np.uint8)[:] = byte
    return tensor


@functools.cache
def weight(kind: str, rows: int, k: int, seed: int = 0) -> ops.Tensor:
    return tiled(random_weight(kind, rows, k, seed))


def results(*tensors: ops.Tensor) -> Outputs:
    return [tensor.numpy() for tensor in tensors]


def norm_of(width: int, bias: bool = False) -> ops.Norm:
    return ops.Norm(normal(width), 1e-5, normal(width, seed=1) if bias else None)


def norm(c: Case) -> Outputs:
    outs = [c.output("F32", c.n, width) for width in (HIDDEN, 24, 24)]
    for out, rule in zip(outs, (norm_of(HIDDEN), norm_of(24), norm_of(24, True)), strict=True):
        assert ops.norm(out, c.normal(*out.shape, seed=2), rule) == (c.bad is None)
    return results(*outs)


def matmul(c: Case) -> Outputs:
    found: Outputs = []
    for exact in (False, True):
        weights = tuple(weight(kind, 24 + 16 * i, HIDDEN) for i, kind in enumerate(FORMATS))[:8]
        outs = tuple(c.output("F32", c.n, w.shape[0]) for w in weights)
        ops.matmul(outs, c.normal(c.n, HIDDEN), weights, exact, biases=tuple(normal(w.shape[0]) for w in weights))
        found += results(*outs)
        accumulated = c.normal(c.n, weights[0].shape[0], seed=3)
        ops.matmul((accumulated,), c.normal(c.n, HIDDEN), weights[:1], exact, True)
        found += results(accumulated)
    return found


def norm_matmul(c: Case) -> Outputs:
    normed, outs = c.output("F32", c.n, HIDDEN), (c.output("F32", c.n, 24), c.output("F32", c.n, 40))
    weights = weight("Q4_K", 24, HIDDEN), weight("Q8_0", 40, HIDDEN)
    good = ops.norm_matmul(outs, normed, c.normal(c.n, HIDDEN), norm_of(HIDDEN), weights)
    return results(normed, *outs if good else ())


def embed(c: Case) -> Outputs:
    found = []
    for kind in FORMATS:
        out = c.output("F32", c.n, HIDDEN)
        ops.embed(out, weight(kind, 30, HIDDEN), plain(np.arange(c.n, dtype=np.int32) % 30))
        found += results(out)
    return found


def embed_positions(c: Case) -> Outputs:
    out = c.output("F32", c.n, HIDDEN)
    ops.embed_positions(out, weight("F16", CONTEXT, HIDDEN), rows_of(c.n))
    return results(out)


def rows_of(n: int) -> ops.Batch:
    """The last n positions of a sequence, or of two: blocks in mixed order."""
    blocks = [np.array(order, np.int32) for order in ((3, 0), (2, 1))]
    second = n // 3
    positions = [*range(CONTEXT - n + second, CONTEXT), *range(second)]
    return ops.Batch(np.array(positions, np.int32), np.array([0] * (n - second) + [1] * second, np.int32), blocks)


def copied(tensor: ops.Tensor) -> ops.Tensor:
    copy = ops.tensor(tensor.type, tensor.shape)
    copy.numpy()[...] = tensor.numpy()
    return copy


@functools.cache
def stored(byte: int, kind: str) -> tuple[ops.Tensor, ops.Tensor]:
    """A cache that is full of the byte but for the rows of one sequence."""
    width = DIM if kind == "F16" else DIM + 2 * 2
    keys = output(byte, kind, 4, KV_HEADS, width, ops.KV_BLOCK)
    values = output(byte, kind, 4, KV_HEADS, ops.KV_BLOCK, width)
    out, q = ops.tensor("F32", (CONTEXT, HEADS * DIM)), normal(CONTEXT, HEADS * DIM)
    k, v = (normal(CONTEXT, KV_HEADS * DIM, seed=seed) for seed in (1, 2))
    assert not ops.attention(out, q, k, v, keys, values, rows_of_one(), ops.AttentionRule())
    return keys, values


def rows_of_one() -> ops.Batch:
    positions = np.arange(CONTEXT, dtype=np.int32)
    return ops.Batch(positions, np.zeros(CONTEXT, np.int32), [np.array((3, 0), np.int32)])


def rules() -> Iterator[tuple[ops.AttentionRule, bool]]:
    """Rules, and whether they leave `out` as it is where an input is not finite."""
    angles = np.random.default_rng(7).uniform(0, 6, (CONTEXT, DIM // 2)).astype(np.float32)
    rope = plain(np.cos(angles)), plain(np.sin(angles))
    sinks = normal(HEADS)
    yield ops.AttentionRule(*rope, 0.2), False
    yield ops.AttentionRule(*rope, 0.2, 1), False
    yield ops.AttentionRule(*rope, 0.2, 20, sinks), False
    yield ops.AttentionRule(*rope, 0.2, 280, sinks, norm_of(DIM), norm_of(DIM), 2.0), True


def attention(c: Case) -> Outputs:
    found = []
    for kind in ("F16", "U8"):
        for bad, (rule, first) in itertools.product(range(1 if c.bad is None else 3), rules()):
            keys, values = (copied(part) for part in stored(c.byte, kind))
            rows = [c.normal if part == bad else normal for part in range(3)]
            q, k, v = (rows[part](c.n, (HEADS, KV_HEADS, KV_HEADS)[part] * DIM, seed=9) for part in range(3))
            out = c.output("F32", c.n, HEADS * DIM)
            fault = ops.attention(out, q, k, v, keys, values, rows_of(c.n), rule)
            assert bool(fault) == (c.bad is not None)
            found += results(q, k, v, *() if fault and first else (out,))
    return found


def add(c: Case) -> Outputs:
    out = c.normal(c.n, HIDDEN, seed=1)
    ops.add(out, c.normal(c.n, HIDDEN))
    return results(out)


def combine(c: Case) -> Outputs:
    out = c.normal(c.n, HIDDEN, seed=1)
    ops.combine(out, c.normal(c.n * K, HIDDEN), normal(c.n, K))
    return results(out)


def router(c: Case) -> Outputs:
    found = []
    for experts in (EXPERTS, 1100):  # 1,100: scratch is not on the stack
        for routing in (
            ops.Routing("softmax", renormalize=True),
            ops.Routing("sigmoid", scale=2.5, groups=2, correction=normal(experts)),
            ops.Routing("softmax", softmax_of_chosen=True, bias=normal(experts), expert_scale=normal(experts)),
        ):
            ids, weights = c.output("I32", c.n, K), c.output("F32", c.n, K)
            if ops.router(ids, weights, c.normal(c.n, experts), routing):
                found += results(ids, weights)
    return found


def route(c: Case) -> Outputs:
    ids, weights = c.output("I32", c.n, K), c.output("F32", c.n, K)
    logits, normed = c.output("F32", c.n, EXPERTS), c.output("F32", c.n, HIDDEN)
    rule, gate = ops.Routing("softmax", renormalize=True), weight("F32", EXPERTS, HIDDEN)
    good = ops.route(ids, weights, logits, normed, c.normal(c.n, HIDDEN), norm_of(HIDDEN), gate, rule)
    return results(normed, *(ids, weights, logits) if good else ())


@functools.cache
def experts_of(kind: str, gated: bool) -> ops.ExpertTable:
    table = ops.ExpertTable(EXPERTS, HIDDEN, WIDE)
    for e in range(EXPERTS):
        up, down = weight(kind, WIDE, HIDDEN, e), weight(kind, HIDDEN, WIDE, e)
        table.set(e, up if gated else None, up, down, None, normal(WIDE), normal(HIDDEN))
    return table


def moe(c: Case) -> Outputs:
    found = []
    every = np.tile(np.arange(EXPERTS, dtype=np.int32), (c.n, 1))
    ids = plain(np.random.default_rng(c.n).permuted(every, axis=1)[:, :K].copy())
    for kind, gated in itertools.product(FORMATS, (True, False)):
        plain_slots, weighed_slots = (c.output("F32", c.n * K, HIDDEN) for _ in range(2))
        for only in ([2, 0], [1, 3, 4, 5]):
            parts = plain(np.array(only, np.int32))
            x, table = c.normal(c.n, HIDDEN), experts_of(kind, gated)
            for slots, weights in ((plain_slots, None), (weighed_slots, normal(c.n, K))):
                ops.moe(slots, x, table, ids, "silu", kind == "Q8_0", parts, weights)
        found += results(plain_slots, weighed_slots)
    return found


def recurrent_batch(n: int) -> ops.Batch:
    """A sequence from its beginning, whose state is not read."""
    positions, blocks = np.arange(n, dtype=np.int32), [np.zeros(1, np.int32)]
    return ops.Batch(positions, np.zeros(n, np.int32), blocks, np.array([1], np.int32))


def short_conv(c: Case) -> Outputs:
    found = []
    for taps, gated in ((4, False), (3, True)):
        rule = ops.Convolution(normal(taps, 40), normal(40), True, gated)
        x = c.normal(c.n, 120 if gated else 40)
        out, state = c.output("F32", c.n, 40), c.output("F32", 2, taps - 1, 40)
        good = ops.short_conv(out, x, state, recurrent_batch(c.n), rule)
        assert good == (c.bad is None)
        found += [out.numpy(), x.numpy(), state.numpy()[1]]
    return found


def delta_net(c: Case) -> Outputs:
    heads, size, key_size = 4, 24, 40
    rule = ops.DeltaRule(plain(-np.ones(heads, np.float32)), normal(heads), 2, key_size)
    out, state = c.output("F32", c.n, heads * size), c.output("F32", 2, heads, 32 * key_size)
    qkv, beta, dt = c.normal(c.n, 4 * key_size + heads * size), normal(c.n, heads), normal(c.n, heads, seed=1)
    good = ops.delta_net(out, qkv, beta, dt, state, recurrent_batch(c.n), rule)
    assert good == (c.bad is None)
    return [out.numpy(), state.numpy()[1]] if good else []


def mamba2(c: Case) -> Outputs:
    heads, size, state_size = 4, 24, 40
    rule = ops.StateSpace(plain(-np.ones(heads, np.float32)), normal(heads), 2, state_size, normal(heads))
    out, state = c.output("F32", c.n, heads * size), c.output("F32", 2, heads, 32 * state_size)
    good = ops.mamba2(out, c.normal(c.n, heads * size + 4 * state_size), normal(c.n, heads), state,
                      recurrent_batch(c.n), rule)  # fmt: skip
    assert good == (c.bad is None)
    return [out.numpy(), state.numpy()[1]] if good else []


def gated_norm(c: Case) -> Outputs:
    found = []
    for first in (False, True):
        out = c.output("F32", c.n, HIDDEN)
        good = ops.gated_norm(out, c.normal(c.n, HIDDEN), normal(c.n, HIDDEN), norm_of(64), 4, first)
        assert good == (c.bad is None)
        found += results(out)
    return found


def head_matmul(c: Case) -> Outputs:
    found = []
    for kind, exact, rest in (("Q8_0", False, 8), ("F32", True, 0)):
        out = c.output("F32", c.n, 2 * (16 + rest))
        ops.head_matmul(out, c.normal(c.n, 2 * (64 + rest)), weight(kind, 32, 64), 2, exact, rest > 0)
        found += results(out)
    return found


def sigmoid_gate(c: Case) -> Outputs:
    out = c.normal(c.n, HIDDEN)
    ops.sigmoid_gate(out, c.normal(c.n, HIDDEN, seed=1))
    return results(out)


def soft_cap(c: Case) -> Outputs:
    x = c.normal(c.n, HIDDEN)
    ops.soft_cap(x, 1.5)
    return results(x)


def sample(c: Case) -> Outputs:
    filters = (0, 1, 0), (5, 1, 0), (0, 0.6, 0), (0, 1, 0.1), (9, 0.5, 0.2)
    settings = np.array([[0.7, *each, 0.4] for each in filters])
    tokens, norms = np.full(c.n, c.byte, np.int32), np.full(c.n, c.byte, np.float64)
    ops.sample(tokens, norms, c.normal(c.n, 3000).numpy(), np.resize(settings, (c.n, 5)))
    return [tokens, norms]


def tile(c: Case) -> Outputs:
    found = []
    for kind in FORMATS:
        memory = ops.Memory(ops.tiled_bytes(kind, 24, HIDDEN))
        np.frombuffer(memory, np.uint8)[:] = c.byte
        tensor = ops.tensor(kind, (24, HIDDEN), memory, 0, tiled=True)
        ops.tile(tensor, random_weight(kind, 24, HIDDEN).data)
        out = c.output("F32", c.n, 24)
        ops.matmul((out,), c.normal(c.n, HIDDEN), (tensor,))
        found += [ops.dequantize(tensor), *results(out)]
    return found


def quantize(c: Case) -> Outputs:
    rows = np.random.default_rng(c.n).standard_normal((c.n, HIDDEN), np.float32)
    return [ops.quantize(kind, rows) for kind in QUANTIZED]


OPS: dict[str, Op] = {
    op.__name__: op
    for op in (norm, matmul, norm_matmul, embed, embed_positions, attention, add, combine, router, route, moe, sample,
               tile, quantize, short_conv, delta_net, mamba2, gated_norm, head_matmul, sigmoid_gate, soft_cap)
}  # fmt: skip
# What computes nothing from tensors, or is computed with above.
OTHERS = {"isa", "isas", "isas_of_build", "use_isa", "threads", "set_threads", "poison_scratch", "block_types",
          "measure_read", "measure_dot", "measure_handover", "tensor", "tiled_bytes", "dequantize"}  # fmt: skip


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    _native.poison_scratch(None)


def test_every_op_is_here() -> None:
    functions = {name for name in dir(_native) if type(getattr(_native, name)).__name__ == "nb_func"}
    assert functions - OTHERS == set(OPS)


@pytest.mark.parametrize("isa", ops.isas())
@pytest.mark.parametrize(("threads", "n"), [(1, 1), (3, 1), (3, 40)])
@pytest.mark.parametrize("bad", [None, np.nan])
@pytest.mark.parametrize("name", OPS)
def test_results_do_not_depend_on_what_memory_held(
    isa: str, threads: int, n: int, bad: float | None, name: str
) -> None:
    _native.use_isa(isa)
    ops.set_threads(threads)
    found = []
    for byte in POISONS:
        _native.poison_scratch(byte)
        found.append([result.tobytes() for result in OPS[name](Case(n, byte, bad))])
    assert all(result == found[0] for result in found)


def test_poison_is_a_byte() -> None:
    with pytest.raises(ValueError, match="byte: found 256"):
        _native.poison_scratch(256)
