"""`colibri plan`: how memory is divided and how fast the model will be, before it is loaded."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from colibri import ops
from colibri.cli.epilog import epilog
from colibri.cli.options import load_options
from colibri.cli.output import note, print_json
from colibri.config import LoadOptions, readable
from colibri.engine.loading import plan_model
from colibri.experts.plan import Plan
from colibri.observe.forecast import Forecast, forecast, measure_reading
from colibri.observe.limits import Meter, demand

HIT_RATES = (0.5, 0.75, 0.9)
MEASURE_SECONDS = 1.0


EPILOG = epilog(
    "experts.md",
    "colibri plan -m model.gguf --ram 8G",
    "colibri plan -m model.gguf --context 16384 --kv-type q8_0",
)


@click.command("plan", epilog=EPILOG)
@load_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def command(options: LoadOptions, as_json: bool) -> None:
    """Show what will be in memory and the expected speed, from this machine's measured memory and disk rates."""
    if options.threads is not None:
        ops.set_threads(options.threads)
    made = plan_model(options)
    plan = made.plan
    meter = Meter()
    meter.measure(MEASURE_SECONDS)
    even = plan.most_expert_bytes / plan.all_expert_bytes
    misses = max(1, round((1.0 - even) * made.spec.experts_per_token))  # of each layer
    reading = measure_reading(made.store, misses, MEASURE_SECONDS)
    weight_bytes = demand(made.checkpoint, made.spec).weight_bytes
    rates = (1.0,) if plan.fits else sorted({even, *HIT_RATES})
    rows = [forecast(plan, weight_bytes, meter.read.median, reading, rate) for rate in rates]
    if as_json:
        print_json(_fields(plan, rows, even, meter.read.median, reading))
        return
    console = Console(highlight=False)
    console.print(_memory(plan))
    console.print(
        f"\nthis machine reads {readable(meter.read.median)}/s from memory; "
        f"experts come in at {readable(reading)}/s"
    )
    console.print(_speeds(rows, None if plan.fits else even))
    for said in plan.notes:
        note(said)


def _parts(plan: Plan) -> dict[str, int]:
    needs = plan.needs
    return {
        "dense weights": needs.dense,
        "key-value cache": needs.cache,
        **({"states": needs.states} if needs.states else {}),
        "buffers": needs.workspace + needs.staging,
        "process": needs.process,
        "experts": plan.most_expert_bytes,
    }


def _memory(plan: Plan) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_row("budget", readable(plan.budget), f"at least {readable(plan.floor)} are needed")
    for name, nbytes in _parts(plan).items():
        table.add_row(name, readable(nbytes))
    slots = sum(plan.limits.values())
    if not plan.fits:
        most = sum(plan.limits_beside(0).values())
        part = plan.most_expert_bytes / plan.all_expert_bytes
        table.add_row("", f"{most} slots", f"{part:.0%} of {readable(plan.all_expert_bytes)} while the cache is empty")
    share = "all experts" if plan.fits else f"{plan.resident_share:.0%} when it is full"
    table.add_row("", f"{slots} slots", share)
    return table


def _speeds(rows: list[Forecast], even: float | None) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("hit rate", "from disk a token", "tokens/s", "limited by"):
        table.add_column(heading)
    for row in rows:
        name = f"{row.hit_rate:.0%}" + (" (even routing)" if row.hit_rate == even else "")
        table.add_row(name, readable(int(row.disk_bytes)), f"{row.tokens_per_s:.1f}", row.limit)
    return table


def _fields(plan: Plan, rows: list[Forecast], even: float, memory_rate: float, reading_rate: float) -> dict[str, Any]:
    return {
        "budget_bytes": plan.budget,
        "floor_bytes": plan.floor,
        "fits": plan.fits,
        "parts": {name.replace(" ", "_").replace("-", "_"): nbytes for name, nbytes in _parts(plan).items()},
        "slots": sum(plan.limits.values()),
        "all_expert_bytes": plan.all_expert_bytes,
        "token_expert_bytes": plan.token_bytes,
        "read_gb_s": memory_rate / 1e9,
        "disk_gb_s": reading_rate / 1e9,
        "expected": [
            {
                "hit_rate": row.hit_rate,
                "even_routing": row.hit_rate == even,
                "disk_bytes": row.disk_bytes,
                "tokens_per_s": row.tokens_per_s,
                "limit": row.limit,
            }
            for row in rows
        ],
        "notes": list(plan.notes),
    }
