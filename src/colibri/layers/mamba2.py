"""Mamba2 (arXiv 2405.21060): a state space for each head in place of keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from colibri import ops
from colibri.cache.state import LayerState, Tensors
from colibri.layers.build import QUANTIZED_BYTES, Build, Seen
from colibri.layers.convolution import convolution
from colibri.layers.norm import not_finite
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import Mamba2Spec, NormSpec
from colibri.weights.row_order import RowOrder


class Mamba2:
    """Norm, projection, convolution, the recurrence over the states, norm of the gated answers, output added."""

    def __init__(self, spec: Mamba2Spec, layer: int, norm: NormSpec, build: Build) -> None:
        self._block = block = f"blk.{layer}"
        weights, hidden = build.weights, build.hidden
        self._norm = build.norm(f"{block}.attn_norm", norm)
        parts = list(_projections(spec))
        self._inputs = tuple(weights.matrix(f"{block}.ssm_in.weight", rows, hidden, order) for rows, order in parts)
        self._biases = tuple(weights.optional_vector(f"{block}.ssm_in.bias", rows, order) for rows, order in parts)
        self._convolution = convolution(build, f"{block}.ssm_conv1d", spec.channels, spec.taps, silu=True)
        decay, skip = (weights.plain(f"{block}.ssm_{name}", (spec.heads, 1)).reshape(spec.heads) for name in "ad")
        dt_bias = weights.vector(f"{block}.ssm_dt.bias", spec.heads)
        self._rule = ops.StateSpace(decay, dt_bias, spec.groups, spec.state_size, skip, spec.least_step)
        self._groups, shape = spec.groups, (spec.groups, spec.width // spec.groups)
        gated = weights.plain(f"{block}.ssm_norm.weight", shape).reshape(spec.width)
        self._gated_norm = ops.Norm(gated, norm.eps)
        self._output = (weights.matrix(f"{block}.ssm_out.weight", hidden, spec.width),)
        self._output_bias = (weights.optional_vector(f"{block}.ssm_out.bias", hidden),)
        self._gate, self._mixed, self._dt, self._convolved, self._answers = build.places(
            self.scratch(spec, hidden).buffers
        )
        self._exact = build.exact

    @staticmethod
    def scratch(spec: Mamba2Spec, hidden: int) -> Scratch:
        """Buffers of what is projected, of the convolution and of the answers."""
        projected = zip(("gate", "mixed", "dt"), _projections(spec), strict=True)
        buffers = (Buffer(name, rows) for name, (rows, _) in projected)
        own = Buffer("convolved", spec.channels), Buffer("attended", spec.width)
        return Scratch((*buffers, *own), QUANTIZED_BYTES * max(hidden, spec.width))

    def __call__(self, rows: Rows, batch: ops.Batch, state: LayerState) -> None:
        """Norm rows.hidden into rows.normed, add the answer to rows.answer; the states in the batch's slots go on."""
        views = rows.views
        gate, mixed, dt = views[self._gate], views[self._mixed], views[self._dt]
        convolved, answers = views[self._convolved], views[self._answers]
        if not ops.norm_matmul(
            (gate, mixed, dt), rows.normed, rows.hidden, self._norm.parameters, self._inputs, self._exact, self._biases
        ):
            raise not_finite(self._norm.name)
        for first, last, part, states in state.parts(batch):
            inner = tuple(view.rows(first, last) for view in (mixed, convolved, dt, answers))
            self._recur(inner, part, states)
        if not ops.gated_norm(answers, answers, gate, self._gated_norm, self._groups, gate_first=True):
            raise not_finite(f"{self._block}.ssm_norm.weight")
        ops.matmul((rows.answer,), answers, self._output, self._exact, True, self._output_bias)

    def _recur(self, rows: tuple[ops.Tensor, ...], batch: ops.Batch, states: Tensors) -> None:
        """What goes from token to token."""
        mixed, convolved, dt, answers = rows
        if not ops.short_conv(convolved, mixed, states["convolution"], batch, self._convolution):
            raise not_finite(f"{self._block}.ssm_conv1d.weight")
        if not ops.mamba2(answers, convolved, dt, states["heads"], batch, self._rule):
            raise not_finite(f"{self._block}.ssm_a")

    def inputs(self, rows: Rows) -> Iterable[Seen]:
        """What its weights were applied to, just after a call."""
        yield (f"{self._block}.ssm_in.weight",), rows.normed
        yield (f"{self._block}.ssm_out.weight",), rows.views[self._answers]


def _projections(spec: Mamba2Spec) -> Iterator[tuple[int, RowOrder]]:
    """Gate, input of the convolution and steps: how many rows each has, and which of the one tensor they are."""
    sizes, first = (spec.width, spec.channels, spec.heads), 0
    for rows in sizes:
        yield rows, RowOrder(sum(sizes), tuple(range(first, first + rows)))
        first += rows
