"""Importance matrices made by the engine itself: how large the inputs of every matrix's columns are on a text.

The file is llama.cpp's (GGUF, `NAME.in_sum2` and `NAME.counts`), so either program's converter takes it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.engine.model import Model
from colibri.errors import ArgumentError, UnsupportedError
from colibri.experts.stats import NO_EXPERT
from colibri.layers.build import Mixer
from colibri.layers.workspace import Rows
from colibri.spec import Activation, DenseSpec, MoeSpec
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf_writer import TensorSpec, write_gguf
from colibri.weights.load import load_plain, read_tiles

WINDOW: Final = 512
_KEPT_BYTES: Final = 1 << 30  # gate and up matrices that are kept for the next window

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Tensors = tuple[ops.Tensor, ...]


class Calibration:
    """Sums of squared inputs: sums by tensor, (experts or 1, k); counts of the rows that were seen, (experts or 1,)."""

    def __init__(self, model: Model) -> None:
        self.sums: dict[str, F64] = {}
        self.counts: dict[str, F64] = {}
        self._model = model
        self._experts = model.spec.experts
        self._expert: dict[int, DenseSpec] = {
            layer: spec.ffn.expert for layer, spec in enumerate(model.spec.layers) if isinstance(spec.ffn, MoeSpec)
        }
        if any(isinstance(layer.ffn, MoeSpec) and layer.ffn.latent for layer in model.spec.layers):
            raise UnsupportedError(
                f"{model.spec.architecture}: its experts are narrower than the model, what they see is not"
                " measured; use an importance matrix that llama.cpp made"
            )
        self._reader = FileReader()
        self._kept: OrderedDict[tuple[int, int], tuple[Tensors, Tensors | None]] = OrderedDict()
        self._kept_bytes = 0

    def begin(self, rows: Rows) -> None:
        """Called by the decoder when a step begins."""

    def mixed(self, layer: int, mixer: Mixer, rows: Rows) -> None:
        """Called by the decoder after a layer's mixer."""
        for names, seen in mixer.inputs(rows):
            for name in names:
                self._add(name, seen.numpy())

    def fed_forward(self, layer: int, rows: Rows) -> None:
        """Called by the decoder after a layer's experts."""
        normed, chosen = rows.normed.numpy(), rows.chosen_array[layer]  # (n, hidden), (n, k)
        for expert in np.unique(chosen[chosen != NO_EXPERT]).tolist():
            seen = np.ascontiguousarray(normed[(chosen == expert).any(axis=1)])
            for part in ("gate", "up") if self._expert[layer].gated else ("up",):
                self._add(f"blk.{layer}.ffn_{part}_exps.weight", seen, expert, self._experts)
            self._add(f"blk.{layer}.ffn_down_exps.weight", self._inner(layer, expert, seen), expert, self._experts)

    def _add(self, name: str, rows: F32, place: int = 0, places: int = 1) -> None:
        if name not in self.sums:
            self.sums[name] = np.zeros((places, rows.shape[1]))
            self.counts[name] = np.zeros(places)
        self.sums[name][place] += np.square(rows, dtype=np.float64).sum(axis=0)
        self.counts[name][place] += len(rows)

    def _inner(self, layer: int, expert: int, rows: F32) -> F32:
        """What goes into an expert's down matrix: (n, intermediate)."""
        weights, biases = self._matrices(layer, expert)
        x = ops.tensor("F32", rows.shape)
        x.numpy()[...] = rows
        outs = tuple(ops.tensor("F32", (len(rows), weight.shape[0])) for weight in weights)
        ops.matmul(outs, x, weights, True, False, biases)
        return glu(self._expert[layer], outs[0].numpy(), outs[1].numpy() if outs[1:] else None)

    def _matrices(self, layer: int, expert: int) -> tuple[Tensors, Tensors | None]:
        """gate, where there is one, and up; their biases, where there are any."""
        if (layer, expert) in self._kept:
            self._kept.move_to_end((layer, expert))
            return self._kept[layer, expert]
        store = self._model.experts.store
        infos = store.biases(layer)
        biases = tuple(load_plain(info.expert(expert), self._reader) for info in infos[:-1]) or None
        inner = store.expert(layer, expert).parts[:-1]
        weights = tuple(ops.tensor(info.type, info.shape, tiled=True) for info in inner)
        for info, weight in zip(inner, weights, strict=True):
            read_tiles(info, weight, self._reader)
        self._kept_bytes += sum(weight.nbytes for weight in weights)
        self._kept[layer, expert] = weights, biases
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, (dropped, _) = self._kept.popitem(last=False)
            self._kept_bytes -= sum(weight.nbytes for weight in dropped)
        return weights, biases


def calibrate(
    model: Model,
    ids: Sequence[int],
    window: int = WINDOW,
    most_windows: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Run a text's ids in windows and collect what the matrices see. ArgumentError for a text that is too short."""
    if not 1 <= window <= model.context:
        raise ArgumentError(f"a window of {window} tokens: 1 to {model.context} (the context) is expected")
    count = len(ids) // window
    if count < 1:
        raise ArgumentError(f"the text has {len(ids)} tokens; at least {window} (one window) are needed")
    count = min(count, most_windows or count)
    calibration = Calibration(model)
    model.watch(calibration)
    try:
        for number in range(count):
            model.infer_rows(list(ids[number * window : (number + 1) * window]), _ignore)
            if progress is not None:
                progress(number + 1, count)
    finally:
        model.watch(None)
    return calibration


def glu(expert: DenseSpec, gate: F32, up: F32 | None = None) -> F32:
    """What an expert does between its matrices; without a gate the activation of what would be the gate's."""
    g, kind = gate.astype(np.float64), expert.activation
    u = np.ones_like(g) if up is None else up.astype(np.float64)
    if kind in ("silu_clamped", "swiglu_oai"):
        g, u = np.minimum(g, expert.limit), np.clip(u, -expert.limit, expert.limit)
    slope = expert.alpha if kind == "swiglu_oai" else 1.0
    return np.asarray(g * CURVES[kind](slope * g) * (u + 1 if kind == "swiglu_oai" else u), np.float32)


def _sigmoid(x: F64) -> F64:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


# What each activation multiplies its input by.
CURVES: Final[Mapping[Activation, Callable[[F64], F64]]] = {
    "silu": _sigmoid,
    "silu_clamped": _sigmoid,
    "swiglu_oai": _sigmoid,
    "gelu_tanh": lambda x: 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "relu2": lambda x: np.maximum(x, 0),
}


def _ignore(position: int, logits: NDArray[np.float32]) -> None:
    """What comes out does not count."""


def write_imatrix(path: Path, calibration: Calibration, text: str, windows: int, window: int) -> None:
    """Write the sums as llama.cpp's importance file. `text` names what they were made from."""
    metadata: dict[str, Any] = {
        "general.type": "imatrix",
        "general.name": path.stem,
        "imatrix.datasets": [text],
        "imatrix.chunk_count": windows,
        "imatrix.chunk_size": window,
    }
    tensors: dict[TensorSpec, list[F32]] = {}
    for name, sums in sorted(calibration.sums.items()):
        for suffix, numbers in (("in_sum2", sums), ("counts", calibration.counts[name][:, None])):
            tensors[TensorSpec(f"{name}.{suffix}", "F32", numbers.shape)] = [np.ascontiguousarray(numbers, np.float32)]
    write_gguf(path, metadata, tensors)
