"""Causal attention with grouped queries over a cache of blocks."""

from __future__ import annotations

from colibri import ops
from colibri.cache.kv import LayerCache
from colibri.config import ModelConfig
from colibri.layers.linear import DenseWeights
from colibri.layers.norm import Norm, not_finite
from colibri.layers.rope import RopeTables
from colibri.layers.workspace import Rows


class Attention:
    """Norm, projections, optional biases, norms and clipping, rope, cache, attention, output added to the residual."""

    def __init__(
        self, weights: DenseWeights, config: ModelConfig, layer: int, norm: Norm, rope: RopeTables | None, exact: bool
    ) -> None:
        self._norm = norm
        prefix = f"blk.{layer}.attn"
        hidden, q, kv = config.hidden_size, config.query_width, config.kv_width
        widths = {"q": q, "k": kv, "v": kv}
        self._qkv = tuple(weights.matrix(f"{prefix}_{part}.weight", width, hidden) for part, width in widths.items())
        biases = tuple(weights.optional_vector(f"{prefix}_{part}.bias", width) for part, width in widths.items())
        self._biases = biases if any(bias is not None for bias in biases) else None
        self._output = (weights.matrix(f"{prefix}_output.weight", hidden, q),)
        output_bias = weights.optional_vector(f"{prefix}_output.bias", hidden)
        self._output_bias = None if output_bias is None else (output_bias,)
        self._q_and_k_norm = f"{prefix}_q_norm.weight or {prefix}_k_norm.weight"
        q_norm, k_norm = _norms_of_heads(weights, config, prefix)
        cosine, sine = rope or (None, None)
        self._rule = ops.AttentionRule(
            cosine, sine, config.head_dim**-0.5, config.window, q_norm=q_norm, k_norm=k_norm, clip=config.clip_qkv
        )
        self._exact = exact

    def __call__(self, rows: Rows, batch: ops.Batch, cache: LayerCache) -> None:
        """Norm rows.hidden into rows.normed, add its attention to rows.hidden; keys and values go into the cache."""
        q, k, v = rows.q, rows.k, rows.v
        if not ops.norm_matmul(
            (q, k, v), rows.normed, rows.hidden, self._norm.parameters, self._qkv, self._exact, self._biases
        ):
            raise not_finite(self._norm.name)
        if not ops.attention(rows.attended, q, k, v, cache.keys, cache.values, batch, self._rule):
            raise not_finite(self._q_and_k_norm)
        ops.matmul((rows.hidden,), rows.attended, self._output, self._exact, True, self._output_bias)


def _norms_of_heads(
    weights: DenseWeights, config: ModelConfig, prefix: str
) -> tuple[ops.Norm, ops.Norm] | tuple[None, None]:
    """Of q and of k: over all heads of a row together or over each."""
    if config.qk_norm == "none":
        return None, None
    full = config.qk_norm == "full"
    q, k = (config.query_width, config.kv_width) if full else (config.head_dim, config.head_dim)
    q_weight, k_weight = weights.vector(f"{prefix}_q_norm.weight", q), weights.vector(f"{prefix}_k_norm.weight", k)
    return ops.Norm(q_weight, config.norm_eps), ops.Norm(k_weight, config.norm_eps)
