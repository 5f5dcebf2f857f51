"""All buffers of a step, allocated once: a step takes views of their first rows and allocates nothing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.config import ModelConfig
from colibri.experts.stats import NO_EXPERT

LOGIT_ROWS = 16  # rows of logits that are there at once; prompts ask for few, `infer` goes through its rows in parts
KEPT_VIEWS = 64


@dataclass(slots=True, frozen=True)
class Rows:
    """Views of every buffer for a step of n rows (tokens)."""

    count: int
    ids: ops.Tensor  # (n,) I32
    hidden: ops.Tensor  # (n, hidden) the residual stream
    normed: ops.Tensor  # (n, hidden)
    q: ops.Tensor  # (n, heads * head_dim)
    k: ops.Tensor  # (n, kv_heads * head_dim)
    v: ops.Tensor
    attended: ops.Tensor  # (n, heads * head_dim)
    router_logits: ops.Tensor  # (n, experts)
    chosen: tuple[ops.Tensor, ...]  # of each layer (n, experts_per_token) I32
    chosen_array: NDArray[np.int32]  # (layers, n, experts_per_token) the same memory, NO_EXPERT in dense layers
    weights: ops.Tensor  # (n, experts_per_token)
    guessed_weights: ops.Tensor  # (n, experts_per_token) of a guess at the next layer's experts
    slots: ops.Tensor  # (n * experts_per_token, hidden)
    first: ops.Tensor  # (n, 1) I32, zeros: the only "expert" of a dense layer
    ones: ops.Tensor  # (n, 1)
    dense_slots: ops.Tensor  # (n, hidden)
    shares: ops.Tensor  # (n, 2) of the routed experts and a shared one, largest first
    shares_logits: ops.Tensor  # (n, 2)
    shares_order: ops.Tensor  # (n, 2) I32
    shared_weight: ops.Tensor  # (n, 1)


class Workspace:
    """Buffers for steps of up to `capacity` rows."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        self.capacity = capacity
        self._config = config
        experts_per_token = config.experts_per_token
        shapes: dict[str, tuple[str, int]] = {
            "hidden": ("F32", config.hidden_size),
            "normed": ("F32", config.hidden_size),
            "q": ("F32", config.query_width),
            "k": ("F32", config.kv_width),
            "v": ("F32", config.kv_width),
            "attended": ("F32", config.query_width),
            "router_logits": ("F32", config.experts),
            "weights": ("F32", experts_per_token),
            "guessed_weights": ("F32", experts_per_token),
            "slots": ("F32", experts_per_token * config.hidden_size),
            "first": ("I32", 1),
            "ones": ("F32", 1),
            "shares": ("F32", 2),
            "shares_logits": ("F32", 2),
            "shares_order": ("I32", 2),
            "shared_weight": ("F32", 1),
        }
        sizes = {name: -(-capacity * width * 4 // 4096) * 4096 for name, (_, width) in shapes.items()}
        logit_bytes = LOGIT_ROWS * config.vocab_size * 4
        self._memory = ops.Memory(sum(sizes.values()) + logit_bytes)
        self.nbytes = self._memory.nbytes
        self._buffers: dict[str, ops.Tensor] = {}
        offset = 0
        for name, (kind, width) in shapes.items():
            self._buffers[name] = ops.tensor(kind, (capacity, width), self._memory, offset)
            offset += sizes[name]
        self.logits = ops.tensor("F32", (LOGIT_ROWS, config.vocab_size), self._memory, offset)
        self.logits_array: NDArray[np.float32] = self.logits.numpy()
        self._ids = ops.tensor("I32", (capacity,))
        self.ids_array: NDArray[np.int32] = self._ids.numpy()
        self._buffers["ones"].numpy()[:] = 1
        self._chosen = ops.tensor("I32", (config.layers * capacity, experts_per_token))
        self._chosen_array = self._chosen.numpy().reshape(config.layers, capacity, experts_per_token)
        self._chosen_array[:] = NO_EXPERT
        self.nbytes += self._chosen.nbytes
        self._views: OrderedDict[int, Rows] = OrderedDict()

    def rows(self, count: int) -> Rows:
        """Views of the first `count` rows of every buffer."""
        views = self._views.get(count)
        if views is None:
            views = self._views[count] = self._make(count)
            if len(self._views) > KEPT_VIEWS:
                self._views.popitem(last=False)
        return views

    def _make(self, count: int) -> Rows:
        config = self._config
        first = {name: buffer.rows(0, count) for name, buffer in self._buffers.items()}
        slots = first.pop("slots").reshape(count * config.experts_per_token, config.hidden_size)
        return Rows(
            count=count,
            ids=self._ids.rows(0, count),
            chosen=tuple(
                self._chosen.rows(first_row, first_row + count)
                for first_row in range(0, config.layers * self.capacity, self.capacity)
            ),
            chosen_array=self._chosen_array[:, :count],
            slots=slots,
            dense_slots=slots.rows(0, count),
            **first,
        )
