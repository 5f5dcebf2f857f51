"""Two results of `colibri bench` side by side, as ratios."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri.errors import FileError, FormatError

MACHINE = {"memory read GB/s": "read_gb_s", "multiply GMAC/s": "multiply_gmac_s", "handover us": "handover_us"}


@dataclass(frozen=True, slots=True)
class Ratio:
    """The second result over the first. low and high: the worst and the best that the repeats allow."""

    metric: str
    first: float
    second: float
    median: float
    low: float
    high: float


def read_result(path: Path) -> dict[str, Any]:
    """What `colibri bench --json` wrote. Raises FileError and FormatError."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise FormatError(f"{path}: found no JSON ({error}); give a file that `colibri bench --json` wrote") from None
    missing = {"machine", "prefill", "decode", "limits"} - set(result if isinstance(result, dict) else ())
    if missing:
        raise FormatError(f"{path}: has no {', '.join(sorted(missing))}; give a file that `colibri bench --json` wrote")
    return dict(result)


def compare(first: dict[str, Any], second: dict[str, Any]) -> list[Ratio]:
    """Ratios of all that both measured in the same way. Raises FormatError when a figure has not the right form."""
    try:
        before, after = dict(_spreads(first)), dict(_spreads(second))
        return [_ratio(name, before[name], after[name]) for name in before if name in after]
    except (KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
        raise FormatError(f"a result is not of the form that `colibri bench --json` writes: {error!r}") from None


def _spreads(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Every figure by name; one that was measured once has no min and max."""
    for run in result["prefill"]:
        yield f"prefill {run['tokens']} tokens/s", run["tokens_per_s"]
    for run in result["decode"]:
        what = f"decode {run['tokens']} after {run.get('depth', 0)}"
        yield f"{what} tokens/s", run["tokens_per_s"]
        for name, value in run["latency_ms"].items():
            yield f"{what} {name.replace('_', '.')} ms", {"median": value}
    machine = result["machine"]
    for name, key in MACHINE.items():
        if key in machine:
            yield name, machine.get(f"{key}_spread") or {"median": machine[key]}
    for name in ("decode_fraction_of_bandwidth", "prefill_fraction_of_peak", "python_fraction"):
        if name in result["limits"]:
            yield name.replace("_", " "), {"median": result["limits"][name]}
    if peak := result.get("memory", {}).get("peak_rss_bytes"):
        yield "peak memory bytes", {"median": peak}


def _ratio(metric: str, first: dict[str, float], second: dict[str, float]) -> Ratio:
    before, after = first["median"], second["median"]
    low = second.get("min", after) / first.get("max", before)
    high = second.get("max", after) / first.get("min", before)
    return Ratio(metric, before, after, after / before, low, high)
