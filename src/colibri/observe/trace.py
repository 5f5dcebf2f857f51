"""What happened inside each token, as an engineer reads it: the experts of every layer and their milliseconds."""

from __future__ import annotations

from typing import TextIO

from colibri.config import Token
from colibri.engine.model import Model
from colibri.models.decoder import LayerTrace


class TokenTrace:
    """Watches a model's layers and writes them down, a line a layer, under each token.

    A row of the log: layer, experts in the router's order, milliseconds an expert, of all experts, of the layer.
    """

    def __init__(self, model: Model, stream: TextIO) -> None:
        self._stream = stream
        self._layers: list[LayerTrace] = []
        self._count = 0
        model.watch(self._layers.append)

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
