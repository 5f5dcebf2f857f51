"""Every error that Colibri raises on bad input, with the code that C callers know it by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class ColibriError(Exception):
    """Base of all errors: the message says what was found, what was expected and what to do."""

    code = -5


class FileError(ColibriError):
    """A file is missing, unreadable, truncated or changed while in use."""

    code = -1


class ChangedFileError(FileError):
    """A file in use is not what it was, which does not pass: what was loaded from it must be loaded again."""


class MemoryBudgetError(ColibriError):
    """The memory asked for is not there, or the budget is below what the model needs."""

    code = -2


class FormatError(ColibriError):
    """A file's content contradicts its format."""

    code = -3


class UnsupportedError(ColibriError):
    """Well formed, but not something this engine runs."""

    code = -4


class ArgumentError(ColibriError):
    """An argument is out of its range or of the wrong kind."""

    code = -5


class ContextFullError(ColibriError):
    """The prompt does not fit into the context."""

    code = -6


class NumericalError(ColibriError):
    """A NaN or an infinity came out of the arithmetic."""

    code = -3


@contextlib.contextmanager
def starting_threads(work: str) -> Iterator[None]:
    """Around what starts threads: MemoryBudgetError when the system refuses one."""
    try:
        yield
    except RuntimeError as error:
        raise MemoryBudgetError(
            f"the system refused a thread to {work} with: {error}; allow more memory or tasks (ulimit -v, ulimit -u)"
        ) from error
