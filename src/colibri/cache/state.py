"""Slots for what layers keep of a sequence in a fixed size: the states of recurrent mixers.

A slot is numbered alike in all layers. What it held before does not count: at position 0 the kernels begin with zeros.
A state cannot be taken back to an earlier position, so prompts that begin alike go on from copies that were made there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from colibri import ops
from colibri.spec import State

PAGE = 4096


class Part(NamedTuple):
    """Rows of a step after which states are copied: from slots to slots."""

    first: int
    last: int
    batch: ops.Batch
    copies: Sequence[tuple[int, int]]


Tensors = Mapping[str, ops.Tensor]
"""What a layer's State names, each (slots, ...)."""


class LayerState:
    """One layer's tensors, and the way through a step."""

    def __init__(self, tensors: Tensors, owner: States) -> None:
        self.tensors = tensors
        self._arrays = [tensor.numpy() for tensor in tensors.values()]
        self._owner = owner

    def copy(self, source: int, target: int) -> None:
        """Make one slot hold what another does."""
        for array in self._arrays:
            array[target] = array[source]

    def parts(self, batch: ops.Batch) -> Iterator[tuple[int, int, ops.Batch, Tensors]]:
        """A step: its rows, first to last, their batch and the states; in parts where states are copied on the way."""
        if not self._owner.step:
            yield 0, len(batch), batch, self.tensors
        for first, last, part, copies in self._owner.step:
            yield first, last, part, self.tensors
            for source, target in copies:
                self.copy(source, target)


class States:
    """`slots` places for a sequence's states; `keeps` is what each layer that has one keeps.

    spare: slots behind them, for who copies states away for the time of a step.
    """

    def __init__(self, keeps: Sequence[State], slots: int, spare: int = 0) -> None:
        self.slots = slots
        self.spare = range(slots, slots + spare)
        self.slot_bytes = sum(kept.nbytes for kept in keeps)
        shapes = [[(name, (slots + spare, *shape)) for name, shape in kept.tensors] for kept in keeps]
        self.nbytes = sum(_space(shape) for layer in shapes for _, shape in layer)
        self.step: Sequence[Part] = ()  # that is under way, where states are copied in it
        self._memory = ops.Memory(self.nbytes)
        self._used = 0
        self.layers = tuple(LayerState({name: self._tensor(shape) for name, shape in layer}, self) for layer in shapes)
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
        """Make one slot hold what another does, in all layers."""
        for layer in self.layers:
            layer.copy(source, target)


def _space(shape: tuple[int, ...]) -> int:
    return -(-4 * math.prod(shape) // PAGE) * PAGE
