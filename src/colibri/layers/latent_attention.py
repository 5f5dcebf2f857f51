"""Attention over latent vectors that all heads share (MLA, arXiv 2405.04434), absorbed in prefill and decode alike."""

from __future__ import annotations

from collections.abc import Iterable

from colibri import ops
from colibri.cache.kv import LayerCache
from colibri.errors import NumericalError
from colibri.layers.build import QUANTIZED_BYTES, Build, Seen
from colibri.layers.norm import Norm, bad_product, not_finite
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import LatentAttentionSpec, NormSpec

# What ops.attention calls what it found, and the tensors that it comes from.
_FOUND = {"k": "attn_kv_a_mqa", "k_norm": "attn_kv_a_norm", "q": "attn_k_b", "v": "attn_kv_a_mqa"}


class LatentAttention:
    """Norm, queries, the shared key, absorbed queries, cache, attention, values, output added to the residual."""

    def __init__(self, spec: LatentAttentionSpec, layer: int, norm: NormSpec, build: Build) -> None:
        self._block = block = f"blk.{layer}"
        weights, hidden, heads = build.weights, build.hidden, spec.heads
        self._norm = build.norm(f"{block}.attn_norm", norm)
        self._queries = ("attn_q_a", "attn_q_b") if spec.query_rank else ("attn_q",)
        inputs = {self._queries[0]: spec.query_rank or heads * spec.query_dim, "attn_kv_a_mqa": spec.key_dim}
        self._inputs = tuple(weights.matrix(f"{block}.{name}.weight", rows, hidden) for name, rows in inputs.items())
        biases = tuple(weights.optional_vector(f"{block}.{name}.bias", rows) for name, rows in inputs.items())
        self._biases = biases if any(bias is not None for bias in biases) else None
        if spec.query_rank:
            name = f"{block}.attn_q_a_norm.weight"
            self._query_norm = Norm(name, weights.vector(name, spec.query_rank), spec.norm.eps)
            up = weights.matrix(f"{block}.attn_q_b.weight", heads * spec.query_dim, spec.query_rank)
            self._query_up = (up,)
        self._keys = weights.head_matrices(f"{block}.attn_k_b.weight", heads, spec.kv_rank, spec.nope_dim)
        self._values = weights.head_matrices(f"{block}.attn_v_b.weight", heads, spec.value_dim, spec.kv_rank)
        self._output = (weights.matrix(f"{block}.attn_output.weight", hidden, heads * spec.value_dim),)
        output_bias = weights.optional_vector(f"{block}.attn_output.bias", hidden)
        self._output_bias = None if output_bias is None else (output_bias,)
        self._rule = _rule(spec, block, build)
        self._heads, self._exact = heads, build.exact
        self._places = tuple(build.places(_buffers(spec)))

    @staticmethod
    def scratch(spec: LatentAttentionSpec, hidden: int) -> Scratch:
        """Buffers of queries, the shared key and what is attended to; the native code quantises its inputs."""
        widest = spec.heads * max(spec.kv_rank, spec.nope_dim, spec.value_dim)
        return Scratch(_buffers(spec), QUANTIZED_BYTES * max(hidden, spec.query_rank, widest))

    def __call__(self, rows: Rows, batch: ops.Batch, cache: LayerCache) -> None:
        """Norm rows.hidden into rows.normed, add its attention to rows.hidden; shared keys go into the cache."""
        exact, heads = self._exact, self._heads
        q, k, absorbed, attended, answers, *latent = (rows.views[place] for place in self._places)
        first = *(latent or (q,)), k
        if not ops.norm_matmul(
            first, rows.normed, rows.hidden, self._norm.parameters, self._inputs, exact, self._biases
        ):
            raise not_finite(self._norm.name)
        for vector in latent:
            if not ops.norm_matmul((q,), vector, vector, self._query_norm.parameters, self._query_up, exact):
                raise not_finite(self._query_norm.name)
        ops.head_matmul(absorbed, q, self._keys, heads, exact, rest=True)
        found = ops.attention(attended, absorbed, k, None, cache.keys, None, batch, self._rule)
        if found:
            raise self._not_finite(found)
        ops.head_matmul(answers, attended, self._values, heads, exact)
        ops.matmul((rows.hidden,), answers, self._output, exact, True, self._output_bias)

    def inputs(self, rows: Rows) -> Iterable[Seen]:
        """What its weights were applied to, just after a call; those of single heads are left out."""
        yield tuple(f"{self._block}.{name}.weight" for name in (self._queries[0], "attn_kv_a_mqa")), rows.normed
        _, _, _, _, answers, *latent = (rows.views[place] for place in self._places)
        for vector in latent:
            yield (f"{self._block}.attn_q_b.weight",), vector
        yield (f"{self._block}.attn_output.weight",), answers

    def _not_finite(self, found: str) -> NumericalError:
        """What to raise for what ops.attention found."""
        if found == "scores":
            return NumericalError(
                f"{self._block}.{self._queries[-1]}.weight, {self._block}.attn_kv_a_mqa.weight: a product of a query "
                "and a key overflows; the weights are damaged or their type is too narrow for this model"
            )
        name = f"{self._block}.{_FOUND[found]}.weight"
        return not_finite(name) if found.endswith("_norm") else bad_product(name)


def _buffers(spec: LatentAttentionSpec) -> tuple[Buffer, ...]:
    """Queries, the key, absorbed queries, what is attended to, answers where queries were; the queries' own vector."""
    return (
        Buffer("q", spec.heads * spec.query_dim),
        Buffer("k", spec.key_dim),
        Buffer("absorbed", spec.heads * spec.key_dim),
        Buffer("attended", spec.heads * spec.kv_rank),
        Buffer("q", spec.heads * spec.value_dim),
        *((Buffer("query_latent", spec.query_rank),) if spec.query_rank else ()),
    )


def _rule(spec: LatentAttentionSpec, block: str, build: Build) -> ops.AttentionRule:
    """What is the same in every step: the first kv_rank values of a key are normed, those behind them turned."""
    cosine, sine = build.ropes[spec.rope]
    k_norm = ops.Norm(build.weights.vector(f"{block}.attn_kv_a_norm.weight", spec.kv_rank), spec.norm.eps)
    return ops.AttentionRule(cosine, sine, spec.scale, k_norm=k_norm, rope_start=spec.kv_rank)
