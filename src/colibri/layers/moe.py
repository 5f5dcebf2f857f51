"""The feed-forward part of a layer with routed experts, and with one that all share beside them."""

from __future__ import annotations

import numpy as np

from colibri import ops
from colibri.layers.build import QUANTIZED_BYTES, Build
from colibri.layers.dense import DenseBeside, Network, activation
from colibri.layers.latent_experts import LatentExperts
from colibri.layers.norm import Norm
from colibri.layers.router import Router
from colibri.layers.shared import SharedExpert
from colibri.layers.workspace import Buffer, Rows, Scratch
from colibri.spec import LayerSpec, MoeSpec


class MixtureOfExperts:
    """Routes each row, computes its experts wherever they are, adds them to the residual stream in slot order."""

    def __init__(self, spec: MoeSpec, layer: int, whole: LayerSpec, build: Build) -> None:
        self.layer = layer
        norm = build.norm(f"blk.{layer}.{whole.ffn_norm}", whole.norm)
        own = spec.router_scale is not None
        self.route = Router(spec.routing, layer, _router_norm(spec, layer, whole, build) if own else norm, build)
        self._beside = None if spec.beside is None else DenseBeside(spec.beside, layer, whole, build)
        self._norm = norm if own or spec.beside is not None else None  # of what the router did not norm for the experts
        self._answer_norm = build.norm(f"blk.{layer}.{spec.answer_norm}", whole.norm) if spec.answer_norm else None
        self.following: MixtureOfExperts | None = None  # the next layer's, to look ahead
        self._experts = build.experts
        self._shared = SharedExpert(spec.shared, layer, build) if spec.shared is not None else None
        self._latent = LatentExperts(spec.latent, layer, build) if spec.latent else None
        self._activation = activation(spec.expert)
        self._logits, self._weights, self._guessed, self._slots, self._normed, *self._own = build.places(
            _buffers(spec, build.hidden)
        )
        self._exact = build.exact

    @staticmethod
    def scratch(spec: MoeSpec, hidden: int) -> Scratch:
        """Its own buffers and those of what runs beside; the native code keeps each chosen expert's activations."""
        shared = Scratch() if spec.shared is None else SharedExpert.scratch(spec.shared, hidden)
        beside = Scratch() if spec.beside is None else Network.scratch(spec.beside.network, hidden)
        own = Network.native_bytes(spec.expert, spec.routing.experts_per_token) + QUANTIZED_BYTES * hidden
        around = LatentExperts.buffers(spec.latent) if spec.latent else ()
        buffers = *_buffers(spec, hidden), *around, *shared.buffers, *beside.buffers
        return Scratch(buffers, max(own, shared.native_bytes, beside.native_bytes))

    def __call__(self, rows: Rows) -> None:
        """Norm rows.hidden into rows.normed and add the experts' answer to rows.answer."""
        chosen, slots, weights = rows.chosen[self.layer], rows.views[self._slots], rows.views[self._weights]
        self.route(rows.hidden, rows.normed, rows.views[self._logits], chosen, weights)
        if self._shared is not None:
            self._shared.weigh(rows, weights)
        if self._beside is not None:
            self._beside(rows)
        if self._norm is not None:
            self._norm(rows.normed, rows.hidden)
        x = rows.normed if self._latent is None else self._latent.enter(rows)
        following = self.following if self._experts.reads_ahead(rows.count) else None
        for part, (table, only) in enumerate(self._experts.handles(self.layer, chosen)):
            if following is not None and part == 0:  # this layer's experts are kept or on their way now
                self._look_ahead(rows, following, sure=True)
            ops.moe(slots, x, table, chosen, self._activation, self._exact, only)
        self._add(rows, slots, weights)
        if self._shared is not None:
            self._shared(rows)
        if following is not None:
            self._look_ahead(rows, following, sure=False)  # a better guess, to be read during the attention

    def _add(self, rows: Rows, slots: ops.Tensor, weights: ops.Tensor) -> None:
        if self._latent is not None:
            self._latent.leave(rows, slots, weights)
            return
        if self._answer_norm is None:
            ops.combine(rows.answer, slots, weights)
            return
        own = rows.views[self._own[0]]
        own.numpy()[...] = 0
        ops.combine(own, slots, weights)
        self._answer_norm(own, own)
        ops.add(rows.answer, own)

    def _look_ahead(self, rows: Rows, following: MixtureOfExperts, sure: bool) -> None:
        """Begin to read what the next layer's router would choose for the hidden states as they are now.

        sure: only the likelier half of each row's. Changes nothing but what is in memory: the results are in buffers
        that are free at the time.
        """
        layer, views = following.layer, rows.views
        chosen = rows.chosen[layer]
        following.route(rows.hidden, views[self._normed], views[self._logits], chosen, views[self._guessed])
        k = chosen.shape[1]
        ids = rows.chosen_array[layer, :, : (k + 1) // 2 if sure else k]
        self._experts.prefetch(layer, dict.fromkeys(ids.T.ravel().tolist()))  # every row's likeliest first


def _buffers(spec: MoeSpec, hidden: int) -> tuple[Buffer, ...]:
    """Logits, weights, weights of a guess at the next layer's experts, their answers; normed rows for such a guess.

    Where their sum is normed, that.
    """
    k = spec.routing.experts_per_token
    own = (Buffer("experts' answer", hidden),) if spec.answer_norm else ()
    return (
        Buffer("router_logits", spec.routing.experts),
        Buffer("weights", k),
        Buffer("guessed_weights", k),
        Buffer("slots", spec.latent or hidden, rows=k),
        Buffer("slots", hidden),
        *own,
    )


def _router_norm(spec: MoeSpec, layer: int, whole: LayerSpec, build: Build) -> Norm:
    """A router's own norm, with its scale in the weight."""
    name = f"blk.{layer}.ffn_gate_inp.scale"
    weight = build.weights.vector(name, build.hidden)
    weight.numpy()[...] *= np.float32(spec.router_scale or 1)
    return Norm(name, weight, whole.norm.eps)
