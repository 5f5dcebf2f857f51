"""Slots for what layers keep of a sequence in a fixed size: the states of recurrent mixers.

A slot is numbered alike in all layers. What it held before does not count: at position 0 the kernels begin with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from colibri import ops
from colibri.spec import State

PAGE = 4096
LayerState = Mapping[str, ops.Tensor]
"""One layer's tensors by their names, each (slots, ...)."""


class States:
    """`slots` places for a sequence's states; `keeps` is what each layer that has one keeps."""

    def __init__(self, keeps: Sequence[State], slots: int) -> None:
        self.slots = slots
        self.slot_bytes = sum(kept.nbytes for kept in keeps)
        shapes = [[(name, (slots, *shape)) for name, shape in kept.tensors] for kept in keeps]
        self.nbytes = sum(_space(shape) for layer in shapes for _, shape in layer)
        self._memory = ops.Memory(self.nbytes)
        self._used = 0
        self.layers = tuple({name: self._tensor(shape) for name, shape in layer} for layer in shapes)
        self._arrays = [tensor.numpy() for layer in self.layers for tensor in layer.values()]
        self._free = list(range(slots - 1, -1, -1))

    def _tensor(self, shape: tuple[int, ...]) -> ops.Tensor:
        tensor = ops.tensor("F32", shape, self._memory, self._used)
        self._used += _space(shape)
        return tensor

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A free slot; there must be one."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        self._free.append(slot)

    def copy(self, source: int, target: int) -> None:
        """Make one slot hold what another does."""
        for array in self._arrays:
            array[target] = array[source]


def _space(shape: tuple[int, ...]) -> int:
    return -(-4 * math.prod(shape) // PAGE) * PAGE
