"""Hit rates of the cache policies: on synthetic traces in OLMoE's shape and, with --model, on a model's own routing.

    python benchmarks/expert_policies.py --model src/colibri/demo/colibri-demo.gguf --text held-out/*.txt

Prints a Markdown table: slots as a part of all experts, then the hit rate of every policy and of the optimum.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import colibri
from colibri.observe.policies import POLICIES
from colibri.observe.replay import compare, zipf_trace

LAYERS, EXPERTS, CHOSEN, TOKENS = 16, 64, 8, 600  # OLMoE's shape
SYNTHETIC = {
    "even": (0.0, 0.0),
    "Zipf 0.7, slow drift": (0.7, 0.02),
    "Zipf 1.0": (1.0, 0.0),
    "Zipf 1.0, fast drift": (1.0, 0.05),
}
SHARES = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.75)


def recorded(path: Path, texts: list[Path], tokens: int) -> tuple[NDArray[np.int16], int]:
    """The routing of the first `tokens` tokens of each text, one after the other, and the number of experts."""
    with colibri.load(path, context=tokens) as model:
        traces = []
        for text in texts:
            model.routing.reset()
            model.infer(model.tokenizer.encode(text.read_text(errors="replace")[: 12 * tokens])[:tokens])
            traces.append(model.routing.trace())
        return np.concatenate(traces), model.spec.experts


def table(name: str, trace: NDArray[np.int16], experts: int) -> None:
    """One block of rows."""
    _, layers, k = trace.shape
    capacities = [max(k, round(share * layers * experts)) for share in SHARES]
    scores = compare(trace, experts, capacities, warm_up=len(trace) // 4)
    for capacity in capacities:
        rates = {score.policy: score.hit_rate for score in scores if score.capacity == capacity}
        best = max(rate for policy, rate in rates.items() if policy != "belady")
        cells = [f"**{100 * rate:.1f}**" if rate == best else f"{100 * rate:.1f}" for rate in rates.values()]
        print(f"| {name} | {100 * capacity / layers / experts:.0f}% | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    parser.add_argument("--tokens", type=int, default=400)
    options = parser.parse_args()
    names = [*POLICIES, "belady"]
    print(f"| trace | slots | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for name, (skew, drift) in SYNTHETIC.items():
        table(name, zipf_trace(LAYERS, EXPERTS, CHOSEN, TOKENS, skew=skew, drift=drift), EXPERTS)
    if options.model is not None:
        trace, experts = recorded(options.model, options.text, options.tokens)
        table(options.model.stem, trace, experts)


if __name__ == "__main__":
    main()
