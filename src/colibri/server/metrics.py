"""Prometheus metrics of the service."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from colibri.server.protocol import Stats

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """Counters since the web server started; those of the engine process go on over its restarts."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "colibri_requests", "Requests answered, by path and status.", ["path", "status"], registry=registry
        )
        self.cancelled = Counter("colibri_requests_cancelled", "Requests whose client left.", registry=registry)
        self.refused = Counter("colibri_requests_refused", "Requests refused: the queue was full.", registry=registry)
        self.first_token = Histogram(
            "colibri_time_to_first_token_seconds", "From a request to its first token.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.between_tokens = Histogram(
            "colibri_time_between_tokens_seconds", "Between tokens of one sequence.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._gauges = {
            name: Gauge(f"colibri_{name}", text, registry=registry)
            for name, text in (
                ("sequences_running", "Sequences in the batch."),
                ("sequences_waiting", "Sequences in the queue."),
                ("tokens_per_second", "Tokens generated in the last second of work."),
                ("expert_hit_ratio", "Share of expert uses that found the expert in memory."),
                ("engine_memory_bytes", "Resident memory of the engine process."),
                ("memory_budget_bytes", "What the engine process may take."),
                ("expert_bytes_resident", "Experts in memory."),
                ("cache_blocks", "Blocks of the key-value cache."),
                ("cache_blocks_free", "Blocks that no sequence holds."),
                ("longest_step_seconds", "The longest step since the last report of the engine."),
                ("engine_up", "Whether the engine runs."),
            )
        }
        self._counters = {
            name: Counter(f"colibri_{name}", text, registry=registry)
            for name, text in (
                ("preemptions", "Times that a sequence lost its place in the cache to an older one."),
                ("steps", "Steps of the engine."),
                ("step_seconds", "Seconds spent in steps."),
                ("prompt_tokens", "Tokens of prompts."),
                ("cached_prompt_tokens", "Tokens of prompts that were found in the cache."),
                ("generated_tokens", "Tokens generated."),
                ("guessed_tokens", "Tokens that were guessed and verified together."),
                ("accepted_guesses", "Guessed tokens that were right."),
                ("expert_hits", "Expert uses that found the expert in memory."),
                ("expert_misses", "Expert uses that had to read it."),
                ("expert_bytes_read", "Bytes of experts read from files."),
                ("engine_restarts", "Times that the engine was started again."),
            )
        }
        self._last: dict[str, float] = {}

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[name].set(value)

    def restarted(self) -> None:
        """The engine's totals begin at zero again."""
        self._last.clear()
        self._counters["engine_restarts"].inc()

    def take(self, stats: Stats, rate: float) -> None:
        """Take up a report of the engine; `rate` is tokens a second."""
        used = stats.routing["hits"] + stats.routing["misses"]
        for name, value in {
            "sequences_running": stats.running, "sequences_waiting": stats.waiting, "tokens_per_second": rate,
            "expert_hit_ratio": stats.routing["hits"] / used if used else 1.0,
            "engine_memory_bytes": stats.memory["rss_bytes"], "memory_budget_bytes": stats.memory["budget_bytes"],
            "expert_bytes_resident": stats.memory["expert_bytes_resident"], "cache_blocks": stats.cache_blocks,
            "cache_blocks_free": stats.cache_free, "longest_step_seconds": stats.longest_step_s,
        }.items():  # fmt: skip
            self.gauge(name, value)
        for name, total in {
            "preemptions": stats.preemptions, "steps": stats.steps, "step_seconds": stats.step_s,
            "prompt_tokens": stats.prompt_tokens, "cached_prompt_tokens": stats.cached_tokens,
            "generated_tokens": stats.tokens, "guessed_tokens": stats.guessed, "accepted_guesses": stats.accepted,
            "expert_hits": stats.routing["hits"],
            "expert_misses": stats.routing["misses"], "expert_bytes_read": stats.routing["bytes_read"],
        }.items():  # fmt: skip
            self._counters[name].inc(max(0.0, total - self._last.get(name, 0)))
            self._last[name] = total

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
