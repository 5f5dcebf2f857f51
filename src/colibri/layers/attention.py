"""Causal attention with grouped queries over a cache of blocks."""

from __future__ import annotations

import numpy as np

from colibri import ops
from colibri.cache.kv import LayerCache
from colibri.config import ModelConfig
from colibri.layers.linear import DenseWeights
from colibri.layers.norm import Norm
from colibri.layers.rope import RopeTables
from colibri.layers.workspace import Rows


class Attention:
    """Projections, optional biases, norms and clipping, rope, cache, attention, output added to the residual stream."""

    def __init__(
        self, weights: DenseWeights, config: ModelConfig, layer: int, rope: RopeTables | None, exact: bool
    ) -> None:
        prefix = f"blk.{layer}.attn"
        hidden, q, kv = config.hidden_size, config.query_width, config.kv_width
        widths = {"q": q, "k": kv, "v": kv}
        self._qkv = tuple(weights.matrix(f"{prefix}_{part}.weight", width, hidden) for part, width in widths.items())
        biases = tuple(weights.optional_vector(f"{prefix}_{part}.bias", width) for part, width in widths.items())
        self._biases = biases if any(bias is not None for bias in biases) else None
        self._output = (weights.matrix(f"{prefix}_output.weight", hidden, q),)
        output_bias = weights.optional_vector(f"{prefix}_output.bias", hidden)
        self._output_bias = None if output_bias is None else (output_bias,)
        self._full_norm = config.qk_norm == "full"
        self._norms: tuple[Norm, Norm] | None = None
        if config.qk_norm != "none":
            sizes = (q, kv) if self._full_norm else (config.head_dim, config.head_dim)
            names = (f"{prefix}_q_norm.weight", f"{prefix}_k_norm.weight")
            q_norm, k_norm = (
                Norm(name, weights.vector(name, size), config.norm_eps)
                for name, size in zip(names, sizes, strict=True)
            )
            self._norms = q_norm, k_norm
        self._clip = config.clip_qkv
        self._rope = rope
        self._scale = config.head_dim**-0.5
        self._window = config.window
        self._exact = exact

    def __call__(self, rows: Rows, batch: ops.Batch, cache: LayerCache) -> None:
        """Add the attention of rows.normed to rows.hidden; keys and values of the rows go into the cache."""
        ops.matmul((rows.q, rows.k, rows.v), rows.normed, self._qkv, self._exact, False, self._biases)
        if self._norms is not None:
            self._normalize(rows, *self._norms)
        if self._clip is not None:
            for part in (rows.q, rows.k, rows.v):
                values = part.numpy()
                np.clip(values, -self._clip, self._clip, out=values)
        cosine, sine = self._rope or (None, None)
        ops.attention(rows.attended, rows.q, rows.k, rows.v, cache.keys, cache.values, batch,
                      cosine, sine, self._scale, self._window)  # fmt: skip
        ops.matmul((rows.hidden,), rows.attended, self._output, self._exact, True, self._output_bias)

    def _normalize(self, rows: Rows, q_norm: Norm, k_norm: Norm) -> None:
        if self._full_norm:
            q_norm(rows.q, rows.q)
            k_norm(rows.k, rows.k)
        else:
            q_norm(rows.q_heads, rows.q_heads)
            k_norm(rows.k_heads, rows.k_heads)
