"""The `colibri` command: one file a command, imported only when it is run."""

from __future__ import annotations

from collections.abc import Sequence

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. Ctrl-C ends it without a traceback, also while it is being imported."""
    try:
        from colibri.cli.group import run

        return run(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
