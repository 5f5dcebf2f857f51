"""From a name to a model on this machine: what is in the cache, or else what the hub has."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from colibri.config import readable
from colibri.errors import FileError, UnsupportedError
from colibri.hub.cache import CachedModel, cache_folder, models_of, repo_folder, same
from colibri.hub.choice import choose, remote_fit
from colibri.hub.download import fetch, point_main
from colibri.hub.fit import fit
from colibri.hub.reference import Reference
from colibri.hub.remote import Repository, list_repository
from colibri.hub.variants import SAFETENSORS, Variant, variants_of

Say = Callable[[str], None]
Progress = Callable[[int, int], None]  # bytes that are there, bytes in all


def cached(reference: Reference) -> Path | None:
    """Where a model is in the cache; of several quantisations the best that fits here. None when it is not there."""
    models = models_of(reference)
    if len(models) < 2:
        return models[0].path if models else None
    return _best(models).path


def _best(models: Sequence[CachedModel]) -> CachedModel:
    fits = {model.reference: fit(model.path).kind for model in models}
    for kind in ("whole", "part"):
        for model in models:
            if fits[model.reference] == kind:
                return model
    return models[-1]


def pull(reference: Reference, say: Say, progress: Progress) -> Path:
    """Fetch a model and say what is done; the path that is opened. What is whole in the cache is not fetched again.

    Raises FileError (network, access, space), FormatError (other bytes than promised), UnsupportedError (no such
    model), MemoryBudgetError (too large in every quantisation).
    """
    repository = list_repository(reference.repo)
    variant = _wanted(repository, reference, say)
    storage = repo_folder(reference.repo)
    _check_space(storage, repository, variant)
    before = 0
    for name in variant.files:
        fetch(repository, repository.files[name], storage, _beside(progress, before, variant.nbytes))
        before += repository.files[name].size
    point_main(repository, storage)
    snapshot = storage / "snapshots" / repository.commit
    return snapshot if variant.label == SAFETENSORS else snapshot / variant.files[0]


def _beside(progress: Progress, before: int, total: int) -> Callable[[int], None]:
    """The progress of one file as that of all, with what came before it."""
    return lambda done: progress(before + done, total)


def _wanted(repository: Repository, reference: Reference, say: Say) -> Variant:
    variants = variants_of(repository.sizes)
    if not variants:
        raise UnsupportedError(
            f"{reference.repo}: holds no model that is read here: neither GGUF files nor config.json with safetensors"
        )
    labels = ", ".join(variant.label for variant in variants)
    if reference.quant is not None:
        found = [variant for variant in variants if same(reference.quant, variant)]
        if not found:
            raise UnsupportedError(f"{reference.repo}: has no {reference.quant}; it has {labels}")
        _warn(repository, found[0], say)
        return found[0]
    gguf = [variant for variant in variants if variant.label != SAFETENSORS]
    choice = choose(repository, gguf or variants)
    if len(variants) > 1:
        say(f"{choice.variant.label} of {labels}: {choice.why}")
    return choice.variant


def _warn(repository: Repository, variant: Variant, say: Say) -> None:
    """Who asks for one by its name may want it for another machine, or to convert it: it is only told."""
    with contextlib.suppress(FileError):  # what hinders this hinders the fetching, too, and is told there
        seen = remote_fit(repository, variant)
        if seen.kind in ("small", "no"):
            say(f"this machine does not run it: {seen.text}")


def _check_space(storage: Path, repository: Repository, variant: Variant) -> None:
    """Before anything is fetched: that all of it can be kept."""
    there = sum(path.stat().st_size for path in storage.glob("blobs/*.incomplete"))
    snapshot = storage / "snapshots" / repository.commit
    there += sum(repository.files[name].size for name in variant.files if (snapshot / name).is_file())
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise FileError(f"{folder}: cannot be made: {error.strerror}; HF_HOME names another folder") from error
    needed = variant.nbytes - there
    if free < needed:
        raise FileError(
            f"{folder}: has {readable(free)} free, {readable(needed)} more are needed; free space "
            "(`colibri models`, `colibri rm`), or let HF_HOME name another folder"
        )
