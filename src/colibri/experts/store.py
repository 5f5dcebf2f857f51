"""Where the bytes of every routed expert are. Nothing is read here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from colibri import ops
from colibri.errors import FormatError, UnsupportedError
from colibri.weights.tensor_info import TensorInfo

PROJECTIONS = ("gate", "up", "down")
Layout = tuple[tuple[str, int, int], ...]
"""(type, rows, k) of each part: experts of one layout fit into each other's slots."""
_ROUTED = re.compile(r"blk\.([0-9]+)\.ffn_down(?:_exps|\.[0-9]+)\.weight")


class TensorSource(Protocol):
    """What the store needs of a checkpoint: tensors by their GGUF names."""

    @property
    def path(self) -> Path: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...


@dataclass(frozen=True, slots=True)
class Expert:
    """The matrices of one expert in one layer: gate, up (intermediate, hidden), down (hidden, intermediate).

    Some have no gate.
    """

    gate: TensorInfo | None
    up: TensorInfo
    down: TensorInfo

    @property
    def parts(self) -> tuple[TensorInfo, ...]:
        """gate, up and down; or up and down."""
        return (self.up, self.down) if self.gate is None else (self.gate, self.up, self.down)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return sum(part.nbytes for part in self.parts)

    @property
    def layout(self) -> Layout:
        """The types and shapes that decide into which slots it fits."""
        return tuple((part.type, part.shape[0], part.shape[1]) for part in self.parts)


def slot_bytes(layout: Layout) -> int:
    """Bytes of an expert of this layout in memory, tiled."""
    return sum(ops.tiled_bytes(type_name, rows, k) for type_name, rows, k in layout)


class ExpertStore:
    """All routed experts of a checkpoint by (layer, expert).

    Layers are numbered as in the checkpoint; a layer without routed experts (a dense layer) has none here.
    `layers` is how many the model has; what a file holds beyond them is left alone.
    Raises FormatError when a tensor is missing or the shapes of a layer contradict each other.
    """

    def __init__(self, checkpoint: TensorSource, layers: int) -> None:
        self.path = checkpoint.path
        self.layers = layers
        self._layers = {layer: _experts_of(checkpoint.tensors, layer) for layer in _routed(checkpoint.tensors, layers)}
        if not self._layers:
            raise UnsupportedError(
                "no routed experts (blk.N.ffn_gate_exps.weight) in this model; colibri runs MoE models"
            )
        self._biases = {
            layer: _find_biases(checkpoint.tensors, layer, names_of(experts[0].parts))
            for layer, experts in self._layers.items()
        }
        self._replaced: dict[tuple[int, int], Expert] = {}
        self.version = 0  # counts the replacements
        self.experts = max(len(experts) for experts in self._layers.values())
        first = next(iter(self._layers.values()))[0]
        self.intermediate, self.hidden = first.up.shape
        self.layouts: dict[int, Layout] = {layer: experts[0].layout for layer, experts in self._layers.items()}

    def has(self, layer: int) -> bool:
        """Whether this layer has routed experts."""
        return layer in self._layers

    def moe_layers(self) -> tuple[int, ...]:
        """The layers that have routed experts, in order."""
        return tuple(sorted(self._layers))

    def count(self, layer: int) -> int:
        """Experts of one layer; 0 for a dense layer."""
        return len(self._layers.get(layer, ()))

    def expert(self, layer: int, expert: int) -> Expert:
        """Where one expert of one layer is, its replacement if it has one."""
        return self._replaced.get((layer, expert)) or self._layers[layer][expert]

    def base(self, layer: int, expert: int) -> Expert:
        """Where one expert of one layer is in the model's own files."""
        return self._layers[layer][expert]

    @property
    def replaced_experts(self) -> tuple[int, ...]:
        """The experts that are taken from elsewhere."""
        return tuple(sorted({expert for _, expert in self._replaced}))

    def replace(self, expert: int, layers: Mapping[int, Expert] | None) -> None:
        """Take an expert of every layer from elsewhere; None: from the model's own files again."""
        self.version += 1
        for layer in self._layers:
            self._replaced.pop((layer, expert), None)
        for layer, replacement in (layers or {}).items():
            self._replaced[layer, expert] = replacement

    def biases(self, layer: int) -> tuple[TensorInfo, ...] | None:
        """The (experts, rows) F32 biases of the parts, or None."""
        return self._biases.get(layer)

    def slot_bytes(self, layer: int) -> int:
        """Bytes of one expert of this layer in memory, tiled."""
        return slot_bytes(self.layouts[layer])

    def layout_counts(self) -> dict[Layout, int]:
        """How many experts, over all layers, there are of each layout."""
        counts: dict[Layout, int] = {}
        for layer, layout in self.layouts.items():
            counts[layout] = counts.get(layout, 0) + self.count(layer)
        return counts


