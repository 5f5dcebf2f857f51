"""How answers join the residual stream where they are not added as they are."""

from __future__ import annotations

from colibri import ops
from colibri.layers.build import Build
from colibri.layers.workspace import ANSWER, Buffer, Rows
from colibri.spec import LayerSpec, ModelSpec


def made_apart(spec: ModelSpec) -> bool:
    """Whether the answers of layers are made in a buffer of their own, rows.answer, before they are added."""
    return any(layer.residual_scale != 1 for layer in spec.layers)


class Residual:
    """Adds rows.answer to rows.hidden, times the layer's scale."""

    def __init__(self, spec: LayerSpec, build: Build) -> None:
        _, self._scale = build.places(self.buffers(spec, build.hidden))

    @staticmethod
    def buffers(spec: LayerSpec, hidden: int) -> tuple[Buffer, Buffer]:
        """The answer, and the scale for each row."""
        scale = spec.residual_scale
        return Buffer(ANSWER, hidden), Buffer(f"residual scale {scale}", 1, fill=scale)

    def __call__(self, rows: Rows) -> None:
        """The answer is zero afterwards, to be added to by the next."""
        ops.combine(rows.hidden, rows.answer, rows.views[self._scale])
        rows.clear_answer()
