"""`colibri pull`: a model by its name on the hub."""

from __future__ import annotations

import click

from colibri.cli import EXIT_INTERRUPTED
from colibri.cli.model_names import ReferenceType, fetch
from colibri.hub.reference import Reference


@click.command("pull")
@click.argument("reference", type=ReferenceType(), metavar="ORG/NAME[:QUANT]")
def command(reference: Reference) -> int:
    """Fetch a model from Hugging Face into its cache, or go on with what was interrupted.

    Without QUANT it chooses the best quantisation for this machine and says why. HF_ENDPOINT names a mirror, HF_HOME
    the folder of the cache, HF_TOKEN a token.
    """
    try:
        path = fetch(reference)
    except KeyboardInterrupt:
        click.echo("note: interrupted; the same command goes on with what is there", err=True)
        return EXIT_INTERRUPTED
    click.echo(path)
    return 0
