"""Texts that may come from standard input."""

from __future__ import annotations

import sys
from typing import TextIO

import click

from colibri.cli.output import note

MOST_BYTES = 1 << 26  # 4 bytes for each token of the longest context


def read_text(given: str) -> str:
    """The text itself, or all of standard input where it is -; a note tells of bytes that became U+FFFD."""
    return _decoded(_standard_input()) if given == "-" else valid_text(given)


def valid_text(argument: str) -> str:
    """A text from the command line, where bytes that are not UTF-8 become U+FFFD with a note, too."""
    return _decoded(argument.encode("utf-8", "surrogateescape"))


def _standard_input() -> bytes:
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise click.UsageError("- asks for standard input, which is closed")
    data = stream.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise click.UsageError(f"standard input holds more than {MOST_BYTES} bytes, which no context does")
    return data


def _decoded(data: bytes) -> str:
    """Text of UTF-8 bytes; those that are something else become U+FFFD, and a note says how many."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        broken = sum("\udc80" <= char <= "\udcff" for char in data.decode("utf-8", "surrogateescape"))
        note(f"{broken} bytes of the text are not UTF-8 and were replaced by U+FFFD")
        return data.decode("utf-8", "replace")
