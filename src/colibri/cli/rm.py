"""`colibri rm`: take a model out of the cache."""

from __future__ import annotations

import click

from colibri.cli.model_names import ReferenceType
from colibri.cli.output import size
from colibri.hub.cache import remove
from colibri.hub.reference import Reference


@click.command("rm")
@click.argument("reference", type=ReferenceType(), metavar="ORG/NAME[:QUANT]")
def command(reference: Reference) -> None:
    """Remove a model from the cache: one quantisation, or without QUANT all that is there of ORG/NAME."""
    click.echo(f"{reference}: removed, {size(remove(reference))} freed")
