"""Replaying a routing trace against an expert cache: what each policy would have hit, Belady's optimum included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.experts.policy import Uses, Values
from colibri.experts.stats import NO_EXPERT, Trace, trace_type
from colibri.observe.policies import POLICIES, Policy


@dataclass(frozen=True, slots=True)
class Score:
    """Hits and misses, an access being one expert of one layer for one token; loads before `warm_up` do not count."""

    policy: str
    capacity: int
    hits: int
    misses: int

    @property
    def hit_rate(self) -> float:
        """Hits over accesses."""
        return self.hits / max(1, self.hits + self.misses)


class Belady:
    """The optimum, which knows the trace: gives up what is needed last."""

    def __init__(self, trace: Trace, experts: int) -> None:
        tokens, layers, k = trace.shape
        self._keys = _keys(trace, experts).reshape(tokens * layers, k)
        self._following = _following_uses(self._keys, layers * experts)
        self._next = np.full(layers * experts, float(tokens * layers))
        self._step = 0

    def touch(self, layer: int, keys: Sequence[int], uses: Uses | None = None, rows: int = 1) -> None:
        """A step needed these experts; they must be those of the trace, in its order."""
        step_keys = self._keys[self._step]
        valid = step_keys >= 0
        self._next[step_keys[valid]] = self._following[self._step][valid]
        self._step += 1

    def values(self) -> Values:
        """Minus the step of the next use."""
        return -self._next


def replay(trace: Trace, policy: Policy, capacity: int, experts: int, *, name: str = "", warm_up: int = 0) -> Score:
    """Run `trace` through a cache of `capacity` experts (at least k), empty at the start."""
    tokens, layers, k = trace.shape
    if capacity < k:
        raise ValueError(f"a cache of {capacity} experts cannot hold the {k} of one token and layer")
    keys = _keys(trace, experts)
    present = np.zeros(layers * experts, np.bool_)
    held = hits = misses = 0
    for token in range(tokens):
        for layer in range(layers):
            step = [key for key in keys[token, layer].tolist() if key >= 0]
            policy.touch(layer, step)
            missing = [key for key in step if not present[key]]
            if token >= warm_up:
                hits += len(step) - len(missing)
                misses += len(missing)
            if not missing:
                continue
            if (surplus := held + len(missing) - capacity) > 0:
                present[_victims(policy.values(), present, step, surplus)] = False
                held -= surplus
            present[missing] = True
            held += len(missing)
    return Score(name or type(policy).__name__, capacity, hits, misses)


def compare(trace: Trace, experts: int, capacities: Sequence[int], warm_up: int = 0) -> list[Score]:
    """Every policy and the optimum at every capacity."""
    _, layers, _ = trace.shape
    scores = []
    for capacity in capacities:
        contenders = {name: make(layers, experts) for name, make in POLICIES.items()}
        for name, policy in {**contenders, "belady": Belady(trace, experts)}.items():
            scores.append(replay(trace, policy, capacity, experts, name=name, warm_up=warm_up))
    return scores


def zipf_trace(
    layers: int, experts: int, k: int, tokens: int, *, skew: float, drift: float = 0.0, seed: int = 0
) -> Trace:
    """A synthetic trace (tokens, layers, k): popularity rank**-skew, 0 is uniform.

    `drift` is the chance a token and layer that two experts exchange their popularity.
    """
    rng = np.random.default_rng(seed)
    popularity = -skew * np.log(np.arange(1, experts + 1))
    order = np.argsort(rng.random((layers, experts)), axis=1)
    trace = np.empty((tokens, layers, k), trace_type(experts))
    for token in range(tokens):
        for layer in np.flatnonzero(rng.random(layers) < drift):
            one, other = rng.integers(0, experts, 2)
            order[layer, [one, other]] = order[layer, [other, one]]
        keys = popularity[order] + rng.gumbel(size=(layers, experts))  # Gumbel top-k: k draws without replacement
        trace[token] = np.argpartition(-keys, k - 1, axis=1)[:, :k]
    return trace


def _keys(trace: Trace, experts: int) -> NDArray[np.int64]:
    keys = trace.astype(np.int64) + np.arange(trace.shape[1])[None, :, None] * experts
    return np.where(trace == NO_EXPERT, NO_EXPERT, keys)


def _victims(values: Values, present: NDArray[np.bool_], step: list[int], count: int) -> NDArray[np.intp]:
    candidates = np.flatnonzero(present)
    worth = values[candidates].copy()
    worth[np.isin(candidates, step)] = np.inf
    return candidates[np.argpartition(worth, count - 1)[:count]]


def _following_uses(keys: NDArray[np.int64], total: int) -> NDArray[np.float64]:
    """For every access (steps, k), the step at which the same key is needed next; the end of the trace if never."""
    following = np.empty(keys.shape)
    coming = np.full(total + 1, float(len(keys)))  # one more place, for NO_EXPERT
    for step in range(len(keys) - 1, -1, -1):
        following[step] = coming[keys[step]]
        coming[keys[step]] = step
    return following
