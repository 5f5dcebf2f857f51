"""`colibri pull`: a model by its name on the hub."""

from __future__ import annotations

import click

from colibri.cli import EXIT_INTERRUPTED
from colibri.cli.epilog import epilog
from colibri.cli.model_names import ReferenceType, fetch
from colibri.cli.output import note
from colibri.hub.reference import Reference

EPILOG = epilog(
    "models.md",
    "colibri pull unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF",
    "colibri pull unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M",
)


@click.command("pull", epilog=EPILOG)
@click.argument("reference", type=ReferenceType(), metavar="ORG/NAME[:QUANT]")
def command(reference: Reference) -> int:
    """Fetch a model from Hugging Face into its cache, or go on with what was interrupted.

    Without QUANT it chooses the best quantisation for this machine and says why. HF_ENDPOINT names a mirror, HF_HOME
    the folder of the cache, HF_TOKEN a token.
    """
    try:
        path = fetch(reference)
    except KeyboardInterrupt:
        note("interrupted; the same command goes on with what is there")
        return EXIT_INTERRUPTED
    click.echo(path)
    return 0
