"""The gated short convolution of LFM2: a mixer that keeps the inputs of the latest tokens alone."""

from __future__ import annotations

from collections.abc import Iterable

from colibri import ops
from colibri.cache.state import LayerState
from colibri.layers.build import QUANTIZED_BYTES, Build, Seen
from colibri.layers.convolution import convolution
from colibri.layers.norm import not_finite
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import NormSpec, ShortConvSpec


class ShortConv:
    """Norm, projection to b, c and x, c times the convolution of b times x, output added to the residual."""

    def __init__(self, spec: ShortConvSpec, layer: int, norm: NormSpec, build: Build) -> None:
        self._prefix = prefix = f"blk.{layer}.shortconv"
        weights, hidden, channels = build.weights, build.hidden, spec.channels
        self._norm = build.norm(f"blk.{layer}.attn_norm", norm)
        self._input = (weights.matrix(f"{prefix}.in_proj.weight", 3 * channels, hidden),)
        self._input_bias = (weights.optional_vector(f"{prefix}.in_proj.bias", 3 * channels),)
        self._convolution = convolution(build, f"{prefix}.conv", channels, spec.taps, gated=True)
        self._output = (weights.matrix(f"{prefix}.out_proj.weight", hidden, channels),)
        self._output_bias = (weights.optional_vector(f"{prefix}.out_proj.bias", hidden),)
        self._mixed, self._convolved = build.places(self.scratch(spec, hidden).buffers)
        self._exact = build.exact

    @staticmethod
    def scratch(spec: ShortConvSpec, hidden: int) -> Scratch:
        """Buffers of b, c and x and of the answers."""
        buffers = Buffer("mixed", 3 * spec.channels), Buffer("convolved", spec.channels)
        return Scratch(buffers, QUANTIZED_BYTES * max(hidden, spec.channels))

    def __call__(self, rows: Rows, batch: ops.Batch, state: LayerState) -> None:
        """Norm rows.hidden into rows.normed, add the answer to rows.answer; the states in the batch's slots go on."""
        mixed, convolved = rows.views[self._mixed], rows.views[self._convolved]
        if not ops.norm_matmul(
            (mixed,), rows.normed, rows.hidden, self._norm.parameters, self._input, self._exact, self._input_bias
        ):
            raise not_finite(self._norm.name)
        for first, last, part, states in state.parts(batch):
            out, x = convolved.rows(first, last), mixed.rows(first, last)
            if not ops.short_conv(out, x, states["convolution"], part, self._convolution):
                raise not_finite(f"{self._prefix}.conv.weight")
        ops.matmul((rows.answer,), convolved, self._output, self._exact, True, self._output_bias)

    def inputs(self, rows: Rows) -> Iterable[Seen]:
        """What its weights were applied to, just after a call."""
        yield (f"{self._prefix}.in_proj.weight",), rows.normed
        yield (f"{self._prefix}.out_proj.weight",), rows.views[self._convolved]
