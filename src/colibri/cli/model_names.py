"""Models by name on the command line: ORG/NAME[:QUANT] where a path may stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from colibri.cli.output import size
from colibri.cli.progress import counting
from colibri.hub.reference import Reference, parse


class ReferenceType(click.ParamType[Reference]):
    """ORG/NAME, or ORG/NAME:QUANT."""

    name = "reference"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Reference:
        if isinstance(value, Reference):
            return value
        reference = parse(value)
        if reference is None:
            there = "is a path" if Path(value).exists() else "is no name"
            self.fail(f"{value!r} {there}; write it as ORG/NAME or ORG/NAME:Q4_K_M", param, ctx)
        return reference


def fetch(reference: Reference) -> Path:
    """The model, fetched where it is not in the cache, with a sign of life."""
    from colibri.hub.pull import pull

    progress, count = counting(str(reference))
    last = [0]

    def counted(done: int, total: int) -> None:
        last[0] = total
        count(done, total)

    with progress:
        path = pull(reference, lambda text: click.echo(f"note: {reference}: {text}", err=True), counted)
    click.echo(f"note: {reference}: {size(last[0])} in {path}", err=True)
    return path
