"""Texts that may come from standard input."""

from __future__ import annotations

import sys
from typing import TextIO

import click


def read_text(given: str) -> str:
    """The text itself, or all of standard input where it is -; bytes that are not UTF-8 become U+FFFD."""
    if given != "-":
        return given
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise click.UsageError("- asks for standard input, which is closed")
    return stream.buffer.read().decode("utf-8", errors="replace")
