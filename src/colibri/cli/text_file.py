"""Text files that commands measure a model on."""

from __future__ import annotations

from pathlib import Path

from colibri.errors import FileError


def read_text_file(file: Path) -> str:
    """The text of a UTF-8 file; FileError when it cannot be read or is something else."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{file}: is not UTF-8 text: {error}") from error
