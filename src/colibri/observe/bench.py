"""Speed of a model on this machine, beside what the machine can do."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from colibri import ops
from colibri.config import SamplingParams
from colibri.engine.model import Model
from colibri.observe.limits import Meter, cpu_name, demand
from colibri.observe.native_time import NativeTime
from colibri.observe.percentiles import Spread, latency, spread

GREEDY = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
LIMIT_SECONDS = 1.0  # the first time; a third of it before every later measurement
WARM_UP_TOKENS = 512
Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure: prompts of these lengths, and `new_tokens` decoded after `depth` tokens, `repeat` times each."""

    prompt_tokens: tuple[int, ...] = (512,)
    new_tokens: int = 64
    depth: int = 1
    repeat: int = 3
    seed: int = 1

    @property
    def context(self) -> int:
        """Tokens of context that a model needs for it."""
        return max(*self.prompt_tokens, self.depth + self.new_tokens) + 1


@dataclass(frozen=True, slots=True)
class Decoded:
    """One run of decoding: seconds of every step, and the seconds among them that native code took, if watched.

    reading: bytes a second that the machine read just before.
    """

    steps: list[float]
    native: float | None
    reading: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return len(self.steps) / sum(self.steps)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """What was loaded stays until the end: the garbage collector need not look at it between steps."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Bench:
    """Measures one model. `say` is told what is being done, for people who wait."""

    def __init__(self, model: Model, options: BenchOptions, meter: Meter, say: Callable[[str], None]) -> None:
        self._model = model
        self._options = options
        self._meter = meter
        self._say = say
        self._random = np.random.default_rng(options.seed)

    def report(self) -> dict[str, Any]:
        """The object of --json. Prompts are random ids, so that no tokenizer is needed and experts are used evenly."""
        options = self._options
        self._say("warming up")
        self._prefill(min(WARM_UP_TOKENS, self._model.context - 1))
        prefill = {
            tokens: spread(self._repeat(f"prefill of {tokens} tokens", partial(self._prefill, tokens)))
            for tokens in options.prompt_tokens
        }
        decoded = self._repeat(f"decode of {options.new_tokens} tokens", self._decode)
        self._say("decode, watched")
        watched = self._decode(watch=True)
        return self._as_dict(prefill, decoded, watched)

    def _repeat(self, what: str, measure: Callable[[], Measured]) -> list[Measured]:
        results = []
        for number in range(self._options.repeat):
            self._say(f"{what}, {number + 1} of {self._options.repeat}")
            self._meter.measure(LIMIT_SECONDS / 3)
            results.append(measure())
        return results

    def _ids(self, count: int) -> list[int]:
        return [int(token) for token in self._random.integers(0, self._model.spec.vocab_size, count)]

    def _prefill(self, tokens: int) -> float:
        """Tokens a second of a prompt, until the first token after it is chosen."""
        ids = self._ids(tokens)
        start = time.perf_counter()
        with self._model.generate(ids, GREEDY) as generation:
            while generation.finish_reason is None:
                self._model.engine.step()
        return tokens / (time.perf_counter() - start)

    def _decode(self, watch: bool = False) -> Decoded:
        """Decode with the default sampling after a random prompt; the prompt's own steps do not count."""
        params = SamplingParams(max_tokens=self._options.new_tokens + 1, seed=self._options.seed, ignore_eos=True)
        step = self._model.engine.step
        steps = []
        with self._model.generate(self._ids(self._options.depth), params) as generation:
            while not generation.token_ids:
                step()
            with NativeTime() if watch else nullcontext() as timer:
                while generation.finish_reason is None:
                    start = time.perf_counter()
                    step()
                    steps.append(time.perf_counter() - start)
        return Decoded(steps, None if timer is None else timer.seconds, self._meter.latest_read)

    def _as_dict(self, prefill: dict[int, Spread], decoded: Sequence[Decoded], watched: Decoded) -> dict[str, Any]:
        options, model, meter = self._options, self._model, self._meter
        need = demand(model.checkpoint, model.spec)
        context = options.depth + options.new_tokens / 2  # tokens before one that is decoded, on the average
        cache = model.engine.cache
        states = 0 if cache.states is None else 2 * cache.states.slot_bytes  # read and written
        active = need.weight_bytes + cache.token_bytes * context + states
        rate = spread([run.rate for run in decoded])
        fractions = {
            tokens: rates.median * need.prompt_products(tokens) / tokens / meter.multiply.median
            for tokens, rates in prefill.items()
        }
        return {
            "model": model.describe(),
            "machine": machine(meter),
            "prefill": [
                {"tokens": tokens, "tokens_per_s": rates.as_dict(), "fraction_of_peak": fractions[tokens]}
                for tokens, rates in prefill.items()
            ],
            "decode": [{
                "tokens": options.new_tokens,
                "depth": options.depth,
                "tokens_per_s": rate.as_dict(),
                "latency_ms": latency([1000 * step for run in decoded for step in run.steps]).as_dict(),
                "reading_ms": meter.reading_ms(active).as_dict(),
            }],
            "limits": {
                "active_bytes_per_token": round(active),
                "products_per_token": round(need.products + need.output_products),
                "decode_fraction_of_bandwidth": spread([run.rate * active / run.reading for run in decoded]).median,
                "prefill_fraction_of_peak": fractions[max(fractions)],
                "python_fraction": 1 - (watched.native or 0.0) / sum(watched.steps),
            },
            "memory": model.memory(),
            "routing": model.routing_summary(),
        }  # fmt: skip


def machine(meter: Meter) -> dict[str, Any]:
    """The `machine` object: the processor, and its limits as the medians of all passes."""
    return {
        "cpu": cpu_name(),
        "isa": ops.isa(),
        "threads": ops.threads(),
        "read_gb_s": meter.read.median / 1e9,
        "read_gb_s_spread": meter.read.scaled(1e-9).as_dict(),
        "multiply_gmac_s": meter.multiply.median / 1e9,
        "multiply_gmac_s_spread": meter.multiply.scaled(1e-9).as_dict(),
        "handover_us": meter.handover.median * 1e6,
        "handover_us_spread": meter.handover.scaled(1e6).as_dict(),
    }
