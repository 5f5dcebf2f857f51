"""All buffers of a step, allocated once: a step takes views of their first rows and allocates nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.experts.stats import NO_EXPERT
from colibri.spec import ModelSpec

LOGIT_ROWS = 16  # rows of logits that are there at once; prompts ask for few, `infer` goes through its rows in parts
KEPT_VIEWS = 64
PAGE = 4096
ANSWER = "answer"  # of a layer, where it does not go into the residual stream as it is


@dataclass(frozen=True, slots=True)
class Buffer:
    """What a layer asks for: `rows` rows of `width` values for each row of a step.

    Buffers of one name share their memory, whatever their widths: what one holds is lost when another is written.
    `fill` is what it holds from the start, where nobody writes to its name.
    """

    name: str
    width: int
    type: Literal["F32", "I32"] = "F32"
    rows: int = 1
    fill: float = 0

    def nbytes(self, capacity: int) -> int:
        """Bytes for a step of so many rows, whole pages."""
        return -(-capacity * self.rows * self.width * 4 // PAGE) * PAGE


@dataclass(frozen=True, slots=True)
class Scratch:
    """What a layer needs while it runs: buffers, and bytes a row that the native code takes beside them."""

    buffers: tuple[Buffer, ...] = ()
    native_bytes: float = 0


class Rows:
    """Views of every buffer for a step of n rows (tokens).

    ids (n,) I32. hidden (n, hidden): the residual stream. normed (n, hidden). answer (n, hidden): what layers add their
    answers to; hidden itself, unless a buffer was asked for where they are scaled first. chosen: of each layer the
    experts, (n, experts_per_token) I32, and as one array (layers, n, experts_per_token) with NO_EXPERT in layers
    without any. views: the buffers that layers asked for, by the number that Workspace.place gave them.
    """

    __slots__ = ("answer", "chosen", "chosen_array", "count", "hidden", "ids", "normed", "views")

    def __init__(
        self, ids: ops.Tensor, chosen: tuple[ops.Tensor, ...], chosen_array: NDArray[np.int32],
        views: list[ops.Tensor], answer: int,
    ) -> None:  # fmt: skip
        self.count = ids.shape[0]
        self.ids = ids
        self.chosen, self.chosen_array = chosen, chosen_array
        self.hidden, self.normed = views[:2]
        self.answer = views[answer]
        self.views = views

    def clear_answer(self) -> None:
        """Zeros for layers to add to, where answers are not added to the residual stream itself."""
        if self.answer is not self.hidden:
            self.answer.numpy()[...] = 0


def _sizes(spec: ModelSpec, buffers: Iterable[Buffer], capacity: int) -> tuple[dict[Buffer, int], dict[str, int]]:
    """All buffers, numbered, and the bytes of each name."""
    common = Buffer("hidden", spec.hidden_size), Buffer("normed", spec.hidden_size)
    places = {buffer: place for place, buffer in enumerate(dict.fromkeys((*common, *buffers)))}
    sizes: dict[str, int] = {}
    for buffer in places:
        sizes[buffer.name] = max(sizes.get(buffer.name, 0), buffer.nbytes(capacity))
    return places, sizes


def workspace_bytes(spec: ModelSpec, buffers: Iterable[Buffer], capacity: int) -> int:
    """What a workspace takes."""
    _, sizes = _sizes(spec, buffers, capacity)
    chosen = len(spec.layers) * capacity * spec.experts_per_token
    return sum(sizes.values()) + 4 * (LOGIT_ROWS * spec.vocab_size + chosen)


class Workspace:
    """Buffers for steps of up to `capacity` rows: those that `buffers` asks for, and what every model has."""

    def __init__(self, spec: ModelSpec, buffers: Iterable[Buffer], capacity: int) -> None:
        self.capacity = capacity
        self._places, sizes = _sizes(spec, buffers, capacity)
        self._memory = ops.Memory(sum(sizes.values()) + LOGIT_ROWS * spec.vocab_size * 4)
        offsets = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        self._buffers = [self._tensor(buffer, offsets[buffer.name]) for buffer in self._places]
        self._answer = next((place for buffer, place in self._places.items() if buffer.name == ANSWER), 0)
        self.logits = ops.tensor("F32", (LOGIT_ROWS, spec.vocab_size), self._memory, sum(sizes.values()))
        self.logits_array: NDArray[np.float32] = self.logits.numpy()
        self._ids = ops.tensor("I32", (capacity,))
        self.ids_array: NDArray[np.int32] = self._ids.numpy()
        layers, experts_per_token = len(spec.layers), spec.experts_per_token
        self._chosen = ops.tensor("I32", (layers * capacity, experts_per_token))
        self._chosen_array = self._chosen.numpy().reshape(layers, capacity, experts_per_token)
        self._chosen_array[:] = NO_EXPERT
        self._views: OrderedDict[int, Rows] = OrderedDict()

    def _tensor(self, buffer: Buffer, offset: int) -> ops.Tensor:
        tensor = ops.tensor(buffer.type, (self.capacity * buffer.rows, buffer.width), self._memory, offset)
        if buffer.fill:
            tensor.numpy()[...] = buffer.fill
        return tensor

    def place(self, buffer: Buffer) -> int:
        """Where Rows.views has this buffer, which the workspace was made with."""
        return self._places[buffer]

    def rows(self, count: int) -> Rows:
        """Views of the first `count` rows of every buffer."""
        views = self._views.get(count)
        if views is None:
            views = self._views[count] = self._make(count)
            if len(self._views) > KEPT_VIEWS:
                self._views.popitem(last=False)
        return views

    def _make(self, count: int) -> Rows:
        first_rows = range(0, len(self._chosen_array) * self.capacity, self.capacity)
        return Rows(
            self._ids.rows(0, count),
            tuple(self._chosen.rows(first, first + count) for first in first_rows),
            self._chosen_array[:, :count],
            [tensor.rows(0, count * buffer.rows) for tensor, buffer in zip(self._buffers, self._places, strict=True)],
            self._answer,
        )
