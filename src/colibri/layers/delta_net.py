"""The gated delta rule (arXiv 2412.06464) as Qwen3-Next has it: a state for each head in place of keys and values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from colibri import ops
from colibri.cache.state import LayerState, Tensors
from colibri.layers.build import QUANTIZED_BYTES, Build, Seen
from colibri.layers.convolution import convolution
from colibri.layers.norm import not_finite
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import DeltaNetSpec, NormSpec
from colibri.weights.row_order import RowOrder

Projection = tuple[str, int, RowOrder | None]
"""Name of a weight, rows, and which rows of the tensor these are where it holds others, too."""


class DeltaNet:
    """Norm, projections, convolution, the delta rule over the states, gated norm, output added to the residual."""

    def __init__(self, spec: DeltaNetSpec, layer: int, norm: NormSpec, build: Build) -> None:
        self._block = block = f"blk.{layer}"
        weights, hidden = build.weights, build.hidden
        self._norm = build.norm(f"{block}.attn_norm", norm)
        projections = [_stored(spec, block, part, build) for part in ("qkv", "gate", "beta", "alpha")]
        self._names = tuple(dict.fromkeys(name for name, _, _ in projections))
        self._inputs = tuple(weights.matrix(name, rows, hidden, order) for name, rows, order in projections)
        self._convolution = convolution(build, f"{block}.ssm_conv1d", spec.channels, spec.taps, silu=True)
        decay, dt_bias = (weights.vector(f"{block}.{name}", spec.heads) for name in ("ssm_a", "ssm_dt.bias"))
        self._rule = ops.DeltaRule(decay, dt_bias, spec.key_heads, spec.key_size, tiled=spec.tiled)
        self._gated_norm = ops.Norm(weights.vector(f"{block}.ssm_norm.weight", spec.value_size), norm.eps)
        self._heads = spec.heads
        self._output = (weights.matrix(f"{block}.ssm_out.weight", hidden, spec.value_width),)
        self._places = tuple(build.places(self.scratch(spec, hidden).buffers))
        self._exact = build.exact

    @staticmethod
    def scratch(spec: DeltaNetSpec, hidden: int) -> Scratch:
        """Buffers of the gate, of queries, keys and values before and after the convolution, of rates and answers."""
        return Scratch(
            (
                Buffer("gate", spec.value_width),
                Buffer("mixed", spec.channels),
                Buffer("convolved", spec.channels),
                Buffer("beta", spec.heads),
                Buffer("dt", spec.heads),
                Buffer("attended", spec.value_width),
            ),
            QUANTIZED_BYTES * max(hidden, spec.value_width),
        )

    def __call__(self, rows: Rows, batch: ops.Batch, state: LayerState) -> None:
        """Norm rows.hidden into rows.normed, add the answer to rows.answer; the states in the batch's slots go on."""
        views = rows.views
        gate, *inner = (views[place] for place in self._places)
        mixed, _, beta, dt, answers = inner
        if not ops.norm_matmul(
            (mixed, gate, beta, dt), rows.normed, rows.hidden, self._norm.parameters, self._inputs, self._exact
        ):
            raise not_finite(self._norm.name)
        for first, last, part, states in state.parts(batch):
            self._recur(tuple(view.rows(first, last) for view in inner), part, states)
        if not ops.gated_norm(answers, answers, gate, self._gated_norm, self._heads):
            raise not_finite(f"{self._block}.ssm_norm.weight")
        ops.matmul((rows.answer,), answers, self._output, self._exact, True)

    def _recur(self, rows: tuple[ops.Tensor, ...], batch: ops.Batch, states: Tensors) -> None:
        """What goes from token to token."""
        mixed, convolved, beta, dt, answers = rows
        if not ops.short_conv(convolved, mixed, states["convolution"], batch, self._convolution):
            raise not_finite(f"{self._block}.ssm_conv1d.weight")
        if not ops.delta_net(answers, convolved, beta, dt, states["heads"], batch, self._rule):
            raise not_finite(f"{self._block}.ssm_a")

    def inputs(self, rows: Rows) -> Iterable[Seen]:
        """What its weights were applied to, just after a call."""
        yield self._names, rows.normed
        yield (f"{self._block}.ssm_out.weight",), rows.views[self._places[-1]]


def _stored(spec: DeltaNetSpec, block: str, part: str, build: Build) -> Projection:
    """Where a projection is: in a tensor of its own, or beside another in the order of key heads."""
    rows = {"qkv": spec.channels, "gate": spec.value_width, "beta": spec.heads, "alpha": spec.heads}[part]
    together, group = {"qkv": "ssm_in", "gate": "ssm_in"}.get(part, "ssm_ba"), spec.heads // spec.key_heads
    if build.weights.has(f"{block}.{together}.weight"):
        if together == "ssm_in":
            order = mixed_rows(spec)[part]
        else:
            first = 0 if part == "beta" else group
            order = RowOrder(2 * group, tuple(range(first, first + group)))
        return f"{block}.{together}.weight", rows, order
    kind = "ssm" if part in ("beta", "alpha") else "attn"
    return f"{block}.{kind}_{part}.weight", rows, None


def mixed_rows(spec: DeltaNetSpec) -> dict[str, RowOrder]:
    """Rows of queries, keys and values, and those of the gate, where each key head's are stored together."""
    values = spec.heads // spec.key_heads * spec.value_size
    sizes = spec.key_size, spec.key_size, values, values
    heads = np.arange(spec.key_heads * sum(sizes)).reshape(spec.key_heads, -1)
    *qkv, gate = np.split(heads, np.cumsum(sizes)[:-1], axis=1)
    rows = {"qkv": np.concatenate([part.ravel() for part in qkv]), "gate": gate.ravel()}
    return {part: RowOrder(heads.size, tuple(places.tolist())) for part, places in rows.items()}
