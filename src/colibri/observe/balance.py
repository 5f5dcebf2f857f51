"""Tells a narrow text from a narrow router by a baseline, a kept trace of many texts.

Nothing is changed by it: a router that sends most tokens to few experts is what the model is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from colibri.experts.stats import Trace
from colibri.observe.routing import LayerBalance, balance, counts_of

EXPECTED: int = 20  # choices at an even load, below which an expert that was never chosen says nothing
NARROW = 0.6  # of the baseline's even experts, below which a text is narrow in a layer
COLLAPSED = 1.5  # times k: a router that uses no more even experts sends every token to the same ones


class Finding(NamedTuple):
    """What is unusual in one layer, and whether the text or the router is the cause."""

    layer: int
    cause: Literal["text", "router"]
    what: str


def findings(trace: Trace, baseline: Trace, experts: int) -> list[Finding]:
    """Layers whose router is collapsed or has dead experts by the baseline, and those in which the text is narrow."""
    usual = {layer.layer: layer for layer in balance(baseline, experts)}
    counts, k = counts_of(baseline, experts), trace.shape[2]
    expected = len(baseline) * k / experts
    found: list[Finding] = []
    for layer in balance(trace, experts):
        known = usual.get(layer.layer)
        if known is not None:
            dead = np.flatnonzero(counts[layer.layer] == 0).tolist() if expected >= EXPECTED else []
            found += _of_layer(layer, known, dead, k, len(baseline))
    return found


def _of_layer(layer: LayerBalance, known: LayerBalance, dead: list[int], k: int, tokens: int) -> Iterable[Finding]:
    if known.effective < COLLAPSED * k:
        what = f"collapsed: the baseline, too, uses as many as {known.effective:.1f} even experts"
        yield Finding(layer.layer, "router", what)
    if dead:
        named = ", ".join(map(str, dead[:8])) + (f" and {len(dead) - 8} more" if len(dead) > 8 else "")
        yield Finding(layer.layer, "router", f"dead: {named} in {tokens} tokens of the baseline")
    if layer.effective < NARROW * known.effective:
        what = f"narrow: as many as {layer.effective:.1f} even experts, {known.effective:.1f} in the baseline"
        yield Finding(layer.layer, "text", what)


def verdict(found: list[Finding], trace: Trace, experts: int) -> list[str]:
    """What it comes to, and what it means for a cache of experts."""
    counts = counts_of(trace, experts)
    routed = int(counts.any(axis=1).sum())
    lines = []
    for cause, words in (("router", "the router itself is uneven"), ("text", "the text is narrow")):
        layers = {finding.layer for finding in found if finding.cause == cause}
        if layers:
            lines.append(f"{words} in {len(layers)} of {routed} layers")
    if not found:
        lines.append("the text uses the experts as the baseline does")
    used = int(np.count_nonzero(counts))
    busy = np.sort(counts[counts > 0])[::-1]
    most = int(np.searchsorted(np.cumsum(busy), 0.9 * busy.sum())) + 1
    lines.append(
        f"it chooses {used} of {routed * experts} experts; the busiest {most} get 90% of its choices: what a cache "
        "has to hold"
    )
    return lines
