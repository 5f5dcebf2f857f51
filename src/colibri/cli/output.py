"""How numbers are written for people, and --json for programs."""

from __future__ import annotations

import json
from typing import Any

import click


def count(value: float) -> str:
    """A number of things: 46.7 B, 1.3 M, 812."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    """Bytes of a file or read from it, in decimal units: 4.2 GB, 812 MB. Memory is told in GiB and MiB, as --ram is."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f} B"


def rate(value: float | None) -> str:
    """Tokens a second, or a dash when there were too few to tell."""
    return "-" if value is None else f"{value:.1f} tokens/s"


def print_json(value: Any) -> None:
    """One object on stdout."""
    click.echo(json.dumps(value, ensure_ascii=False))
