"""Tokens a second of a batch beside a batch of one: python benchmarks/batching.py [-m MODEL] [--batches 1,2,4,8]

Sequences of one engine decode together after different prompts; each line is the median of alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import colibri
from colibri.config import SamplingParams
from colibri.engine.model import Model

PROMPT = 32


def decode(model: Model, batch: int, steps: int, seed: int) -> float:
    """Tokens a second of `steps` steps that decode `batch` sequences together."""
    rng = np.random.default_rng(seed)
    params = SamplingParams(max_tokens=steps + 2, temperature=0, ignore_eos=True)
    prompts = [rng.integers(0, model.config.vocab_size, PROMPT).tolist() for _ in range(batch)]
    running = [model.sequence(prompt, params) for prompt in prompts]
    for sequence in running:
        model.engine.add(sequence)
    while any(not sequence.sampled for sequence in running):
        model.engine.step()
    before = sum(sequence.sampled for sequence in running)
    start = time.perf_counter()
    for _ in range(steps):
        model.engine.step()
    took = time.perf_counter() - start
    made = sum(sequence.sampled for sequence in running) - before
    for sequence in running:
        model.engine.cancel(sequence)
    return made / took


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    batches = [int(part) for part in options.batches.split(",")]
    rates: dict[int, list[float]] = {batch: [] for batch in batches}
    with colibri.load(options.model, context=512, sequences=max(batches)) as model:
        decode(model, max(batches), 4, 0)
        for number in range(options.rounds):
            for batch in batches:
                rates[batch].append(decode(model, batch, options.steps, number))
        medians = {batch: statistics.median(values) for batch, values in rates.items()}
        print(
            json.dumps(
                {
                    "model": model.describe(),
                    "tokens_per_s": {batch: round(value, 1) for batch, value in medians.items()},
                    "times_one": {batch: round(value / medians[batches[0]], 2) for batch, value in medians.items()},
                }
            )
        )


if __name__ == "__main__":
    main()
