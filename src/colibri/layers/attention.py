"""Causal attention with grouped queries over a cache of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from colibri import ops
from colibri.cache.kv import LayerCache
from colibri.errors import NumericalError
from colibri.layers.build import QUANTIZED_BYTES, Build, Seen
from colibri.layers.norm import bad_product, not_finite
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import AttentionSpec, NormSpec
from colibri.weights.row_order import RowOrder


class Attention:
    """Norm, projections, optional biases, norms and clipping, rope, cache, attention, gate, output to the residual."""

    def __init__(self, spec: AttentionSpec, layer: int, norm: NormSpec, build: Build) -> None:
        self._prefix = prefix = f"blk.{layer}.attn"
        weights, hidden = build.weights, build.hidden
        parts = _projections(spec)
        self._norm = build.norm(f"{prefix}_norm", norm)
        self._weights = tuple(weights.matrix(f"{prefix}_{part}.weight", n, hidden, rows) for part, n, rows in parts)
        biases = tuple(weights.optional_vector(f"{prefix}_{part}.bias", n, rows) for part, n, rows in parts)
        self._biases = biases if any(bias is not None for bias in biases) else None
        self._output = (weights.matrix(f"{prefix}_output.weight", hidden, spec.query_width),)
        output_bias = weights.optional_vector(f"{prefix}_output.bias", hidden)
        self._output_bias = None if output_bias is None else (output_bias,)
        self._rule = _rule(spec, prefix, norm.eps, build)
        self._names = tuple(dict.fromkeys(f"{prefix}_{part}.weight" for part, _, _ in parts))
        self._values_from_keys = spec.values_from_keys
        attended, q, k, v, *gate = build.places(self.scratch(spec, hidden).buffers)
        self._buffers, self._gate = itemgetter(attended, q, k, v), gate[0] if gate else None
        self._projected = itemgetter(*(q, k) if spec.values_from_keys else (q, k, v), *gate)
        self._attended = attended
        self._exact = build.exact

    @staticmethod
    def scratch(spec: AttentionSpec, hidden: int) -> Scratch:
        """Buffers of what is attended to and of the projections; the native code quantises its inputs."""
        widths = {"attended": spec.query_width, "q": spec.query_width, "k": spec.kv_width, "v": spec.kv_width}
        if spec.gate:
            widths["gate"] = spec.query_width
        buffers = tuple(Buffer(name, width) for name, width in widths.items())
        return Scratch(buffers, QUANTIZED_BYTES * max(hidden, spec.query_width))

    def __call__(self, rows: Rows, batch: ops.Batch, cache: LayerCache) -> None:
        """Norm rows.hidden into rows.normed, add its attention to rows.answer; keys and values go into the cache."""
        views = rows.views
        attended, q, k, v = self._buffers(views)
        if not ops.norm_matmul(
            self._projected(views), rows.normed, rows.hidden, self._norm.parameters, self._weights, self._exact,
            self._biases,
        ):  # fmt: skip
            raise not_finite(self._norm.name)
        if self._values_from_keys:
            v.numpy()[...] = k.numpy()
        found = ops.attention(attended, q, k, v, cache.keys, cache.values, batch, self._rule)
        if found:
            raise _not_finite(self._prefix, found, self._values_from_keys)
        if self._gate is not None and not ops.sigmoid_gate(attended, views[self._gate]):
            raise _not_finite(self._prefix, "q", self._values_from_keys)
        ops.matmul((rows.answer,), attended, self._output, self._exact, True, self._output_bias)

    def inputs(self, rows: Rows) -> Iterable[Seen]:
        """What its weights were applied to, just after a call."""
        yield self._names, rows.normed
        yield (f"{self._prefix}_output.weight",), rows.views[self._attended]


def _projections(spec: AttentionSpec) -> list[tuple[str, int, RowOrder | None]]:
    """Tensor, rows, and which of its rows these are, of queries, keys, values and gate.

    Each head's rows of the gate are behind those of its query.
    """
    kv = [(part, spec.kv_width, None) for part in ("k" if spec.values_from_keys else "kv")]
    if not spec.gate:
        return [("q", spec.query_width, None), *kv]
    head = spec.head_dim
    query, gate = RowOrder(2 * head, tuple(range(head))), RowOrder(2 * head, tuple(range(head, 2 * head)))
    return [("q", spec.query_width, query), *kv, ("q", spec.query_width, gate)]


def _not_finite(prefix: str, found: str, values_from_keys: bool) -> NumericalError:
    """What to raise for what ops.attention found."""
    if found == "scores":
        return NumericalError(
            f"{prefix}_q.weight, {prefix}_k.weight: a product of a query and a key overflows; the weights are "
            "damaged or their type is too narrow for this model"
        )
    if found in ("v", "v_norm"):  # the norm has no weight
        return bad_product(f"{prefix}_{'k' if values_from_keys else 'v'}.weight")
    name = f"{prefix}_{found}.weight"
    return not_finite(name) if found.endswith("_norm") else bad_product(name)


def _rule(spec: AttentionSpec, prefix: str, eps: float, build: Build) -> ops.AttentionRule:
    """What is the same in every step. Norms are over all heads of a row together or over each."""
    q_norm = k_norm = None
    if spec.qk_norm != "none":
        q, k = (spec.query_width, spec.kv_width) if spec.qk_norm == "full" else (spec.head_dim, spec.head_dim)
        q_norm = ops.Norm(build.weights.vector(f"{prefix}_q_norm.weight", q), eps)
        k_norm = ops.Norm(build.weights.vector(f"{prefix}_k_norm.weight", k), eps)
    cosine, sine = (None, None) if spec.rope is None else build.ropes[spec.rope]
    sinks = build.weights.vector(f"{prefix}_sinks.weight", spec.heads) if spec.sinks else None
    return ops.AttentionRule(
        cosine, sine, spec.score_scale, spec.window, sinks=sinks, q_norm=q_norm, k_norm=k_norm, clip=spec.clip,
        v_norm=ops.Norm(_ones(spec.head_dim), eps) if spec.value_norm else None,
    )  # fmt: skip


def _ones(size: int) -> ops.Tensor:
    ones = ops.tensor("F32", (size,))
    ones.numpy()[...] = 1
    return ones
