"""What happened inside each token, as an engineer reads it: the experts of every layer and their milliseconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from colibri.config import Token
from colibri.engine.model import Model
from colibri.layers.build import Mixer
from colibri.layers.workspace import Rows


@dataclass(frozen=True, slots=True)
class LayerTrace:
    """What one layer did in a step: the experts of each row (n, k), empty for a dense layer, and its time.

    expert_milliseconds is the part of it that routing, reading and computing the experts took.
    """

    layer: int
    experts: NDArray[np.int32]
    milliseconds: float
    expert_milliseconds: float


class LayerTraces(list[LayerTrace]):
    """A tap of the decoder that writes down every layer of every step."""

    def begin(self, rows: Rows) -> None:
        """Called by the decoder when a step begins."""
        self._start = time.perf_counter()

    def mixed(self, layer: int, mixer: Mixer, rows: Rows) -> None:
        """Called by the decoder after a layer's mixer."""
        self._middle = time.perf_counter()

    def fed_forward(self, layer: int, rows: Rows) -> None:
        """Called by the decoder after a layer's experts."""
        end = time.perf_counter()
        chosen = rows.chosen_array[layer]
        experts = chosen[:, chosen[0] >= 0]  # none in a dense layer
        self.append(LayerTrace(layer, experts, 1000 * (end - self._start), 1000 * (end - self._middle)))
        self._start = time.perf_counter()


class TokenTrace:
    """Watches a model's layers and writes them down, a line a layer, under each token.

    A row of the log: layer, experts in the router's order, milliseconds an expert, of all experts, of the layer.
    """

    def __init__(self, model: Model, stream: TextIO) -> None:
        self._stream = stream
        self._layers = LayerTraces()
        self._count = 0
        model.watch(self._layers)

    def token(self, token: Token) -> None:
        """Write what has been seen since the last token under this one."""
        total = sum(trace.milliseconds for trace in self._layers)
        rows = len(self._layers[0].experts) if self._layers else 0
        prefilled = f", {rows} tokens prefilled" if rows > 1 else ""
        print(f"\ntoken {self._count} {token.text!r} ({token.id}): {total:.2f} ms{prefilled}", file=self._stream)
        for trace in self._layers:
            print(f"  {_line(trace)}", file=self._stream)
        self._layers.clear()
        self._count += 1


def _line(trace: LayerTrace) -> str:
    chosen = trace.experts
    distinct = sorted({int(expert) for expert in chosen.ravel()})
    if not distinct:
        return f"layer {trace.layer:3}  dense  {trace.milliseconds:.3f} ms"
    names = " ".join(map(str, chosen[0].tolist() if len(chosen) == 1 else distinct))
    each = trace.expert_milliseconds / len(distinct)
    return (
        f"layer {trace.layer:3}  experts {names}  {each:.3f} ms each, {trace.expert_milliseconds:.3f} ms together, "
        f"layer {trace.milliseconds:.3f} ms"
    )
