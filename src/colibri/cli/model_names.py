"""Models by name on the command line: ORG/NAME[:QUANT] where a path may stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from colibri.cli.output import note
from colibri.cli.progress import counting
from colibri.config import readable
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

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Models of the cache."""
        return names_in_cache(incomplete)


def names_in_cache(incomplete: str) -> list[CompletionItem]:
    """What a shell offers after the first letters of a name: repositories, as many shells end a word at a colon."""
    from colibri.hub.cache import cached_models

    names = {model.reference.repo for model in cached_models()} if incomplete else ()
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def fetch(reference: Reference) -> Path:
    """The model, fetched where it is not in the cache, with a sign of life."""
    from colibri.hub.pull import pull

    progress, count = counting(str(reference))
    last = [0]

    def counted(done: int, total: int) -> None:
        last[0] = total
        count(done, total)

    with progress:
        path = pull(reference, lambda text: note(f"{reference}: {text}"), counted)
    note(f"{reference}: {readable(last[0])} in {path}")
    return path
