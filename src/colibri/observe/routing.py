"""What routing counts and traces say: how even the load is, and which experts are chosen together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def entropy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Entropy of each layer's choices in bits; log2(experts) is an even load: (layers, experts) counts -> (layers,)."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(share > 0, share * np.log2(share), 0.0)
    result: NDArray[np.float64] = -terms.sum(axis=1)
    return result


def co_activation(chosen: NDArray[np.int16], experts: int) -> NDArray[np.int64]:
    """Pairs chosen together by (tokens, k) rows of one layer: (experts, experts); the diagonal counts choices."""
    pairs = np.zeros((experts, experts), np.int64)
    rows = chosen[(chosen >= 0).all(axis=1)].astype(np.int64)
    for slot in range(rows.shape[1]):
        for other in range(rows.shape[1]):
            np.add.at(pairs, (rows[:, slot], rows[:, other]), 1)
    return pairs
