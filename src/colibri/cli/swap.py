"""`colibri swap`: replace an expert, take the replacement back, or write the expert in use to a file."""

from __future__ import annotations

from pathlib import Path

import click

from colibri.cli.epilog import epilog
from colibri.cli.options import FilePath, model_option
from colibri.cli.output import note
from colibri.conversion.output import check_output
from colibri.engine.model import model_path
from colibri.errors import ArgumentError
from colibri.experts.overlay import Overlay
from colibri.experts.store import ExpertStore
from colibri.experts.swap import export_expert, overlay_folder, revert_expert, swap_expert
from colibri.models.registry import open_checkpoint
from colibri.weights.gguf_writer import remove_unfinished
from colibri.weights.single_expert import read_single_expert

EPILOG = epilog(
    "experts.md",
    "colibri swap -m model.gguf --expert 3 new.gguf",
    "colibri swap -m model.gguf --expert 3 --revert",
    "colibri swap -m model.gguf",
)


@click.command("swap", epilog=EPILOG)
@model_option
@click.option("-e", "--expert", type=click.IntRange(0), help="Which expert, the same in every layer.")
@click.argument("file", required=False, type=FilePath())
@click.option("--revert", is_flag=True, help="Take the replacement back.")
@click.option("--export", is_flag=True, help="Write the expert in use to FILE.")
@click.option("--force", is_flag=True, help="With --export: replace FILE where it exists.")
def command(model: Path | None, expert: int | None, file: Path | None, revert: bool, export: bool, force: bool) -> None:
    """Put the expert in FILE (.gguf or .safetensors) in the place of one of the model's.

    Running engines take it up at their next token. Without options, list what is replaced.
    """
    _check_arguments(expert, file, revert, export)
    checkpoint = open_checkpoint(model_path(model))
    store = ExpertStore(checkpoint)
    for replacement in Overlay(store).changes():  # as an engine that starts now
        store.replace(replacement.expert, replacement.layers)
    if expert is None:
        _list(store)
    elif revert:
        done = revert_expert(store, expert)
        click.echo(f"expert {expert} is the model's own again" if done else f"expert {expert} was not replaced")
    elif file is None:
        raise ArgumentError("swap: give a FILE, or --revert")
    elif export:
        check_output(checkpoint, file, replace=force)
        export_expert(store, expert, file)
        click.echo(f"expert {expert} is in {file}")
    else:
        _swap(store, expert, file)


def _check_arguments(expert: int | None, file: Path | None, revert: bool, export: bool) -> None:
    """Raise unless they ask for one thing."""
    if expert is None and (file is not None or revert or export):
        raise ArgumentError("swap: which expert? give --expert")
    for other, given in (("--export", export), (f"FILE ({file})", file is not None)):
        if revert and given:
            raise ArgumentError(f"swap: --revert and {other} contradict each other; give one of them")


def _swap(store: ExpertStore, expert: int, file: Path) -> None:
    path = swap_expert(store, expert, file)
    named = read_single_expert(file).expert
    if named not in (None, expert):
        note(f"{file} holds an expert that is named {named}; it is in the place of {expert} now")
    click.echo(f"expert {expert} is now the one in {path}")


def _list(store: ExpertStore) -> None:
    remove_unfinished(overlay_folder(store.path))
    replaced = store.replaced_experts
    click.echo(f"{len(replaced)} of {store.experts} experts are replaced ({overlay_folder(store.path)})")
    for expert in replaced:
        click.echo(f"  {expert}: {store.expert(store.moe_layers()[0], expert).parts[0].file}")
