"""How answers join the residual stream where they are not added as they are."""

from __future__ import annotations

import numpy as np

from colibri import ops
from colibri.layers.build import Build
from colibri.layers.norm import Norm
from colibri.layers.workspace import ANSWER, Buffer, Rows
from colibri.spec import LayerSpec, ModelSpec

OUTPUT_SCALE = "blk.{}.layer_output_scale.weight"


def made_apart(spec: ModelSpec) -> bool:
    """Whether the answers of layers are made in a buffer of their own, rows.answer, before they are added."""
    return any(layer.answers_apart for layer in spec.layers)


class Residual:
    """Adds rows.answer to rows.hidden, normed, times the layer's scale; then the sum may be scaled."""

    def __init__(self, spec: LayerSpec, build: Build, norm: Norm | None = None, output_scale: float = 1.0) -> None:
        _, self._scale = build.places(self.buffers(spec, build.hidden))
        self._norm, self._output_scale = norm, np.float32(output_scale)

    @staticmethod
    def buffers(spec: LayerSpec, hidden: int) -> tuple[Buffer, Buffer]:
        """The answer, and the scale for each row."""
        scale = spec.residual_scale
        return Buffer(ANSWER, hidden), Buffer(f"residual scale {scale}", 1, fill=scale)

    def __call__(self, rows: Rows) -> None:
        """The answer is zero afterwards, to be added to by the next."""
        if self._norm is not None:
            self._norm(rows.answer, rows.answer)
        ops.combine(rows.hidden, rows.answer, rows.views[self._scale])
        if self._output_scale != 1:
            rows.hidden.numpy()[...] *= self._output_scale
        rows.clear_answer()


def residuals(spec: LayerSpec, layer: int, build: Build) -> tuple[Residual, Residual]:
    """After the mixer and after the feed-forward part, whose sum is what the layer's scale in the checkpoint is for."""
    norms: list[Norm | None] = [None, None]
    if spec.answer_norms is not None:
        norms = [build.norm(f"blk.{layer}.{name}", spec.norm) for name in spec.answer_norms]
    scale = build.weights.optional_vector(OUTPUT_SCALE.format(layer), 1)
    output_scale = 1.0 if scale is None else float(scale.numpy()[0])
    return Residual(spec, build, norms[0]), Residual(spec, build, norms[1], output_scale)
