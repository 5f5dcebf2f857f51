"""What every layer is made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from colibri import ops
from colibri.experts.residency import Residency
from colibri.layers.linear import DenseWeights
from colibri.layers.norm import Norm
from colibri.layers.rope import RopeTables
from colibri.layers.workspace import Buffer, Rows, Workspace
from colibri.spec import NormSpec

QUANTIZED_BYTES = 1.3  # of a value in both activation formats at most

Seen = tuple[tuple[str, ...], ops.Tensor]
"""Names of weights, and the rows that they were applied to."""


class Mixer(Protocol):
    """The part of a layer in which the tokens of a sequence meet."""

    def __call__(self, rows: Rows, batch: ops.Batch, cache: Any) -> None:
        """Norm rows.hidden into rows.normed, add the answer to rows.answer. cache: memory for what its spec keeps."""

    def inputs(self, rows: Rows) -> Iterable[Seen]:
        """What its weights were applied to, just after a call."""


class FeedForward(Protocol):
    """The part of a layer that each row goes through alone."""

    def __call__(self, rows: Rows) -> None:
        """Norm rows.hidden into rows.normed and add the answer to rows.answer."""


@dataclass(frozen=True, slots=True)
class Build:
    """Weights, buffers, experts and tables, and what is alike in all layers."""

    weights: DenseWeights
    workspace: Workspace
    experts: Residency
    ropes: RopeTables
    hidden: int
    exact: bool

    def norm(self, name: str, spec: NormSpec) -> Norm:
        """The norm of hidden states whose weight is `name`.weight."""
        weight = self.weights.vector(f"{name}.weight", self.hidden)
        bias = self.weights.vector(f"{name}.bias", self.hidden) if spec.kind == "layer" else None
        return Norm(f"{name}.weight", weight, spec.eps, bias)

    def places(self, buffers: Iterable[Buffer]) -> Iterator[int]:
        """Where Rows.views has these buffers."""
        return map(self.workspace.place, buffers)
