"""What the page shows while it is open: rates, queue, memory, and which experts were routed to."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.server.protocol import Ready, Stats
from colibri.server.supervisor import Supervisor

RATE_S = 2.0  # the rate is that of the latest seconds
BEHIND = 8  # reports that may wait for a slow page; older ones are dropped


class Live:
    """Gives the reports of the engine to every page that is open."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._viewers: set[asyncio.Queue[str]] = set()
        self._tokens: deque[tuple[float, int]] = deque()
        self._counts: NDArray[np.int64] | None = None
        self._shape = (0, 0)
        self._first: str | None = None

    def model(self, ready: Ready, name: str) -> None:
        """What stays the same: the first message that a page gets."""
        self._shape = int(ready.model["layers"]), int(ready.model["experts"])
        facts = {"name": name, "context": ready.context, "threads": ready.threads, "isa": ready.isa}
        self._first = json.dumps({"model": {**ready.model, **facts}, "sequences": ready.sequences, "plan": ready.plan})
        for viewer in self._viewers:
            viewer.put_nowait(self._first)

    def health(self, body: dict[str, Any]) -> None:
        """The engine died, or is there again."""
        text = json.dumps({"health": body})
        for viewer in self._viewers:
            viewer.put_nowait(text)

    def tokens(self, count: int) -> None:
        """Tokens came from the engine."""
        self._tokens.append((time.monotonic(), count))

    def rate(self) -> float:
        """Tokens a second lately."""
        now = time.monotonic()
        while self._tokens and self._tokens[0][0] < now - RATE_S:
            self._tokens.popleft()
        return sum(count for _, count in self._tokens) / RATE_S

    def take(self, stats: Stats) -> None:
        """Pass a report of the engine on."""
        if not self._viewers:
            return
        message: dict[str, Any] = {
            "running": stats.running, "waiting": max(stats.waiting, len(self._supervisor.tickets) - stats.running),
            "rate": round(self.rate(), 1), "memory": stats.memory, "routing": stats.routing, "tokens": stats.tokens,
            "step_ms": round(1000 * stats.longest_step_s, 1), "cached_tokens": stats.cached_tokens,
            "cache": [stats.cache_blocks - stats.cache_free, stats.cache_blocks],
        }  # fmt: skip
        if stats.counts is not None:
            message["experts"] = self._news(np.frombuffer(stats.counts, np.int64).reshape(self._shape))
        text = json.dumps(message)
        for viewer in self._viewers:
            if viewer.qsize() < BEHIND:
                viewer.put_nowait(text)

    def _news(self, counts: NDArray[np.int64]) -> list[list[int]]:
        """How often each expert was chosen since the last report: (layers, experts)."""
        last, self._counts = self._counts, counts
        if last is None or (counts < last).any():  # the first report, or another engine
            return [[0] * self._shape[1]] * self._shape[0]
        news: list[list[int]] = (counts - last).tolist()
        return news

    def join(self) -> asyncio.Queue[str]:
        """A page opens: a queue of JSON texts."""
        viewer: asyncio.Queue[str] = asyncio.Queue()
        if self._first is not None:
            viewer.put_nowait(self._first)
        self._viewers.add(viewer)
        self._supervisor.watch_experts(True)
        return viewer

    def leave(self, viewer: asyncio.Queue[str]) -> None:
        """A page closes."""
        self._viewers.discard(viewer)
        if not self._viewers:
            self._counts = None
            self._supervisor.watch_experts(False)
