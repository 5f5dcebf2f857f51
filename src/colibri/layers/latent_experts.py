"""Experts that are narrower than the model: a matrix leads to their width, another leads back (Nemotron 3 Super)."""

from __future__ import annotations

from colibri import ops
from colibri.layers.build import Build
from colibri.layers.workspace import Buffer, Rows


class LatentExperts:
    """What experts of the width `latent` take, and where the weighted sum of their answers goes."""

    def __init__(self, latent: int, layer: int, build: Build) -> None:
        weights, prefix = build.weights, f"blk.{layer}.ffn_latent"
        self._down = (weights.matrix(f"{prefix}_down.weight", latent, build.hidden),)
        self._down_bias = (weights.optional_vector(f"{prefix}_down.bias", latent),)
        self._up = (weights.matrix(f"{prefix}_up.weight", build.hidden, latent),)
        self._up_bias = (weights.optional_vector(f"{prefix}_up.bias", build.hidden),)
        self._input, self._sum = build.places(self.buffers(latent))
        self._exact = build.exact

    @staticmethod
    def buffers(latent: int) -> tuple[Buffer, Buffer]:
        """What experts take, and the sum of what they give."""
        return Buffer("latent", latent), Buffer("latent_sum", latent)

    def enter(self, rows: Rows) -> ops.Tensor:
        """(n, latent) of rows.normed."""
        x = rows.views[self._input]
        ops.matmul((x,), rows.normed, self._down, self._exact, False, self._down_bias)
        return x

    def leave(self, rows: Rows, slots: ops.Tensor, weights: ops.Tensor) -> None:
        """Add what the sum of the answers (n * k, latent), times their weights, leads to to rows.answer."""
        total = rows.views[self._sum]
        total.numpy()[...] = 0
        ops.combine(total, slots, weights)
        ops.matmul((rows.answer,), total, self._up, self._exact, True, self._up_bias)
