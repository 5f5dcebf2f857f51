"""Predicting the experts of the next layer: its router, asked about this layer's hidden state."""

from __future__ import annotations

from colibri.experts.residency import Residency
from colibri.layers.norm import Norm
from colibri.layers.router import Router
from colibri.layers.workspace import Rows


class LookAhead:
    """Reads ahead what the router of `layer` would choose for the hidden states as they are now.

    Changes nothing but what is in memory: its results are in buffers that are free at the time.
    """

    def __init__(self, layer: int, norm: Norm, router: Router, experts: Residency) -> None:
        self._layer = layer
        self._norm = norm
        self._router = router
        self._experts = experts

    def __call__(self, rows: Rows, *, sure: bool) -> None:
        """Begin to read the experts that are expected, or with `sure` the likelier half of them.

        Worth it while the residency's `reads_ahead`.
        """
        chosen = rows.chosen[self._layer]
        self._norm(rows.dense_slots, rows.hidden)
        self._router.choose(rows.dense_slots, rows.router_logits, chosen, rows.guessed_weights)
        k = chosen.shape[1]
        ids = rows.chosen_array[self._layer, :, : (k + 1) // 2 if sure else k]
        self._experts.prefetch(self._layer, dict.fromkeys(ids.T.ravel().tolist()))  # every row's likeliest first
