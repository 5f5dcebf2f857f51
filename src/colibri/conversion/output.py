"""What a command may write: nothing that a model is read from, and nothing that is there unless it may go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from colibri.errors import ArgumentError, FileError
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.gguf import read_gguf


def sources(checkpoint: Checkpoint) -> frozenset[Path]:
    """Every file that belongs to a checkpoint, resolved: of a split all, in a folder all but GGUF files."""
    if checkpoint.format == "gguf":
        return frozenset(file.resolve() for file in read_gguf(checkpoint.path).files)
    path = checkpoint.path
    latest = path.parent / "latest" if checkpoint.format == "deepspeed" else path
    inside = (file for file in (*path.rglob("*"), latest) if file.suffix != ".gguf")
    return frozenset(file.resolve() for file in (*inside, *checkpoint.files))


def check_output(checkpoint: Checkpoint, path: Path, *, replace: bool, inputs: Sequence[Path] = ()) -> None:
    """That `path` can be written, and destroys neither what the checkpoint nor `inputs` are read from.

    replace: whether another file that is there may go. Raises ArgumentError, or FileError where nothing can be
    written there.
    """
    if not path.parent.is_dir():
        raise FileError(f"{path.parent}: no such directory; make it first")
    trial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}; give another name or folder") from error
    if not path.exists():
        return
    if not path.is_file():
        raise ArgumentError(f"{path}: is not a file and is not replaced; give another name")
    target = path.resolve()
    if target in sources(checkpoint):
        raise ArgumentError(f"{path}: the model is read from this file, which is not replaced; give another name")
    if target in {file.resolve() for file in inputs}:
        raise ArgumentError(f"{path}: is read by this command and is not replaced; give another name")
    if not replace:
        raise ArgumentError(f"{path}: exists; give --force to replace it, or another name")
