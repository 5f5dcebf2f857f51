"""`colibri models`: what is in the cache, and what one could get."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from colibri.cli.epilog import epilog
from colibri.cli.output import print_json
from colibri.config import readable
from colibri.hub.cache import CachedModel, cache_folder, cached_models
from colibri.hub.fit import Fit, fit
from colibri.hub.suggestions import KNOWN, QUANTISATION, RAM_SIZES, Known, Sizes, sizes, speed
from colibri.observe.disk import measure_disk
from colibri.observe.limits import Meter

MEASURE_SECONDS = 1.0
_SAID = {"whole": "fits", "part": "fits in part", "small": "too large", "no": "not run here"}


@click.command("models", epilog=epilog("models.md", "colibri models", "colibri models --suggest"))
@click.option("--suggest", is_flag=True, help="Known mixtures instead, with sizes and the speed to expect here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(suggest: bool, as_json: bool) -> None:
    """List the models in Hugging Face's cache with size and whether they fit into this machine's memory."""
    if suggest:
        _suggest(as_json=as_json)
        return
    models = [(model, fit(model.path)) for model in cached_models()]
    if as_json:
        print_json({"cache": str(cache_folder()), "models": [_fields(model, seen) for model, seen in models]})
        return
    if not models:
        click.echo(f"no model in {cache_folder()}; colibri models --suggest names some, colibri pull fetches one")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("model", "size", "memory", ""):
        table.add_column(heading, no_wrap=heading == "model")
    for model, seen in models:
        text = seen.text.removeprefix(f"{model.path}: ")
        table.add_row(str(model.reference), readable(model.variant.nbytes), _SAID[seen.kind], text.partition("; ")[0])
    Console(highlight=False).print(table)


def _fields(model: CachedModel, seen: Fit) -> dict[str, object]:
    return {
        "model": str(model.reference),
        "path": str(model.path),
        "bytes": model.variant.nbytes,
        "fit": seen.kind,
        "text": seen.text,
    }


def _suggest(*, as_json: bool) -> None:
    folder = next((path for path in (cache_folder(), *cache_folder().parents) if path.is_dir()), Path())
    meter = Meter()
    meter.measure(MEASURE_SECONDS)
    memory, disk = meter.read.median, measure_disk(folder)
    rows = [(known, taken, _speeds(known, taken, memory, disk)) for known in KNOWN for taken in (sizes(known),)]
    if as_json:
        print_json({
            "quantisation": QUANTISATION, "read_bytes_per_s": memory, "disk_bytes_per_s": disk,
            "models": [
                {
                    "model": f"{known.reference}:{QUANTISATION}", "purpose": known.purpose, "source": known.source,
                    "bytes": taken.file, "dense_bytes": taken.dense,
                    "tokens_per_s": {str(ram): rate for ram, rate in zip(RAM_SIZES, speeds, strict=True)},
                }
                for known, taken, speeds in rows
            ],
        })  # fmt: skip
        return
    click.echo("".join(f"{heading:>11}" for heading in ("download", "dense", *(f"{ram} GiB" for ram in RAM_SIZES))))
    for known, taken, speeds in rows:
        figures = (readable(taken.file), readable(taken.dense), *map(_shown, speeds))
        click.echo(f"{known.reference}: {known.purpose}\n" + "".join(f"{figure:>11}" for figure in figures))
    read = "the disk was not measured" if disk is None else f"{readable(disk)}/s from the disk of {folder}"
    click.echo(
        f"\nIn {QUANTISATION}; the columns are tokens a second to expect with so much memory in the machine, from "
        f"{readable(memory)}/s from memory and {read}, measured now. - is too little for the dense part.\n"
        f"Get one with: colibri pull {rows[0][0].reference}"
    )


def _speeds(known: Known, taken: Sizes, memory: float, disk: float | None) -> list[float | None]:
    return [speed(known, taken, ram << 30, memory, disk) for ram in RAM_SIZES]


def _shown(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}" if rate >= 0.1 else f"{rate:.2f}"
