"""`colibri route`: which experts a text goes to, and what a cache of them would hit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from colibri.cli.epilog import epilog
from colibri.cli.options import FilePath, load_options
from colibri.cli.output import print_json
from colibri.cli.standard_input import read_text
from colibri.config import LoadOptions
from colibri.conversion.output import check_output
from colibri.engine.loading import open_model
from colibri.engine.model import Model
from colibri.errors import ArgumentError, FileError
from colibri.experts.stats import NO_EXPERT, Trace, entropy, frequent_pairs, trace_type
from colibri.observe.balance import findings, verdict
from colibri.observe.plots import check_picture, picture
from colibri.observe.replay import Score, compare
from colibri.observe.routing import balance, counts_of, load_map, overlap
from colibri.weights.file_reader import open_regular

SHARES = (0.125, 0.25, 0.375, 0.5, 0.75)
PAIRS = 1
_LEGEND = (
    "even: as how many equally busy experts it is; Jain: 1 is even; token, layer: which part of its experts the next "
    "token or layer has or is right to be expected to have (by the load alone)"
)


EPILOG = epilog(
    "experts.md",
    'colibri route -m model.gguf --prompt "Once upon a time"',
    "colibri route -m model.gguf --prompt - --replay < text.txt",
)


@click.command("route", epilog=EPILOG)
@load_options
@click.option("--prompt", help="A text, or - for standard input.")
@click.option("--save", type=FilePath(), help="Keep the trace in this file (.npy).")
@click.option("--trace", "file", type=FilePath(), help="Use a kept trace instead of a prompt.")
@click.option("--compare", "other", type=FilePath(), help="Say how much of the load is as in this kept trace.")
@click.option("--plot", type=FilePath(),
              help="Draw the load of each expert, and hits with --replay: .png, .svg or .pdf.")  # fmt: skip
@click.option("--map", "as_map", is_flag=True, help="Draw it in the terminal as well.")
@click.option("--replay", is_flag=True, help="Score every cache policy and the optimum on the trace.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def command(
    options: LoadOptions, prompt: str | None, save: Path | None, file: Path | None, other: Path | None,
    plot: Path | None, as_map: bool, replay: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show where the router sends each token of a prompt."""
    if prompt is None and file is None:
        raise ArgumentError("route: give a --prompt or a --trace")
    if prompt is not None and file is not None:
        raise ArgumentError("route: --prompt and --trace contradict each other; give one of them")
    if plot is not None:
        check_picture(plot)
    with open_model(options) as loaded:
        experts = loaded.spec.experts
        name = loaded.spec.name
        if plot is not None:
            check_output(loaded.checkpoint, plot, replace=True)
        if save is not None:
            check_output(loaded.checkpoint, save, replace=True)
        compared = None if other is None else _kept(other, loaded)
        trace = _kept(file, loaded) if file is not None else _recorded(loaded, prompt or "")
    if save is not None:
        _save(save, trace)
    layers = trace.shape[1]
    capacities = sorted({max(trace.shape[2], round(share * layers * experts)) for share in SHARES})
    scores = compare(trace, experts, capacities) if replay else []
    common = None if compared is None else overlap(trace, compared, experts)
    if plot is not None:
        names = ("this text", "the kept one") if file is None else (file.name, "the other")
        shown = {names[0]: trace} if compared is None else dict(zip(names, (trace, compared), strict=True))
        picture(plot, shown, experts, scores, name)
    if as_json:
        print_json(_fields(trace, experts, scores, compared))
        return
    console = Console(highlight=False)
    console.print(_layers(trace, experts, common))
    if compared is not None:
        found = findings(trace, compared, experts)
        lines = [f"layer {layer}, the {cause}: {what}" for layer, cause, what in found]
        click.echo("\n" + "\n".join([*lines, "; ".join(verdict(found, trace, experts))]))
    if as_map:
        click.echo("\n" + "\n".join(load_map(counts_of(trace, experts))))
    if scores:
        console.print(_scores(scores, layers * experts))


def _recorded(model: Model, prompt: str) -> Trace:
    tokens = model.tokenizer.encode(read_text(prompt))[: model.context]
    if not tokens:
        raise ArgumentError("route: the prompt has no tokens; give at least one")
    model.routing.trace_tokens = None
    model.infer_rows(tokens, lambda position, logits: None)
    return model.routing.trace()


