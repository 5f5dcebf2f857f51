"""What lies in Hugging Face's cache, found without its library: models, where they are, and taking them away.

The layout is the library's: models--ORG--NAME/{blobs,refs,snapshots}; a snapshot holds links to blobs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import FileError
from colibri.hub.reference import Reference
from colibri.hub.variants import SAFETENSORS, Variant, variants_of


def cache_folder() -> Path:
    """Where the library keeps models, by the same variables as it: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.path.expandvars(os.path.expanduser(os.environ[name])))
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    folder = Path(os.path.expandvars(os.path.expanduser(home))) / "hub"
    if str(folder).startswith("~"):
        raise FileError("this user has no home directory; let HF_HOME or HF_HUB_CACHE name a folder for models")
    return folder


def repo_folder(repo: str) -> Path:
    """Where a repository's files are, or would be."""
    return cache_folder() / f"models--{repo.replace('/', '--')}"


@dataclass(frozen=True)
class CachedModel:
    """A whole model in the cache; `path` is what is opened."""

    reference: Reference
    variant: Variant
    path: Path


def cached_models() -> list[CachedModel]:
    """All, by name."""
    folder = cache_folder()
    repos = sorted(folder.glob("models--*--*"), key=lambda path: path.name.lower()) if folder.is_dir() else []
    return [model for path in repos for model in _models_in(path, path.name[len("models--") :].replace("--", "/", 1))]


def models_of(reference: Reference) -> list[CachedModel]:
    """The cached models of a repository, only those of the quantisation that is said; the largest first."""
    found = _models_in(repo_folder(reference.repo), reference.repo)
    return [model for model in found if same(reference.quant, model.variant)]


def same(quant: str | None, variant: Variant) -> bool:
    """Whether a variant is the one that is asked for; any is where nothing is said."""
    return quant is None or variant.label.lower() == quant.lower()


def _models_in(storage: Path, repo: str) -> list[CachedModel]:
    snapshot = _snapshot(storage)
    if snapshot is None:
        return []
    return [
        CachedModel(
            Reference(repo, variant.label), variant,
            snapshot if variant.label == SAFETENSORS else snapshot / variant.files[0],
        )
        for variant in variants_of(_files(snapshot))
    ]  # fmt: skip


def _snapshot(storage: Path) -> Path | None:
    """That of the main branch, else the youngest."""
    try:
        commit = (storage / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = ""
    if commit and "/" not in commit and (storage / "snapshots" / commit).is_dir():
        return storage / "snapshots" / commit
    snapshots = [path for path in storage.glob("snapshots/*") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def _files(snapshot: Path) -> dict[str, int]:
    """Names and sizes; a link whose blob is not there is no file."""
    return {
        path.relative_to(snapshot).as_posix(): path.stat().st_size for path in snapshot.rglob("*") if path.is_file()
    }


def remove(reference: Reference) -> int:
    """Take a quantisation, or without one all of a repository, out of the cache; the bytes that were freed."""
    storage = repo_folder(reference.repo)
    models = models_of(reference)
    if not models and (reference.quant is not None or not storage.is_dir()):
        raise FileError(f"{reference}: is not in {cache_folder()}; `colibri models` lists what is")
    before = _blob_bytes(storage)
    try:
        if reference.quant is not None:
            names = {name for model in models for name in model.variant.files}
            _unlink(storage, names)
        if reference.quant is None or not _pointers(storage):
            shutil.rmtree(storage)
    except OSError as error:
        raise FileError(f"{error.filename}: cannot be removed: {error.strerror}") from error
    return before - _blob_bytes(storage)


def _unlink(storage: Path, names: set[str]) -> None:
    """Remove these files from every snapshot, and the blobs that none needs any more."""
    for pointer in _pointers(storage):
        if "/".join(pointer.relative_to(storage).parts[2:]) in names:
            pointer.unlink()
    needed = {os.path.basename(os.readlink(pointer)) for pointer in _pointers(storage) if pointer.is_symlink()}
    for blob in storage.glob("blobs/*"):
        if blob.name not in needed and not blob.name.endswith(".incomplete"):
            blob.unlink()


def _pointers(storage: Path) -> list[Path]:
    return [path for path in storage.glob("snapshots/*/**/*") if path.is_symlink() or path.is_file()]


def _blob_bytes(storage: Path) -> int:
    """Of blobs and of files that lie in snapshots themselves."""
    return sum(path.stat().st_size for path in _plain_files(storage))


def _plain_files(storage: Path) -> Iterator[Path]:
    return (path for path in storage.rglob("*") if path.is_file() and not path.is_symlink())
