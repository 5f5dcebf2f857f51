"""How numbers and notes are written for people, and --json for programs."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

WIPE = "\r\x1b[K"  # begins a line of a terminal anew


def count(value: float) -> str:
    """A number of things: 46.7 B, 1.3 M, 812."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f}"


def rate(value: float | None) -> str:
    """Tokens a second, or a dash when there were too few to tell."""
    return "-" if value is None else f"{value:.1f} tokens/s"


def terminal_columns() -> int | None:
    """Columns of the terminal that stderr is; None where it is a file or takes no control sequences."""
    if os.environ.get("TERM") == "dumb" or not sys.stderr.isatty():
        return None
    return os.get_terminal_size(sys.stderr.fileno()).columns or 80


def note(text: str) -> None:
    """A line on stderr that a user should see, in the place of a sign of life where there is one."""
    if terminal_columns() is not None:
        sys.stderr.write(WIPE)
    _marked("note:", text, fg="yellow")


def problem(text: str) -> None:
    """A line on stderr that says why a command ends."""
    _marked("colibri:", text, fg="red", bold=True)


def aside(text: str) -> None:
    """A line on stderr beside what was asked for."""
    _styled(click.style(text, dim=True))


def _marked(mark: str, text: str, **style: Any) -> None:
    _styled(f"{click.style(mark, **style)} {text}")


def _styled(text: str) -> None:
    """click takes the styles out where stderr is a file; https://no-color.org is left to us."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    click.echo(text, err=True, color=False if plain else None)


def print_json(value: Any) -> None:
    """One object on stdout."""
    click.echo(json.dumps(value, ensure_ascii=False))
