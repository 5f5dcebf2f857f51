"""`colibri.load` and `colibri.infer`: from a path or a name to a model that runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri.config import KvType, LoadOptions, Precision, Speculate, check_path
from colibri.engine.arguments import check_ram
from colibri.engine.loading import open_model
from colibri.engine.model import Model
from colibri.hub.reference import Reference, parse


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    ram: int | str | None = None,
    threads: int | None = None,
    context: int | None = None,
    precision: Precision = "fast",
    sequences: int = 1,
    chunk: int = 512,
    share_prefixes: bool = False,
    kv_type: KvType = "f16",
    speculate: Speculate = "auto",
) -> Model:
    """Open a model: a .gguf file (any of a split), a Hugging Face directory, or the embedded demo (None).

    A text such as "ORG/NAME" or "ORG/NAME:Q4_K_M" that is no path names a model on Hugging Face: it comes from the
    local cache, and is fetched where it is not there. Without a model, COLIBRI_MODEL names it.
    ram: bytes that the process may take, or a text as "2.5G" (GiB); experts beyond it are read when they are needed.
    context: tokens of one sequence, by default the model's own up to 4096. See LoadOptions.
    Raises ColibriError's kinds: FileError, FormatError, UnsupportedError, MemoryBudgetError, ArgumentError.
    """
    options = LoadOptions(
        ram=check_ram(ram), threads=threads, context=context, precision=precision, sequences=sequences, chunk=chunk,
        share_prefixes=share_prefixes, kv_type=kv_type, speculate=speculate, path=None,
    )  # fmt: skip
    return open_model(replace(options, path=_path(model)))


def infer(
    model: str | os.PathLike[str] | None, ids: Sequence[int], *, precision: Precision = "fast"
) -> NDArray[np.float32]:
    """Load a model, give the logits of every position, float32 (len(ids), vocab), and close it."""
    with load(model, precision=precision) as loaded:
        return loaded.infer(ids)


def _path(model: str | os.PathLike[str] | None) -> Path | None:
    name = "model"
    if model is None:
        name, model = "COLIBRI_MODEL", os.environ.get("COLIBRI_MODEL")
    if model is None:
        return None
    path = check_path(name, model)
    reference = parse(model) if isinstance(model, str) else None
    if reference is None:
        return path
    from colibri.hub.pull import cached  # imports what fetches, which takes as long as the rest

    return cached(reference) or _fetched(reference)


def _fetched(reference: Reference) -> Path:
    """Fetch a model, and show on stderr how far it is."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from colibri.hub.pull import pull

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(str(reference), total=None)
        return pull(
            reference,
            lambda text: shown.console.print(f"{reference}: {text}", markup=False, highlight=False),
            lambda done, total: shown.update(task, completed=done, total=total),
        )
