"""`colibri bench`: how fast a model runs here, beside what the machine can do."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from colibri import ops
from colibri.cli.epilog import epilog
from colibri.cli.options import FilePath, load_options
from colibri.cli.output import count, note, print_json
from colibri.cli.progress import Progress
from colibri.config import DEFAULT_CONTEXT, LoadOptions, readable
from colibri.engine.loading import open_model
from colibri.observe.bench import LIMIT_SECONDS, Bench, BenchOptions, quiet_collector
from colibri.observe.compare import Ratio, compare, read_result
from colibri.observe.limits import Meter
from colibri.observe.timeline import traced

WIDE = 1000


EPILOG = epilog(
    "profiling.md",
    "colibri bench -m model.gguf --prompt-tokens 512 --new-tokens 64",
    "colibri bench -m model.gguf --json > after.json",
    "colibri bench --compare before.json after.json",
)


@click.command("bench", epilog=EPILOG)
@load_options
@click.option("--prompt-tokens", type=click.IntRange(1), multiple=True, default=(512,), show_default=True,
              help="Length of a prompt of random ids; may be given more than once.")
@click.option("--new-tokens", type=click.IntRange(1), default=64, show_default=True, help="Tokens to decode.")
@click.option("--depth", type=click.IntRange(1), default=1, show_default=True,
              help="Tokens of context before the first that is decoded.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Runs of each measurement.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the random ids.")
@click.option("--trace", "timeline", type=FilePath(),
              help="Write when each step, layer and read took place to this file, for Perfetto or Chrome.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option("--compare", "pair", nargs=2, type=FilePath(), metavar="A.json B.json",
              help="Measure nothing; print B over A from two files of --json.")
def command(
    options: LoadOptions, prompt_tokens: tuple[int, ...], new_tokens: int, depth: int, repeat: int, seed: int,
    timeline: Path | None, as_json: bool, pair: tuple[Path, Path] | None,
) -> None:  # fmt: skip
    """Measure the machine, then prefill and decode, and say how near they come to its limits."""
    if pair is not None:
        _compare(*pair, as_json=as_json)
        return
    measured = BenchOptions(
        prompt_tokens=tuple(dict.fromkeys(prompt_tokens)), new_tokens=new_tokens, depth=depth, repeat=repeat, seed=seed
    )
    doing = ["measuring the machine"]
    with Progress(lambda: doing[-1]):
        if options.context is None and measured.context > DEFAULT_CONTEXT:
            options = replace(options, context=measured.context)
        options = replace(options, speculate="off")  # the rate of one token after another
        if options.threads is not None:
            ops.set_threads(options.threads)
        meter = Meter(options.ram)
        meter.measure(LIMIT_SECONDS)  # before a model fills the budget
        doing.append("loading")
        loaded = open_model(options)
        with loaded, traced(loaded, timeline), quiet_collector():
            report = Bench(loaded, measured, meter, doing.append).report()
    if as_json:
        print_json(report)
        return
    for said in loaded.notes:
        note(said)
    _print(_machine(report), "", _rates(report), "", _latencies(report), "", _limits(report))


def _print(*parts: str | Table) -> None:
    """Lines as long as they have to be: no figure is cut where the terminal is narrow."""
    console = Console(highlight=False, width=WIDE)
    for part in parts:
        console.print(part, soft_wrap=True)


def _machine(report: dict[str, Any]) -> str:
    machine, model = report["machine"], report["model"]
    read = readable(1e9 * machine["read_gb_s"])
    return (
        f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads: reads {read}/s, "
        f"multiplies {machine['multiply_gmac_s']:.0f} GMAC/s, hands work over in {machine['handover_us']:.2f} us\n"
        f"{model['name']}: {model['architecture']}, {count(model['parameters'])} parameters, "
        f"{model['experts_per_token']} of {model['experts']} experts a token, {model['quantization']}"
    )


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _rates(report: dict[str, Any]) -> Table:
    table = _table("tokens/s", "median", "min", "max", "of the limit")
    for run in report["prefill"]:
        rates = [f"{run['tokens_per_s'][name]:.1f}" for name in ("median", "min", "max")]
        table.add_row(f"prefill {run['tokens']}", *rates, f"{run['fraction_of_peak']:.1%}")
    for run in report["decode"]:
        rates = [f"{run['tokens_per_s'][name]:.2f}" for name in ("median", "min", "max")]
        fraction = f"{report['limits']['decode_fraction_of_bandwidth']:.1%}"
        table.add_row(f"decode {run['tokens']} after {run['depth']}", *rates, fraction)
    return table


def _latencies(report: dict[str, Any]) -> Table:
    table = _table("ms a token", "p50", "p90", "p99", "p99.9", "max")
    for run in report["decode"]:
        decoded = f"decode {run['tokens']} after {run['depth']}"
        for what, key in ((decoded, "latency_ms"), ("reading as much", "reading_ms")):
            table.add_row(what, *(f"{run[key][name]:.2f}" for name in ("p50", "p90", "p99", "p99_9", "max")))
    return table


def _limits(report: dict[str, Any]) -> str:
    limits, memory = report["limits"], report["memory"]
    return (
        f"limits: of the integer peak in prefill, of the bandwidth in decode "
        f"({readable(limits['active_bytes_per_token'])} and {count(limits['products_per_token'])} products a token)\n"
        f"Python's share of a decode step {limits['python_fraction']:.1%}, "
        f"memory {readable(memory['peak_rss_bytes'])} at most with what measuring takes, "
        f"experts {readable(memory['expert_bytes_resident'])}"
    )


def _compare(first: Path, second: Path, *, as_json: bool) -> None:
    ratios = compare(read_result(first), read_result(second))
    if as_json:
        print_json({"first": str(first), "second": str(second), "ratios": [asdict(ratio) for ratio in ratios]})
    else:
        _print(_ratio_table(ratios, first.name, second.name))


def _ratio_table(ratios: list[Ratio], first: str, second: str) -> Table:
    table = _table("", first, second, "ratio", "at least", "at most")
    for ratio in ratios:
        measured = (f"{ratio.first:.4g}", f"{ratio.second:.4g}")
        table.add_row(ratio.metric, *measured, *(f"{value:.3f}" for value in (ratio.median, ratio.low, ratio.high)))
    return table