def _save(path: Path, trace: Trace) -> None:
    try:
        with path.open("wb") as file:  # by its name np.save would write another file where it does not end on .npy
            np.save(file, trace)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error


def _kept(path: Path, model: Model) -> Trace:
    """A trace of this model out of a file. Raises FileError when there is none, ArgumentError for another model's."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            trace: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, EOFError, MemoryError) as error:
        raise FileError(f"{path}: is no trace kept by --save: {error}") from error
    store, spec = model.experts.store, model.spec
    expected = (store.layers, spec.experts_per_token)
    kind = trace_type(spec.experts)
    if trace.ndim != 3 or trace.dtype != kind or trace.shape[1:] != expected:
        raise ArgumentError(
            f"{path}: found {trace.dtype} of shape {trace.shape}, expected {kind} of shape (tokens, {expected[0]}, "
            f"{expected[1]}); give a trace that --save kept of this model"
        )
    if not len(trace):
        raise ArgumentError(f"{path}: found 0 tokens, expected at least 1; keep another trace with --prompt and --save")
    for layer in range(store.layers):
        least, most = (0, spec.experts - 1) if store.has(layer) else (NO_EXPERT, NO_EXPERT)
        wrong = trace[:, layer][(trace[:, layer] < least) | (trace[:, layer] > most)]
        if wrong.size:
            raise ArgumentError(
                f"{path}: layer {layer}: found expert {wrong[0]}, expected {least}"
                + (f"..{most}" if most > least else " (a layer without experts)")
                + "; give a trace that --save kept of this model"
            )
    return trace


def _layers(trace: Trace, experts: int, common: NDArray[np.float64] | None) -> Table:
    """A line a layer; where a number has what chance would give beside it, that is in brackets."""
    counts = counts_of(trace, experts)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption=_LEGEND, caption_justify="left")
    headings = ("layer", "used", "even", "Jain", "busiest", "together", "token", "layer")
    for heading in (*headings, *(() if common is None else ("common",))):
        table.add_column(heading, no_wrap=True)
    for layer in balance(trace, experts):
        busiest = np.argsort(-counts[layer.layer], kind="stable")[:2]
        shares = ", ".join(f"{expert} {counts[layer.layer, expert] / len(trace):.0%}" for expert in busiest)
        table.add_row(
            str(layer.layer), str(layer.used), f"{layer.effective:.1f}", f"{layer.jain:.2f}", shares,
            _pairs(trace[:, layer.layer], experts), _beside(layer.next_token, layer.next_token_chance),
            _beside(layer.next_layer, layer.next_layer_chance),
            *(() if common is None else (f"{common[layer.layer]:.0%}",)),
        )  # fmt: skip
    return table


def _beside(found: float | None, chance: float | None) -> str:
    return "" if found is None or chance is None else f"{found:.0%} ({chance:.0%})"


def _pairs(chosen: Trace, experts: int) -> str:
    return "  ".join(f"{one}+{other} {count}" for one, other, count in frequent_pairs(chosen, experts, PAIRS))


def _scores(scores: list[Score], total: int) -> Table:
    policies = list(dict.fromkeys(score.policy for score in scores))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), title="hits in percent", title_justify="left")
    for heading in ("slots", *policies):
        table.add_column(heading, justify="right")
    for capacity in dict.fromkeys(score.capacity for score in scores):
        rates = [f"{100 * score.hit_rate:.1f}" for score in scores if score.capacity == capacity]
        table.add_row(f"{capacity} of {total}", *rates)
    return table


def _fields(
    trace: Trace, experts: int, scores: list[Score], compared: Trace | None
) -> dict[str, Any]:
    counts = counts_of(trace, experts)
    return {
        "tokens": len(trace),
        "counts": counts.tolist(),
        "entropy": entropy(counts).tolist(),
        "layers": [layer.as_dict() for layer in balance(trace, experts)],
        "in_common": None if compared is None else _or_none(overlap(trace, compared, experts)),
        "findings": None if compared is None else [each._asdict() for each in findings(trace, compared, experts)],
        "replay": [{"policy": score.policy, "slots": score.capacity, "hit_rate": score.hit_rate} for score in scores],
    }


def _or_none(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]
