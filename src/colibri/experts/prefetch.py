"""Reading ahead what the next layer will probably need: how much may be risked, and whether it pays at all."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from colibri.experts.stats import ResidencyCounters

MOST_OUTSTANDING = 4  # reads ahead that are queued or under way
LEAST_SLOTS = 16 * MOST_OUTSTANDING  # of a layout, so that those under way are a small part
WASTE_SHARE = 0.1  # experts read ahead in vain, of those read on demand
WASTE_START = 8  # in vain before the share counts, so that it can begin at all
TRIAL_STEPS = 8  # steps of one period of a trial, ...
TRIAL_PERIODS = 12  # ... which alternates so many times between reading ahead and not
KEPT_STEPS = 512  # steps for which a trial's result holds


class Ahead:
    """What becomes of the experts read ahead. `keys` are those not needed yet; whoever gives one up removes it.

    Guarded by the residency's lock.
    """

    def __init__(self, keys: set[int], counters: ResidencyCounters) -> None:
        self._keys = keys
        self._counters = counters
        self._outstanding = 0

    def may_begin(self) -> bool:
        """Whether one more expert may be read ahead."""
        counters = self._counters
        wasted = counters.prefetched - counters.prefetch_used
        return self._outstanding < MOST_OUTSTANDING and wasted < WASTE_START + WASTE_SHARE * counters.misses

    def begin(self, key: int) -> None:
        """An expert is being read ahead."""
        self._keys.add(key)
        self._counters.prefetched += 1
        self._outstanding += 1

    def ended(self) -> None:
        """The read of one came to its end, well or badly."""
        self._outstanding -= 1

    def needed(self, keys: Iterable[int]) -> None:
        """A step needs these experts."""
        if self._keys:
            hit = self._keys.intersection(keys)
            self._counters.prefetch_used += len(hit)
            self._keys -= hit


class Trial:
    """Times steps with and without reading ahead, in turn, and keeps what was faster for a while."""

    def __init__(self) -> None:
        self._times: dict[bool, list[float]] = {True: [], False: []}
        self._winner: bool | None = None
        self._left = TRIAL_STEPS * TRIAL_PERIODS

    @property
    def reading_ahead(self) -> bool:
        """Whether the next step should read ahead."""
        if self._winner is not None:
            return self._winner
        return self._left // TRIAL_STEPS % 2 == 0

    def step(self, seconds: float) -> None:
        """A step took so long."""
        if self._winner is None:
            self._times[self.reading_ahead].append(seconds)
        self._left -= 1
        if self._left > 0:
            return
        if self._winner is None:
            with_it, without = (statistics.median(self._times[ahead]) for ahead in (True, False))
            self._winner = with_it < without
            self._left = KEPT_STEPS
        else:
            self._times = {True: [], False: []}
            self._winner = None
            self._left = TRIAL_STEPS * TRIAL_PERIODS
