"""Feed-forward networks that every row goes through: the kernels of experts, with one that all choose."""

from __future__ import annotations

from dataclasses import replace

from colibri import ops
from colibri.layers.build import QUANTIZED_BYTES, Build
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import BesideSpec, DenseSpec, LayerSpec

SCRATCH_BYTES = 4 + QUANTIZED_BYTES  # of an inner value of a network, as a float and quantised


def activation(spec: DenseSpec) -> ops.Activation:
    """What a network does between its matrices."""
    return ops.Activation(spec.activation, spec.alpha, spec.limit)


class Network:
    """gate (where there is one), up and down; `name` has a place for each of the three."""

    def __init__(self, spec: DenseSpec, name: str, build: Build) -> None:
        weights, hidden, wide = build.weights, build.hidden, spec.width
        sizes = {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
        names = {part: name.format(part) for part in sizes}
        gate = weights.matrix(f"{names['gate']}.weight", wide, hidden) if spec.gated else None
        up, down = (weights.matrix(f"{names[part]}.weight", *sizes[part]) for part in ("up", "down"))
        biases = [weights.optional_vector(f"{names[part]}.bias", size[0]) for part, size in sizes.items()]
        self._table = ops.ExpertTable(1, hidden, wide)
        self._table.set(0, gate, up, down, *biases)
        self._activation = activation(spec)
        self._exact = build.exact
        self._slots, self._first, self._ones = build.places(self.scratch(spec, hidden).buffers)

    @staticmethod
    def scratch(spec: DenseSpec, hidden: int) -> Scratch:
        """Buffers of the answers, of the only choice and its weight."""
        buffers = Buffer("slots", hidden), Buffer("first", 1, "I32"), Buffer("ones", 1, fill=1)
        return Scratch(buffers, Network.native_bytes(spec) + QUANTIZED_BYTES * hidden)

    @staticmethod
    def native_bytes(spec: DenseSpec, networks: int = 1) -> float:
        """What the native code keeps of a row inside so many networks."""
        return SCRATCH_BYTES * spec.width * networks

    def __call__(self, rows: Rows, weights: ops.Tensor | None = None) -> None:
        """Add the network's answer to rows.normed to rows.answer, times `weights` (n, 1)."""
        views = rows.views
        slots = views[self._slots]
        ops.moe(slots, rows.normed, self._table, views[self._first], self._activation, self._exact)
        ops.combine(rows.answer, slots, views[self._ones] if weights is None else weights)


class DenseFeedForward:
    """A layer's feed-forward part without experts."""

    def __init__(self, spec: DenseSpec, layer: int, whole: LayerSpec, build: Build) -> None:
        self._norm = build.norm(f"blk.{layer}.{whole.ffn_norm}", whole.norm)
        self._network = Network(spec, f"blk.{layer}.ffn_{{}}", build)

    @staticmethod
    def scratch(spec: DenseSpec, hidden: int) -> Scratch:
        """That of the network."""
        return Network.scratch(spec, hidden)

    def __call__(self, rows: Rows) -> None:
        """Norm rows.hidden into rows.normed and add the network's answer to rows.answer."""
        self._norm(rows.normed, rows.hidden)
        self._network(rows)


class DenseBeside:
    """A dense network beside experts: its answer, normed, is what rows.answer holds first."""

    def __init__(self, spec: BesideSpec, layer: int, whole: LayerSpec, build: Build) -> None:
        self._network = DenseFeedForward(spec.network, layer, replace(whole, ffn_norm=spec.norm), build)
        self._norm = build.norm(f"blk.{layer}.{spec.answer_norm}", whole.norm)

    def __call__(self, rows: Rows) -> None:
        """rows.answer is zero before; rows.normed is written over."""
        self._network(rows)
        self._norm(rows.answer, rows.answer)
