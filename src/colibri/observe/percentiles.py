"""How measurements that vary are summed up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the ends of repeated measurements."""

    median: float
    min: float
    max: float

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)

    def scaled(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * factor, self.min * factor, self.max * factor)


@dataclass(frozen=True, slots=True)
class Latency:
    """What a share of the steps stayed under, in milliseconds: p99_9 is the time that 1 in 1000 exceeds."""

    p50: float
    p90: float
    p99: float
    p99_9: float
    max: float

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that at least `percent` of them do not exceed (nearest rank); none is made up."""
    ordered = sorted(values)
    rank = math.ceil(round(percent / 100 * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


def latency(milliseconds: Sequence[float]) -> Latency:
    """Percentiles of at least one step."""
    p50, p90, p99, p99_9 = (percentile(milliseconds, percent) for percent in (50, 90, 99, 99.9))
    return Latency(p50, p90, p99, p99_9, max(milliseconds))
