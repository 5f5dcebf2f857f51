"""`colibri rm`: take a model out of the cache."""

from __future__ import annotations

import click

from colibri.cli.epilog import epilog
from colibri.cli.model_names import ReferenceType
from colibri.config import readable
from colibri.hub.cache import remove
from colibri.hub.reference import Reference


@click.command("rm", epilog=epilog("models.md", "colibri rm unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M"))
@click.argument("reference", type=ReferenceType(), metavar="ORG/NAME[:QUANT]")
def command(reference: Reference) -> None:
    """Remove a model from the cache: one quantisation, or without QUANT all that is there of ORG/NAME."""
    click.echo(f"{reference}: removed, {readable(remove(reference))} freed")
