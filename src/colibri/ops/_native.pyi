from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

KV_BLOCK: int

def isa() -> str: ...
def isas() -> tuple[str, ...]: ...  # that this processor can run, best first
def isas_of_build() -> tuple[str, ...]: ...
def use_isa(name: str) -> None: ...
def threads() -> int: ...
def set_threads(threads: int, cpus: int) -> None: ...
def measure_dot(seconds: float) -> tuple[float, ...]: ...
def measure_handover(seconds: float) -> tuple[float, ...]: ...
def poison_scratch(byte: int | None) -> None: ...
def block_types() -> list[tuple[str, int, int, int, int, str]]: ...

class Memory:
    def __init__(self, nbytes: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def populate(self, offset: int, nbytes: int) -> None: ...
    def release(self, offset: int, nbytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Tensor:
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def tiled(self) -> bool: ...
    def numpy(self) -> NDArray[Any]: ...
    def rows(self, first: int, last: int) -> Tensor: ...
    def reshape(self, *shape: int) -> Tensor: ...

def measure_read(memory: Memory, seconds: float) -> tuple[float, ...]: ...
def tensor(
    type: str, shape: Iterable[int], memory: Memory | None = None, offset: int = 0, tiled: bool = False
) -> Tensor: ...
def tiled_bytes(type: str, rows: int, k: int) -> int: ...
def tile(dst: Tensor, src: Buffer, first_row: int = 0, rows: int | None = None) -> None: ...
def dequantize(t: Tensor) -> NDArray[np.float32]: ...
def quantize(
    type: str, rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]: ...
def embed(out: Tensor, table: Tensor, ids: Tensor) -> None: ...
def matmul(
    outs: tuple[Tensor, ...],
    x: Tensor,
    weights: tuple[Tensor, ...],
    exact: bool = False,
    accumulate: bool = False,
    biases: tuple[Tensor | None, ...] | None = None,
) -> None: ...

def head_matmul(
    out: Tensor, x: Tensor, weight: Tensor, heads: int, exact: bool = False, rest: bool = False
) -> None: ...

class Norm:
    def __init__(self, weight: Tensor, eps: float, bias: Tensor | None = None) -> None: ...

def norm(out: Tensor, x: Tensor, norm: Norm) -> bool: ...
def norm_matmul(
    outs: tuple[Tensor, ...],
    normed: Tensor,
    x: Tensor,
    norm: Norm,
    weights: tuple[Tensor, ...],
    exact: bool = False,
    biases: tuple[Tensor | None, ...] | None = None,
) -> bool: ...
def sample(
    tokens: NDArray[np.int32], norms: NDArray[np.float64], logits: NDArray[np.float32], settings: NDArray[np.float64]
) -> None: ...

class Batch:
    def __init__(
        self,
        positions: NDArray[np.int32],
        sequence: NDArray[np.int32],
        tables: Sequence[NDArray[np.int32]],
        slots: NDArray[np.int32] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...

def embed_positions(out: Tensor, table: Tensor, batch: Batch) -> None: ...

class AttentionRule:
    def __init__(
        self,
        cosine: Tensor | None = None,
        sine: Tensor | None = None,
        scale: float = 1.0,
        window: int = 0,
        sinks: Tensor | None = None,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
        clip: float | None = None,
        *,
        v_norm: Norm | None = None,
        rope_start: int = 0,  # the first number of a head that is turned
    ) -> None: ...

def attention(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,  # v and values None: the first of the keys' dimensions, as many as `out` has a head
    keys: Tensor,
    values: Tensor | None,
    batch: Batch,
    rule: AttentionRule,
) -> str: ...

class Convolution:
    def __init__(self, weight: Tensor, bias: Tensor | None = None, silu: bool = False, gated: bool = False) -> None: ...

def short_conv(out: Tensor, x: Tensor, state: Tensor, batch: Batch, rule: Convolution) -> bool: ...

class DeltaRule:
    def __init__(
        self,
        decay: Tensor,
        dt_bias: Tensor,
        key_heads: int,
        key_size: int,
        eps: float = 1e-6,
        tiled: bool = False,
    ) -> None: ...

def delta_net(
    out: Tensor, qkv: Tensor, beta: Tensor, dt: Tensor, state: Tensor, batch: Batch, rule: DeltaRule
) -> bool: ...

class StateSpace:
    def __init__(
        self,
        decay: Tensor,
        dt_bias: Tensor,
        groups: int,
        state_size: int,
        skip: Tensor | None = None,
        least: float = 0.0,
        most: float = ...,
    ) -> None: ...

def mamba2(out: Tensor, xbc: Tensor, dt: Tensor, state: Tensor, batch: Batch, rule: StateSpace) -> bool: ...
def gated_norm(
    out: Tensor, x: Tensor, gate: Tensor, norm: Norm, groups: int = 1, gate_first: bool = False
) -> bool: ...
def add(out: Tensor, x: Tensor) -> None: ...
def sigmoid_gate(out: Tensor, gate: Tensor) -> bool: ...
def soft_cap(x: Tensor, cap: float) -> None: ...  # NaN where x is not finite
def combine(out: Tensor, slots: Tensor, weights: Tensor) -> None: ...

class Routing:
    def __init__(
        self,
        score: str,  # softmax, sigmoid, sqrt_softplus, identity; of logits + bias
        *,
        softmax_of_chosen: bool = False,  # weights: of the chosen logits, not their scores
        renormalize: bool = False,  # weights / max(their sum + sum_added, sum_least)
        sum_added: float = 0.0,
        sum_least: float = 1e-20,
        scale: float = 1.0,
        groups: int = 1,
        kept_groups: int = 1,  # whose experts may be chosen: those of the largest group_score
        group_score: str = "max",  # or sum_of_two, of score + correction
        bias: Tensor | None = None,
        correction: Tensor | None = None,  # is added to the scores for the choice alone
        expert_scale: Tensor | None = None,
    ) -> None: ...

def router(ids: Tensor, weights: Tensor, logits: Tensor, routing: Routing) -> bool: ...
def route(
    ids: Tensor,
    weights: Tensor,
    logits: Tensor,
    normed: Tensor,
    x: Tensor,
    norm: Norm,
    gate: Tensor,
    routing: Routing,
) -> bool: ...

class ExpertTable:
    def __init__(self, experts: int, hidden: int, intermediate: int) -> None: ...
    def set(
        self,
        e: int,
        gate: Tensor | None,
        up: Tensor,
        down: Tensor,
        gate_bias: Tensor | None = None,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> None: ...
    def clear(self, e: int) -> None: ...
    def resident(self, e: int) -> bool: ...

class Activation:
    def __init__(
        self,
        name: str,  # silu, gelu_tanh, gelu_erf, relu2; silu_clamped (limit), swiglu_oai (alpha, limit)
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None: ...

def moe(
    slots: Tensor,
    x: Tensor,
    table: ExpertTable,
    ids: Tensor,
    activation: Activation | str = "silu",
    exact: bool = False,
    only: Tensor | None = None,
    input_weights: Tensor | None = None,  # (n, k): what the x of each of a token's experts is multiplied by
) -> None: ...
