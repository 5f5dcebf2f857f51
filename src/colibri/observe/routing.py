"""Statistics of a routing trace: how even the load is, what a choice says of the next one, how alike two traces are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.experts.stats import Trace, entropy

Counts = NDArray[np.int64]
WIDEST = 48  # columns of a map
_SHADES = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class LayerBalance:
    """Of one layer, from how often its experts were chosen.

    used: experts that were. entropy: of the load, in bits. effective: 2^entropy, as how many equally busy ones it is.
    jain: (sum of loads)^2 / (experts * sum of squares), 1 where all are even, 1 / experts where one has all.
    load_ratio: the busiest's load over the mean. top_share: what part of the load the busiest k have.
    next_token: how many of a token's experts the next token has, too, of k; next_token_chance: the same of tokens drawn
    from the load. next_layer: how many of the next layer's experts are the k likeliest given this layer's, of k,
    learned on the first half of the trace and counted on the second; next_layer_chance: with the busiest of the first
    half instead. None where there is no next layer or too short a trace.
    """

    layer: int
    used: int
    entropy: float
    effective: float
    jain: float
    load_ratio: float
    top_share: float
    next_token: float | None
    next_token_chance: float
    next_layer: float | None
    next_layer_chance: float | None

    def as_dict(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


def counts_of(trace: Trace, experts: int) -> Counts:
    """How often each expert was chosen: (layers, experts) of a trace (tokens, layers, k)."""
    layers = trace.shape[1]
    counts = np.zeros((layers, experts), np.int64)
    for layer in range(layers):
        chosen = trace[:, layer].ravel()
        counts[layer] = np.bincount(chosen[chosen >= 0], minlength=experts)
    return counts


def balance(trace: Trace, experts: int) -> list[LayerBalance]:
    """Of each layer that has experts."""
    counts, k = counts_of(trace, experts), trace.shape[2]
    bits = entropy(counts)
    routed = [layer for layer in range(trace.shape[1]) if counts[layer].any()]
    found = []
    for layer, following in zip(routed, [*routed[1:], None], strict=True):
        load = counts[layer] / counts[layer].sum()
        ahead = None if following is None else predicted(trace[:, layer], trace[:, following], experts)
        found.append(LayerBalance(
            layer, int(np.count_nonzero(counts[layer])), float(bits[layer]), float(2 ** bits[layer]),
            float(1 / (experts * np.square(load).sum())), float(load.max() * experts), float(np.sort(load)[-k:].sum()),
            _repeated(trace[:, layer]), float(np.square(np.minimum(k * load, 1)).sum() / k),
            *(ahead or (None, None)),
        ))  # fmt: skip
    return found


def _repeated(chosen: Trace) -> float | None:
    """Which part of the experts (tokens, k) of a token is among those of the token before."""
    if len(chosen) < 2:
        return None
    return float((chosen[1:, :, None] == chosen[:-1, None, :]).any(axis=2).mean())


def predicted(chosen: Trace, following: Trace, experts: int) -> tuple[float, float] | None:
    """Which part of `following` (tokens, k) is among its k likeliest given `chosen`, and among its k busiest.

    Both learned on the first half of the tokens and counted on the second. None for fewer than four tokens.
    """
    half, k = len(chosen) // 2, chosen.shape[1]
    if half < 2:
        return None
    together = np.zeros((experts, experts), np.float64)
    for one in range(k):
        for other in range(k):
            np.add.at(together, (chosen[:half, one], following[:half, other]), 1)
    busy = together.sum(axis=0)
    given = (together + busy / max(1.0, busy.sum())) / (together.sum(axis=1, keepdims=True) + 1)
    scores = given[chosen[half:]].sum(axis=1)
    likeliest = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    busiest = np.broadcast_to(np.argpartition(-busy, k - 1)[:k], likeliest.shape)
    hits = [(following[half:, :, None] == guess[:, None, :]).any(axis=2).mean() for guess in (likeliest, busiest)]
    return float(hits[0]), float(hits[1])


def overlap(one: Trace, other: Trace, experts: int) -> NDArray[np.float64]:
    """(layers,): the part of the load that two traces have in common, 1 where they are alike, 0 where no expert is.

    The sum of the smaller of both shares, NaN in layers without experts.
    """
    shares = []
    for trace in (one, other):
        counts = counts_of(trace, experts).astype(np.float64)
        total = counts.sum(axis=1, keepdims=True)
        shares.append(np.where(total > 0, counts / np.maximum(total, 1), np.nan))
    common: NDArray[np.float64] = np.minimum(*shares).sum(axis=1)
    return common


def load_map(counts: Counts) -> list[str]:
    """A line for each layer with experts, a column for each expert, or for neighbours where there are too many.

    Heights are shares of the layer's busiest column; a blank was never chosen.
    """
    experts = counts.shape[1]
    together = -(-experts // WIDEST)
    starts = np.arange(0, experts, together)
    columns = np.add.reduceat(counts, starts, axis=1)
    lines = [f"{'layer':6}experts 0 to {experts - 1}" + (f", {together} a column" if together > 1 else "")]
    for layer in np.flatnonzero(columns.any(axis=1)):
        heights = np.ceil(columns[layer] / columns[layer].max() * (len(_SHADES) - 1)).astype(int)
        lines.append(f"{layer:<6}" + "".join(_SHADES[height] for height in heights))
    return lines
