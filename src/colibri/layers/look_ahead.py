"""Predicting the experts of the next layer: its router, asked about this layer's hidden state."""

from __future__ import annotations

from typing import Any

from colibri import ops
from colibri.config import ModelConfig
from colibri.experts.residency import Residency
from colibri.layers.norm import Norm
from colibri.layers.router import Router
from colibri.layers.workspace import Rows


class LookAhead:
    """Reads ahead what the router of `layer` would choose for the hidden state as it is now.

    For steps of one row only: with several, most experts are needed anyway. Changes nothing but what is in memory.
    """

    def __init__(self, config: ModelConfig, layer: int, norm: Norm, router: Router, experts: Residency) -> None:
        self._layer = layer
        self._norm = norm
        self._router = router
        self._experts = experts
        k = config.experts_per_token
        self._half = (k + 1) // 2
        self._normed = ops.tensor("F32", (1, config.hidden_size))
        self._logits = ops.tensor("F32", (1, config.experts))
        self._weights = ops.tensor("F32", (1, k))
        self._chosen = ops.tensor("I32", (1, k))
        self._ids: Any = self._chosen.numpy()

    def __call__(self, rows: Rows, *, sure: bool) -> None:
        """Begin to read the experts that are expected, or with `sure` the likelier half of them.

        Worth it while the residency's `reads_ahead`.
        """
        self._norm(self._normed, rows.hidden)
        self._router.choose(self._normed, self._logits, self._chosen, self._weights)
        self._experts.prefetch(self._layer, self._ids[0, : self._half if sure else None].tolist())