def _routed(tensors: Mapping[str, TensorInfo], layers: int) -> list[int]:
    """The layers that have routed experts."""
    found = {int(match[1]) for name in tensors if (match := _ROUTED.fullmatch(name))}
    return sorted(layer for layer in found if layer < layers)


def _experts_of(tensors: Mapping[str, TensorInfo], layer: int) -> list[Expert]:
    gates, ups, downs = (_projection(tensors, layer, projection) for projection in PROJECTIONS)
    if len(ups) != len(downs) or len(gates) not in (0, len(ups)):
        found = f"gate: {len(gates)}, up: {len(ups)}, down: {len(downs)}"
        raise FormatError(f"layer {layer} has different numbers of experts in its projections ({found})")
    experts = [Expert(*parts) for parts in zip(gates or itertools.repeat(None), ups, downs)]  # noqa: B905
    for number, expert in enumerate(experts):
        check_expert(expert, f"{expert.up.file}: expert {number}", layer, experts[0])
    return experts


def check_expert(expert: Expert, where: str, layer: int, like: Expert, types: bool = True) -> None:
    """Raise unless the expert can stand in the place of `like`: same shapes and, with `types`, same types.

    `where` names the file and, where several are checked, the expert.
    """
    if any(len(part.shape) != 2 for part in expert.parts) or expert.up.shape != expert.down.shape[::-1]:
        shapes = ", ".join(f"{n} {p.shape}" for n, p in zip(names_of(expert.parts), expert.parts, strict=True))
        raise FormatError(f"{where}, layer {layer}: the shapes do not fit each other: {shapes}")
    found, expected = expert.layout, like.layout
    if found != expected and (types or [part[1:] for part in found] != [part[1:] for part in expected]):
        raise FormatError(f"{where}, layer {layer}: found {_describe(found)}, expected {_describe(expected)}")
    for part in expert.parts:
        if part.type not in ops.BLOCK_TYPES:
            raise UnsupportedError(
                f"{part.file}: {part.name} is {part.type}; the engine runs {', '.join(ops.BLOCK_TYPES)}"
            )


def _describe(layout: Layout) -> str:
    return ", ".join(f"{n} {t} ({r}, {k})" for n, (t, r, k) in zip(names_of(layout), layout, strict=True))


def names_of(parts: Sequence[object]) -> tuple[str, ...]:
    """What the parts of an expert are: gate, up and down, or up and down."""
    return PROJECTIONS[-len(parts) :]


def _projection(tensors: Mapping[str, TensorInfo], layer: int, projection: str) -> list[TensorInfo]:
    merged = tensors.get(f"blk.{layer}.ffn_{projection}_exps.weight")
    if merged is not None:
        if len(merged.shape) != 3:
            raise FormatError(f"{merged.file}: {merged.name} has shape {merged.shape}, expected (experts, rows, k)")
        return [merged.expert(number) for number in range(merged.shape[0])]
    parts: list[TensorInfo] = []
    while (part := tensors.get(f"blk.{layer}.ffn_{projection}.{len(parts)}.weight")) is not None:
        parts.append(part)
    if not parts and projection != "gate":
        raise FormatError(f"layer {layer} lacks blk.{layer}.ffn_{projection}_exps.weight")
    return parts


def _find_biases(
    tensors: Mapping[str, TensorInfo], layer: int, projections: Sequence[str]
) -> tuple[TensorInfo, ...] | None:
    names = [f"blk.{layer}.ffn_{projection}_exps.bias" for projection in projections]
    found = tuple(tensors[name] for name in names if name in tensors)
    if len(found) not in (0, len(names)):
        raise FormatError(f"layer {layer} has biases for some of its experts' projections only")
    return found or None
