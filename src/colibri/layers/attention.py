"""Causal attention with grouped queries over a cache of blocks."""

from __future__ import annotations

from colibri import ops
from colibri.cache.kv import LayerCache
from colibri.config import ModelConfig
from colibri.errors import NumericalError
from colibri.layers.linear import DenseWeights
from colibri.layers.norm import Norm
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
        self._q_norm, self._k_norm = _q_and_k_norm(weights, config, prefix)
        cosine, sine = rope or (None, None)
        self._rule = ops.AttentionRule(
            cosine, sine, config.head_dim**-0.5, config.window, clip=config.clip_qkv,
            q_norm=None if self._q_norm is None else self._q_norm.parameters,
            k_norm=None if self._k_norm is None else self._k_norm.parameters,
        )  # fmt: skip
        self._exact = exact

    def __call__(self, rows: Rows, batch: ops.Batch, cache: LayerCache) -> None:
        """Norm rows.hidden into rows.normed, add its attention to rows.hidden; keys and values go into the cache."""
        q, k, v = rows.q, rows.k, rows.v
        if not ops.norm_matmul(
            (q, k, v), rows.normed, rows.hidden, self._norm.parameters, self._qkv, self._exact, self._biases
        ):
            raise self._norm.error()
        if not ops.attention(rows.attended, q, k, v, cache.keys, cache.values, batch, self._rule):
            raise self._norm_error(q)
        ops.matmul((rows.hidden,), rows.attended, self._output, self._exact, True, self._output_bias)

    def _norm_error(self, q: ops.Tensor) -> NumericalError:
        """Of the norm of q or of k, whose input was not finite."""
        norm = self._k_norm if ops.finite(q) else self._q_norm
        assert norm is not None
        return norm.error()


def _q_and_k_norm(weights: DenseWeights, config: ModelConfig, prefix: str) -> tuple[Norm | None, Norm | None]:
    """Of all heads of a row together or of each."""
    if config.qk_norm == "none":
        return None, None
    full = config.qk_norm == "full"
    q, k = (config.query_width, config.kv_width) if full else (config.head_dim, config.head_dim)
    q_name, k_name = f"{prefix}_q_norm.weight", f"{prefix}_k_norm.weight"
    return (
        Norm(q_name, weights.vector(q_name, q), config.norm_eps),
        Norm(k_name, weights.vector(k_name, k), config.norm_eps),
    )
