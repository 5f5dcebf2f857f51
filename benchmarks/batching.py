"""Tokens a second of a batch beside a batch of one: python benchmarks/batching.py [-m MODEL] [--batches 1,2,4,8]

Sequences of one engine decode together after different prompts, in alternating rounds. Two rates are printed: that of
the median step, and that of the fastest tenth, which other processes disturb less. Beside them: how many experts of a
layer a step reads, and the most that a batch can gain where all the time goes into reading weights.
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


def decode(model: Model, batch: int, steps: int, seed: int) -> tuple[list[float], float]:
    """Seconds of each of `steps` steps that decode `batch` sequences together, and the experts of a layer in a step."""
    rng = np.random.default_rng(seed)
    params = SamplingParams(max_tokens=steps + 2, temperature=0, ignore_eos=True)
    prompts = [rng.integers(0, model.spec.vocab_size, PROMPT).tolist() for _ in range(batch)]
    running = [model.sequence(prompt, params) for prompt in prompts]
    for sequence in running:
        model.engine.add(sequence)
    while any(not sequence.sampled for sequence in running):
        model.engine.step()
    seconds, before = [], model.experts.counters.hits
    for _ in range(steps):
        start = time.perf_counter()
        model.engine.step()
        seconds.append(time.perf_counter() - start)
    for sequence in running:
        model.engine.cancel(sequence)
    read = model.experts.counters.hits - before
    return seconds, read / steps / len(model.experts.store.moe_layers())


def most(model: Model, experts: dict[int, float]) -> dict[int, float]:
    """Bytes of weights that one reads alone times the batch, over those that the batch reads."""
    store, tensors = model.experts.store, model.checkpoint.tensors
    each = sum(store.expert(layer, 0).nbytes for layer in store.moe_layers())
    dense = model.plan.needs.dense
    if "output.weight" in tensors:  # otherwise the embedding is the output, too
        dense -= tensors["token_embd.weight"].nbytes
    sizes = {batch: dense + each * count for batch, count in experts.items()}
    alone = sizes[min(sizes)]
    return {batch: batch * alone / size for batch, size in sizes.items()}


def _rounded(values: dict[int, float]) -> dict[int, float]:
    return {batch: round(value, 2) for batch, value in values.items()}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    batches = [int(part) for part in options.batches.split(",")]
    seconds: dict[int, list[float]] = {batch: [] for batch in batches}
    experts: dict[int, float] = {}
    with colibri.load(options.model, context=512, sequences=max(batches)) as model:
        decode(model, max(batches), 4, 0)
        for number in range(options.rounds):
            for batch in batches:
                taken, experts[batch] = decode(model, batch, options.steps, number)
                seconds[batch] += taken
        medians = {batch: batch / statistics.median(values) for batch, values in seconds.items()}
        fastest = {batch: batch / statistics.quantiles(values, n=10)[0] for batch, values in seconds.items()}
        print(
            json.dumps(
                {
                    "model": model.describe(),
                    "tokens_per_s": _rounded(medians),
                    "experts_of_a_layer": _rounded(experts),
                    "most_times_one": _rounded(most(model, experts)),
                    "times_one": _rounded({batch: value / medians[batches[0]] for batch, value in medians.items()}),
                    "fastest_tokens_per_s": _rounded(fastest),
                    "fastest_times_one": _rounded(
                        {batch: value / fastest[batches[0]] for batch, value in fastest.items()}
                    ),
                }
            )
        )


if __name__ == "__main__":
    main()
